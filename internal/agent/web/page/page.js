'use strict';
// Draws the node's addresses. Everything that comes from the node goes into the page as
// text (textContent), and with control and direction characters written out.
(() => {
  const verdicts = [ // worst first; the letter is for who cannot tell the colours apart
    ['Conflict', 'C', 'two hold it, or another than its owner'],
    ['Missing', 'M', 'in use and not reserved'],
    ['Leaked', 'L', 'nobody uses it, and its grace is over'],
    ['Orphaned', 'O', 'only a namespace without processes holds it'],
    ['Malformed', 'X', 'a file that names no owner'],
    ['Unknown', '?', 'a witness is silent or cannot say'],
    ['Suspect', 'S', 'nobody uses it, for less than the grace'],
    ['Foreign', 'F', 'its owner is no container'],
    ['Held', 'H', 'a person said to keep it'],
    ['InUse', 'U', 'in use'],
  ];
  const OUT = 0, FREE = 1, FIRST = 2; // codes of a cell: FIRST + index of its verdict
  const code = new Map(verdicts.map((v, i) => [v[0], FIRST + i]));
  const letter = (c) => c < FIRST ? '' : verdicts[c - FIRST][1];
  const nameOf = (c) => c === OUT ? 'not in the range' : c === FREE ? 'free' : verdicts[c - FIRST][0];
  const human = { InUse: 'in use', Leaked: 'leaked', Suspect: 'suspect', Conflict: 'in conflict', Missing: 'missing', Orphaned: 'orphaned', Malformed: 'malformed', Unknown: 'unknown', Foreign: 'foreign', Held: 'held' };
  const grave = ['Conflict', 'Missing', 'Leaked', 'Orphaned'];
  const BLOCK = 256, MOSTBLOCKS = 1024, POLL = 3000, LIVE = 15000, SHORT = 6;

  const $ = (id) => document.getElementById(id);
  // clean writes out what could hide or turn text around.
  const clean = (s) => String(s ?? '').replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (c) => '\\u{' + c.codePointAt(0).toString(16) + '}');
  function h(tag, props, ...children) {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(props || {})) {
      if (v === undefined || v === false) continue;
      if (k === 'class') e.className = v;
      else if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
      else e.setAttribute(k, v === true ? '' : v);
    }
    for (const c of children.flat(Infinity)) {
      if (c === null || c === undefined || c === false || c === '') continue;
      e.append(c instanceof Node ? c : clean(c));
    }
    return e;
  }
  const put = (e, ...children) => e.replaceChildren(...children.flat(Infinity).filter((c) => c !== false && c !== '' && c !== null && c !== undefined));
  const paint = (e, name) => { e.style.background = `var(--v-${name})`; e.style.color = `var(--v-${name}-ink)`; return e; };
  const key = (name) => { const e = paint(h('span', { class: 'key ' + name, 'aria-hidden': 'true' }, verdicts.find((v) => v[0] === name)?.[1] || ''), name); return e; };
  const pill = (name) => paint(h('span', { class: 'pill' }, name), code.has(name) ? name : 'free');
  const num = (n) => Number(n).toLocaleString('en', n >= 1e7 ? { notation: 'compact', maximumFractionDigits: 1 } : {});

  // --- addresses as whole numbers
  function parse(text) {
    const v4 = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(text);
    if (v4) {
      const b = v4.slice(1).map(Number);
      return b.some((x) => x > 255) ? null : { v: BigInt(b[0] * 2 ** 24 + b[1] * 2 ** 16 + b[2] * 256 + b[3]), bits: 32 };
    }
    if (!/^[0-9a-f:.]+$/i.test(text) || !text.includes(':')) return null;
    let s = text.toLowerCase();
    const tail = /^(.*:)(\d+\.\d+\.\d+\.\d+)$/.exec(s);
    if (tail) {
      const t = parse(tail[2]);
      if (!t) return null;
      s = tail[1] + (t.v >> 16n).toString(16) + ':' + (t.v & 0xffffn).toString(16);
    }
    const half = s.split('::');
    if (half.length > 2) return null;
    const words = half.map((p) => p === '' ? [] : p.split(':'));
    const missing = 8 - words.flat().length;
    if (half.length === 2 ? missing < 1 : missing !== 0) return null;
    const all = half.length === 2 ? [...words[0], ...Array(missing).fill('0'), ...words[1]] : words[0];
    if (all.some((w) => !/^[0-9a-f]{1,4}$/.test(w))) return null;
    const v = all.reduce((n, w) => (n << 16n) | BigInt('0x' + w), 0n);
    return v >> 32n === 0xffffn ? { v: v & 0xffffffffn, bits: 32 } : { v, bits: 128 };
  }
  function show(v, bits) {
    if (bits === 32) return [24n, 16n, 8n, 0n].map((n) => (v >> n) & 255n).join('.');
    const words = Array.from({ length: 8 }, (_, i) => (v >> BigInt(112 - 16 * i)) & 0xffffn);
    let at = -1, len = 1;
    for (let i = 0; i < 8; i++) {
      let n = 0;
      while (i + n < 8 && words[i + n] === 0n) n++;
      if (n > len) { at = i; len = n; }
    }
    const hex = words.map((w) => w.toString(16));
    return at < 0 ? hex.join(':') : hex.slice(0, at).join(':') + '::' + hex.slice(at + len).join(':');
  }

  // model makes of a network blocks of 256 addresses, each address a code.
  function model(net) {
    const blocks = new Map();
    const block = (base, bits) => {
      const k = bits + '/' + base;
      let b = blocks.get(k);
      if (!b) blocks.set(k, b = { key: k, base, bits, cells: new Uint8Array(BLOCK), gateway: -1 });
      return b;
    };
    const fill = (first, last, bits, what, make) => {
      for (let base = first >> 8n; base <= last >> 8n; base++) {
        if (!make && !blocks.has(bits + '/' + base)) continue;
        const from = base === first >> 8n ? Number(first & 255n) : 0;
        const to = base === last >> 8n ? Number(last & 255n) : 255;
        const cells = block(base, bits).cells;
        for (let i = from; i <= to; i++) if (what !== FREE || cells[i] === OUT) cells[i] = what;
      }
    };
    const inRange = (a, r) => a.bits === r.bits && a.v >= r.first && a.v <= r.last;
    const ranges = (net.ranges || []).map((r) => ({ ...parse(r.first), first: parse(r.first).v, last: parse(r.last).v, gw: r.gateway && parse(r.gateway) }));
    const large = (r) => (r.last >> 8n) - (r.first >> 8n) >= BigInt(MOSTBLOCKS);
    for (const r of ranges) if (!large(r)) fill(r.first, r.last, r.bits, FREE, true);
    const outside = [];
    for (const [name, spans] of Object.entries(net.addresses || {})) {
      for (const s of spans) {
        const [a, b] = s.split('-').map(parse);
        if (!a) { outside.push({ text: s, name }); continue; }
        const last = (b || a).v;
        const whole = ranges.some((r) => inRange(a, r) && last <= r.last);
        if (ranges.length > 0 && !whole) {
          for (let v = a.v; v <= last && outside.length < 2000; v++) {
            if (!ranges.some((r) => inRange({ v, bits: a.bits }, r))) outside.push({ text: show(v, a.bits), name });
          }
        }
        // What lies in no range is drawn where its block is drawn anyway.
        fill(a.v, last, a.bits, code.get(name) ?? code.get('Unknown'), ranges.length === 0 || ranges.some((r) => inRange(a, r)));
      }
    }
    let hidden = 0n;
    for (const r of ranges) {
      if (!large(r)) continue;
      const all = r.last - r.first + 1n;
      // Too large to be drawn whole: only what somebody has reserved.
      let drawn = 0n;
      for (const b of [...blocks.values()]) {
        if (b.bits !== r.bits) continue;
        const lo = b.base << 8n, hi = lo + 255n;
        if (hi < r.first || lo > r.last) continue;
        const f = lo > r.first ? lo : r.first, l = hi < r.last ? hi : r.last;
        fill(f, l, r.bits, FREE, true);
        drawn += l - f + 1n;
      }
      hidden += all - drawn;
    }
    for (const r of ranges) {
      if (!r.gw) continue;
      const b = blocks.get(r.gw.bits + '/' + (r.gw.v >> 8n));
      if (b) b.gateway = Number(r.gw.v & 255n);
    }
    const list = [...blocks.values()].sort((a, b) => a.bits - b.bits || (a.base < b.base ? -1 : a.base > b.base ? 1 : 0));
    for (const b of list) {
      b.counts = new Array(FIRST + verdicts.length).fill(0);
      for (const c of b.cells) b.counts[c]++;
      b.worst = b.counts.findIndex((n, c) => c >= FIRST && n > 0);
      if (b.worst < 0) b.worst = FIRST + verdicts.length;
    }
    let more = 0;
    if (list.length > MOSTBLOCKS) { // scattered over a very large range: the worst are drawn
      const keep = new Set([...list].sort((a, b) => a.worst - b.worst).slice(0, MOSTBLOCKS));
      more = list.length - keep.size;
      return { blocks: list.filter((b) => keep.has(b)), outside, hidden, more };
    }
    return { blocks: list, outside, hidden, more };
  }

  // --- what is known
  const state = { map: null, tag: '', error: '', since: 0, skew: 0, reasons: [], only: '', selected: null, items: null, journal: null, query: null, all: false, views: new Map() };
  const isStatic = $('data').textContent.trim() !== '';
  const nowMs = () => isStatic ? Date.parse(state.map.at) : Date.now() + state.skew;
  function ago(t, now = nowMs()) {
    const s = Math.max(0, Math.round((now - (typeof t === 'number' ? t : Date.parse(t))) / 1000));
    if (s < 120) return s + ' s';
    if (s < 7200) return Math.floor(s / 60) + ' min';
    if (s < 172800) return Math.floor(s / 3600) + ' h';
    return Math.floor(s / 86400) + ' d';
  }
  const stamp = (t) => new Date(t).toISOString().replace('T', ' ').replace(/\.\d+Z/, ' UTC');
  const when = (t) => `${stamp(t)}, ${ago(t)} ${isStatic ? 'before the report' : 'ago'}`;
  function due(r) {
    if (r.releasable) return 'now: the next sweep asks every witness once more and releases it';
    if (!r.releasableAt) return 'no';
    const s = Math.round((Date.parse(r.releasableAt) - nowMs()) / 1000);
    return s <= 0 ? 'at the next sweep, if every witness still says absent' : `in ${s < 120 ? s + ' s' : Math.ceil(s / 60) + ' min'}, if every witness still says absent`;
  }
  const pod = (p) => p ? `${p.namespace}/${p.name}` : '';
  const owner = (r) => pod(r.pod) || (r.containerID || '').slice(0, 13);

  // --- asking the agent
  async function get(path, headers) {
    const stop = new AbortController();
    const t = setTimeout(() => stop.abort(), 20000);
    try {
      const res = await fetch(path, { headers, signal: stop.signal, cache: 'no-store', credentials: 'omit', redirect: 'error' });
      const date = Date.parse(res.headers.get('Date') || '');
      if (!Number.isNaN(date)) {
        // The header has whole seconds: less than one is no skew.
        const skew = date - Date.now();
        state.skew = Math.abs(skew) > 1500 ? skew : 0;
      }
      return res;
    } finally { clearTimeout(t); }
  }
  const api = (name) => 'api/v1alpha1/' + name;
  async function fault(res) {
    try { return (await res.json()).error || res.statusText; } catch { return `it answered ${res.status}`; }
  }
  async function poll() {
    try {
      const ready = await get('readyz');
      const lines = (await ready.text()).trim().split('\n').slice(1).filter(Boolean);
      state.reasons = ready.ok ? [] : (lines.length ? lines : ['it does not say why']);
      const res = await get(api('map'), state.tag ? { 'If-None-Match': state.tag } : {});
      if (res.status === 200) {
        const map = await res.json();
        state.tag = res.headers.get('ETag') || '';
        state.error = '';
        setMap(map);
      } else if (res.status === 304) {
        state.error = '';
      } else {
        state.error = await fault(res);
      }
      state.since = 0;
    } catch (e) {
      state.since ||= Date.now();
      state.gone = String(e && e.message || e);
    }
    header();
  }
  async function explain(q) {
    const key = q.address !== undefined ? 'address' : q.pod !== undefined ? 'pod' : 'container';
    if (isStatic) {
      const a = key === 'address' && parse(q.address);
      const list = state.items.filter((r) => {
        if (key === 'address') { const b = a && r.address && parse(r.address); return r.address === q.address || b && b.v === a.v && b.bits === a.bits; }
        return key === 'pod' ? pod(r.pod) === q.pod : (r.containerID || '').startsWith(q.container);
      });
      if (key === 'container' && !list.some((r) => r.containerID === q.container) && new Set(list.map((r) => r.containerID)).size > 1) return { error: 'More than one container begins with it.' };
      const exact = key === 'container' ? list.filter((r) => r.containerID === q.container) : [];
      if (list.length) return { resources: exact.length ? exact : list };
      return { error: key === 'address' ? `${q.address} is not reserved.` : 'Nothing on this node matches.', past: past(q.address) };
    }
    try {
      const res = await get(api('explain?') + new URLSearchParams({ [key]: q[key] }));
      if (res.ok) return await res.json();
      const out = { error: await fault(res), retry: res.status === 503 };
      if (res.status === 404 && key === 'address') {
        const j = await get(api('journal?limit=20&') + new URLSearchParams({ address: q.address }));
        if (j.ok) out.past = (await j.json()).entries;
      }
      return out;
    } catch (e) {
      return { error: 'The agent does not answer: ' + (e && e.message || e), retry: true };
    }
  }
  const past = (address) => (state.journal?.entries || []).filter((e) => e.address === address);

  // --- the head of the page
  function banner(kind, title, text) { return h('div', { class: 'banner ' + kind }, h('b', {}, title), text && h('span', {}, text)); }
  function header() {
    const m = state.map;
    const alerts = [];
    document.body.classList.toggle('stale', !!state.since);
    if (state.since) {
      const t = new Date(state.since).toLocaleTimeString([], { hour12: false });
      alerts.push(banner('bad', `The agent does not answer since ${t}`, m ? `What you see was so at ${stamp(m.at)}. It is asked again every few seconds.` : 'It is asked again every few seconds.'));
    } else if (!m) {
      if (state.error) alerts.push(banner('warn', 'There is nothing to show yet', state.error));
    }
    if (!state.since && state.reasons.length) alerts.push(banner('warn', 'The agent is not ready', state.reasons.join('; ')));
    if (m?.failed) alerts.push(banner('bad', `The sweep of ${stamp(m.failedAt)} failed`, `${m.failed}. What you see was so at ${stamp(m.at)}.`));
    for (const s of m?.stops || []) {
      alerts.push(banner('bad', `Releases of ${clean(s.network || s.dir)} are stopped`, `${s.why}. Since ${when(s.since)}. A clean hour or "holdfast resume" ends it.`));
    }
    if (m && !m.vantage.proven) alerts.push(banner('bad', 'Not the whole node can be seen, so nothing is released', m.vantage.detail));
    for (const w of m?.witnesses || []) {
      if (w.required && w.state !== 'complete') alerts.push(banner('warn', `The witness ${clean(w.name)} is silent: what it could speak for is kept`, w.detail));
    }
    const text = alerts.map((a) => a.textContent).join('\n');
    if ($('alerts').dataset.text !== text) { // or it would be read out every time
      $('alerts').dataset.text = text;
      put($('alerts'), ...alerts);
    }
    const fresh = isStatic ? `Report of ${stamp(m.at)}` : state.since ? `not answering for ${ago(state.since, Date.now())}` : m ? `seen ${ago(m.at)} ago` : 'asking';
    if ($('fresh').textContent !== fresh) $('fresh').textContent = fresh;
    if (!m && !state.since && state.error) put($('headline'), h('p', { class: 'loading' }, 'Waiting for the first sweep'));
    if (!m && state.since) put($('headline'), h('p', { class: 'loading' }, 'Nothing is known yet'));
  }
  const list = (parts) => parts.length < 2 ? parts.join('') : parts.slice(0, -1).join(', ') + ' and ' + parts.at(-1);
  const counts = (of, names) => names.filter((n) => of[n]).map((n) => `${num(of[n])} ${human[n]}`);

  function headline() {
    const m = state.map, s = m.summary;
    const bad = counts(s, grave), soft = counts(s, ['Malformed', 'Unknown', 'Suspect', 'Foreign']);
    const blind = !m.vantage.proven || m.witnesses.some((w) => w.required && w.state !== 'complete') || m.networks.some((n) => n.problem);
    const full = m.networks.filter((n) => n.capacity > 0 && n.free === 0 && !n.problem);
    let kind = 'good', say = 'Nothing is leaked', more = [];
    if (m.networks.length === 0) {
      kind = blind ? 'warn' : 'good';
      say = 'No network with reservations on this node';
      more.push('"holdfast doctor" says where it looked.');
    } else if (bad.length) {
      kind = 'bad';
      say = list(bad);
      const where = m.networks.map((n) => [clean(n.name), counts(n.verdicts, grave)]).filter(([, c]) => c.length);
      more.push(where.length === 1 ? `All in ${where[0][0]}.` : where.map(([n, c]) => `${n}: ${list(c)}`).join('; ') + (where.length ? '.' : ''));
      if (soft.length) more.push(`Also ${list(soft)}.`);
    } else if (soft.length || blind) {
      kind = 'warn';
      say = soft.length ? list(soft) : 'Not everything could be seen';
    }
    if (full.length) { if (kind === 'good') kind = 'warn'; more.push(`No address is free in ${list(full.map((n) => clean(n.name)))}.`); }
    const caused = {};
    for (const t of m.worst) if (t.cause && grave.includes(t.verdict)) { const k = t.blame ? `${t.cause} in ${clean(t.blame)}` : t.cause; caused[k] = (caused[k] || 0) + 1; }
    const causes = Object.entries(caused).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([k, n]) => `${k} (${n})`);
    if (causes.length) more.push(`What lost them: ${list(causes)}.`);
    if (m.released) more.push(`The last sweep released ${num(m.released)}.`);
    $('headline').className = 'headline ' + kind;
    put($('headline'), h('p', { class: 'say' }, say.charAt(0).toUpperCase() + say.slice(1)), more.length > 0 && h('p', { class: 'more' }, more.filter(Boolean).join(' ')));
    document.title = `${say} - ${clean(m.node)}`;
    $('node').textContent = clean(m.node);
  }

  function legend() {
    const total = {};
    let free = 0;
    for (const n of state.map.networks) {
      free += n.free;
      for (const [k, v] of Object.entries(n.verdicts)) total[k] = (total[k] || 0) + v;
    }
    const one = (name, n, title) => h('button', { type: 'button', 'aria-pressed': String(state.only === name), title, class: n ? '' : 'none', 'data-verdict': name, onclick: () => only(name) }, key(name), name === 'free' ? 'Free' : name, h('b', {}, num(n)));
    const buttons = verdicts.filter((v) => total[v[0]] || ['Leaked', 'Suspect', 'InUse'].includes(v[0])).map((v) => one(v[0], total[v[0]] || 0, v[2]));
    buttons.push(one('free', free, 'in a range and not reserved'));
    const had = document.activeElement?.dataset?.verdict;
    put($('legend'), ...buttons);
    $('legend').hidden = state.map.networks.length === 0;
    if (had && !$('legend').contains(document.activeElement)) $('legend').querySelector(`[data-verdict="${had}"]`)?.focus();
  }
  function only(name) {
    state.only = state.only === name ? '' : name;
    legend();
    for (const v of state.views.values()) v.update(v.net);
  }

  function trouble() {
    const m = state.map, rows = state.all ? m.worst : m.worst.slice(0, SHORT);
    const box = $('trouble');
    box.hidden = m.worst.length === 0;
    if (box.hidden) return put(box);
    const several = m.networks.length > 1;
    const row = (t) => h('tr', {},
      h('td', { class: 'addr' }, t.address
        ? h('button', { class: 'link mono', type: 'button', onclick: () => select(t.address, true) }, t.address)
        : h('span', {}, t.kind + ' ' + t.path.split('/').pop())),
      h('td', {}, pill(t.verdict)),
      several && h('td', {}, t.network || ''),
      h('td', {}, owner(t) || h('span', { class: 'dim' }, 'nobody')),
      h('td', { class: 'wide', title: clean(t.why) }, t.told || t.why),
      h('td', { class: 'since dim' }, t.absentSince ? ago(t.absentSince) : ''));
    const hiddenRows = m.worst.length - rows.length;
    put(box, 
      h('h2', {}, 'Needs attention'),
      h('table', { class: 'trouble' }, h('thead', {}, h('tr', {}, ['Address', 'Verdict', several && 'Network', 'Owner', 'Why', 'Absent for'].filter(Boolean).map((c) => h('th', { scope: 'col' }, c)))), h('tbody', {}, rows.map(row))),
      (hiddenRows > 0 || state.all) && m.worst.length > SHORT && h('p', { class: 'small' }, h('button', { class: 'plain', type: 'button', onclick: () => { state.all = !state.all; trouble(); } }, state.all ? 'Show fewer' : `Show ${num(hiddenRows)} more`)),
      m.more > 0 && h('p', { class: 'dim small' }, `And ${num(m.more)} more, which are on the map and in "holdfast audit".`));
  }

  function witnesses() {
    const m = state.map;
    $('witnesses').hidden = $('notes').hidden = false;
    put($('witnesses'), h('h2', {}, 'Witnesses'), h('div', { class: 'chips' }, m.witnesses.map((w) => {
      const ok = w.state === 'complete';
      return h('span', {}, h('b', { class: ok ? 'word alive' : w.required ? 'word absent' : 'dim' }, ok ? '✓ ' : w.required ? '✗ ' : '– '), h('b', {}, w.name), ` ${ok ? 'answered in ' + w.took : w.state}`, !ok && w.detail && h('span', { class: 'dim' }, ': ' + w.detail));
    })), h('p', { class: 'dim small' }, `The look took ${m.took}${m.trigger ? `; it was made because of: ${m.trigger}` : ''}.`));
    const notes = m.notes || [];
    $('notes').hidden = notes.length === 0;
    put($('notes'), h('h2', {}, 'Notes'), h('ul', {}, notes.slice(0, 20).map((n) => h('li', {}, h('code', {}, n.path), ': ' + n.text))), notes.length > 20 && h('p', { class: 'dim' }, `and ${notes.length - 20} more`));
  }

  // --- one network
  // rove lets the arrows walk through the buttons of box; one of them takes part in Tab.
  function rove(box, go) {
    box.addEventListener('keydown', (e) => {
      const all = [...box.children], i = all.indexOf(e.target.closest('button'));
      if (i < 0 || e.ctrlKey || e.altKey || e.metaKey) return;
      const width = getComputedStyle(box).gridTemplateColumns.split(' ').length;
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width, Home: -i, End: all.length - 1 - i }[e.key];
      if (step === undefined) return;
      e.preventDefault();
      const to = all[Math.min(all.length - 1, Math.max(0, i + step))];
      all.forEach((b) => { b.tabIndex = b === to ? 0 : -1; });
      to.focus();
      if (go) go(to);
    });
  }
  class View {
    constructor(net) {
      this.open = null; // key of the block that is drawn large
      this.title = h('div', { class: 'title' });
      this.bar = h('div', { class: 'bar', role: 'img' });
      this.count = h('p', { class: 'count' });
      this.tiles = h('div', { class: 'tiles', role: 'group', 'aria-label': 'Blocks of 256 addresses; arrows move, Enter opens' });
      this.what = h('div', { class: 'what' });
      this.cells = h('div', { class: 'cells', role: 'group' });
      this.zoom = h('div', { class: 'zoom' }, this.what, this.cells);
      this.extra = h('div');
      this.root = h('section', { class: 'net', 'aria-label': 'Network ' + clean(net.name) }, this.title, this.bar, this.count, this.tiles, this.zoom, this.extra);
      this.tileOf = new Map();
      rove(this.tiles);
      rove(this.cells);
      this.tiles.addEventListener('click', (e) => { const b = e.target.closest('button'); if (b) { this.open = b.dataset.key; this.draw(); } });
      this.cells.addEventListener('click', (e) => { const b = e.target.closest('button'); if (b) select(b.dataset.address); });
    }
    update(net) {
      this.net = net;
      const m = this.model = model(net);
      const tags = [];
      const left = net.capacity > 0 ? net.free / net.capacity : 1;
      if (net.problem) tags.push(['bad', 'could not be listed: ' + net.problem]);
      else if (net.capacity > 0 && net.free === 0) tags.push(['bad', 'full']);
      else if (left < .15) tags.push(['warn', 'low']);
      if (!net.writable && !net.problem) tags.push(['warn', 'read-only']);
      if (net.busy) tags.push(['warn', net.busy]);
      if (!(net.configs || []).length) tags.push(['warn', 'no configuration names it']);
      if ((state.map.stops || []).some((s) => s.dir === net.dir)) tags.push(['bad', 'releases stopped']);
      put(this.title, h('h2', {}, net.name), h('span', { class: 'dim small mono' }, (net.ranges || []).map((r) => `${r.first} to ${r.last}`).join(', ')), ...tags.map(([k, t]) => h('span', { class: 'tag ' + k }, t)));
      const names = verdicts.map((v) => v[0]);
      const parts = counts(net.verdicts, names);
      if (net.capacity > 0 && !net.problem) parts.push(`${num(net.free)} free of ${num(net.capacity)}${left < .3 ? ` (${Math.round(left * 100)} %)` : ''}`);
      put(this.count, h('span', {}, list(parts) || 'Nothing is reserved'), h('span', { class: 'dim small mono' }, '  ' + net.dir));
      const total = Math.max(net.capacity || 0, net.reserved, 1);
      this.bar.setAttribute('aria-label', list(parts));
      this.bar.hidden = net.capacity === 0;
      put(this.bar, ...names.filter((n) => net.verdicts[n] && n !== 'Missing').map((n) => { const s = paint(h('span', { title: `${num(net.verdicts[n])} ${human[n]}` }), n); s.style.width = 100 * net.verdicts[n] / total + '%'; return s; }));
      if (!m.blocks.some((b) => b.key === this.open)) this.open = [...m.blocks].sort((a, b) => a.worst - b.worst)[0]?.key ?? null;
      this.draw();
    }
    draw() {
      const m = this.model;
      this.drawTiles(m.blocks.length > 1 ? m.blocks : []);
      const b = m.blocks.find((b) => b.key === this.open);
      this.zoom.hidden = !b;
      if (b) this.drawCells(b, m.blocks.length > 1);
      else { this.shape = ''; put(this.cells); }
      const extra = [];
      if (m.hidden > 0n) extra.push(h('p', { class: 'dim small' }, `${m.hidden.toLocaleString('en')} more addresses are free and not drawn.`));
      if (m.more) extra.push(h('p', { class: 'dim small' }, `${num(m.more)} more blocks of 256 addresses are not drawn.`));
      if (m.outside.length) {
        extra.push(h('h3', {}, 'Reserved outside of every range'), h('div', { class: 'spots' }, m.outside.slice(0, 200).map((o) => {
          const s = paint(h('button', { type: 'button', 'data-address': o.text, onclick: () => select(o.text) }, `${verdicts.find((v) => v[0] === o.name)?.[1] || '?'} ${o.text}`), code.has(o.name) ? o.name : 'Unknown');
          if (state.only && state.only !== o.name) s.classList.add('faded');
          return s;
        })), m.outside.length > 200 && h('p', { class: 'dim small' }, `and ${num(m.outside.length - 200)} more`));
      }
      put(this.extra, ...extra);
    }
    drawTiles(blocks) {
      this.tiles.hidden = blocks.length === 0;
      const keys = new Set(blocks.map((b) => b.key));
      for (const [k, t] of this.tileOf) if (!keys.has(k)) { t.root.remove(); this.tileOf.delete(k); }
      const rgb = palette();
      // Of many small tiles only what differs is written.
      const many = blocks.length > 32;
      this.tiles.classList.toggle('many', many);
      const v4 = blocks.every((b) => b.bits === 32 && b.base >> 8n === blocks[0].base >> 8n);
      const short = (text) => many && v4 ? '.' + text.split('.').slice(2).join('.') : text;
      let before = null;
      for (const b of blocks) {
        let t = this.tileOf.get(b.key);
        if (!t) {
          const canvas = h('canvas', { width: 16, height: 16, 'aria-hidden': 'true' });
          const label = h('span', {}, short(show(b.base << 8n, b.bits)));
          const badge = h('span', { class: 'badge', 'aria-hidden': 'true' });
          t = { canvas, badge, root: h('button', { class: 'tile', type: 'button', 'data-key': b.key }, canvas, label, badge) };
          this.tileOf.set(b.key, t);
          if (before) before.after(t.root); else this.tiles.prepend(t.root);
        }
        before = t.root;
        const g = t.canvas.getContext('2d'), img = g.createImageData(16, 16);
        const px = new Uint32Array(img.data.buffer);
        const want = state.only === '' ? -1 : state.only === 'free' ? FREE : code.get(state.only);
        for (let i = 0; i < BLOCK; i++) px[i] = want < 0 || b.cells[i] === want ? rgb[b.cells[i]] : rgb[b.cells[i] === OUT ? OUT : FREE];
        g.putImageData(img, 0, 0);
        const bad = grave.reduce((n, v) => n + b.counts[code.get(v)], 0);
        t.root.classList.toggle('has', bad > 0);
        t.root.classList.toggle('faded', want >= 0 && b.counts[want] === 0);
        t.badge.hidden = bad === 0;
        if (bad > 0) { t.badge.textContent = letter(b.worst) + bad; paint(t.badge, nameOf(b.worst)); }
        t.root.setAttribute('aria-pressed', String(b.key === this.open));
        t.root.tabIndex = b.key === this.open ? 0 : -1;
        const parts = b.counts.map((n, c) => n > 0 && c !== OUT ? `${n} ${c === FREE ? 'free' : human[nameOf(c)]}` : '').filter(Boolean).reverse();
        t.root.setAttribute('aria-label', `${show(b.base << 8n, b.bits)}: ${parts.join(', ')}`);
        t.root.title = t.root.getAttribute('aria-label');
      }
    }
    drawCells(b, titled) {
      // Rows of 32 that hold nothing of the range are left out, at both ends.
      let from = 0, to = BLOCK;
      while (from + 32 < to && b.cells.subarray(from, from + 32).every((c) => c === OUT)) from += 32;
      while (to - 32 > from && b.cells.subarray(to - 32, to).every((c) => c === OUT)) to -= 32;
      const shape = b.key + ':' + from + ':' + to;
      if (this.shape !== shape) {
        this.shape = shape;
        this.from = from;
        this.cells.setAttribute('aria-label', 'Addresses from ' + show((b.base << 8n) + BigInt(from), b.bits) + '; arrows move, Enter explains');
        put(this.cells, ...Array.from({ length: to - from }, (_, i) => {
          const v = (b.base << 8n) + BigInt(from + i);
          return h('button', { class: 'cell', type: 'button', tabindex: -1, 'data-address': show(v, b.bits) }, h('b'), h('span', {}, b.bits === 32 ? String(from + i) : (v & 0xffffn).toString(16)));
        }));
      }
      this.what.hidden = !titled;
      put(this.what, h('h3', {}, titled ? show(b.base << 8n, b.bits) + (b.bits === 32 ? '/24' : '/120') : ''));
      let tab = null;
      [...this.cells.children].forEach((e, i) => {
        const c = b.cells[from + i], gw = b.gateway === from + i, name = nameOf(c);
        const word = gw && c <= FREE ? 'gateway' : name;
        e.className = 'cell ' + (c === OUT ? 'out' : c === FREE ? 'free' : name);
        paint(e, c <= FREE ? 'free' : name);
        if (c === OUT) e.style.color = '';
        e.firstChild.textContent = gw && c <= FREE ? 'G' : letter(c);
        e.classList.toggle('faded', state.only !== '' && state.only !== name);
        e.setAttribute('aria-label', `${e.dataset.address}, ${word}`);
        e.title = `${e.dataset.address} ${word}`;
        const current = e.dataset.address === state.selected;
        e.setAttribute('aria-current', String(current));
        if (e === document.activeElement || current && !tab) tab = e;
        e.tabIndex = -1;
      });
      if (!tab) tab = [...this.cells.children].find((e, i) => b.cells[from + i] === b.worst) || this.cells.firstChild;
      tab.tabIndex = 0;
    }
    // reveal opens the block of an address, if it is drawn here.
    reveal(a, focus) {
      const k = a.bits + '/' + (a.v >> 8n);
      if (!this.model.blocks.some((b) => b.key === k)) return false;
      this.open = k;
      this.draw();
      const cell = this.cells.children[Number(a.v & 255n) - this.from];
      if (cell && focus) { cell.scrollIntoView({ block: 'center' }); cell.focus({ preventScroll: true }); }
      return true;
    }
  }
  // palette gives the colours of the cells as pixels.
  function palette() {
    const css = getComputedStyle(document.documentElement);
    const probe = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    return ['', 'free', ...verdicts.map((v) => v[0])].map((n) => {
      if (n === '') return 0;
      probe.fillStyle = css.getPropertyValue('--v-' + n).trim();
      probe.fillRect(0, 0, 1, 1);
      return new Uint32Array(probe.getImageData(0, 0, 1, 1).data.buffer)[0];
    });
  }

  function networks() {
    const seen = new Set();
    // Where it leaks most comes first.
    const rank = (n) => { const i = verdicts.findIndex((v) => n.verdicts[v[0]] && v[0] !== 'InUse' && v[0] !== 'Held'); return i < 0 ? 99 : i; };
    const order = [...state.map.networks].sort((a, b) => rank(a) - rank(b));
    let before = null;
    for (const n of order) {
      seen.add(n.dir);
      let v = state.views.get(n.dir);
      if (!v) state.views.set(n.dir, v = new View(n));
      if (!v.root.isConnected) { if (before) before.after(v.root); else $('networks').prepend(v.root); }
      before = v.root;
      v.update(n);
    }
    for (const [dir, v] of state.views) if (!seen.has(dir)) { v.root.remove(); state.views.delete(dir); }
  }

  function setMap(map) {
    state.map = map;
    headline(); legend(); trouble(); networks(); witnesses(); header();
    if (state.query) refresh();
  }

  // --- the explanation
  function select(address, focus) {
    const a = parse(address);
    const same = a ? show(a.v, a.bits) : address;
    state.selected = same;
    if (a) for (const v of state.views.values()) v.reveal(a, focus);
    for (const v of state.views.values()) v.draw();
    const hash = '#' + encodeURIComponent(same);
    if (location.hash !== hash) history.replaceState(null, '', hash);
    ask({ address: same }, same);
  }
  async function ask(q, title) {
    state.query = { q, title };
    const box = $('detail');
    box.hidden = false;
    put(box, headOf(title), h('p', { class: 'dim', role: 'status' }, 'Asking every witness'));
    await refresh();
  }
  async function refresh() {
    const asked = state.query;
    const doc = await explain(asked.q);
    if (state.query !== asked) return; // another was asked for meanwhile
    if (doc.retry && asked.shown) { asked.stale = doc.error; } else { asked.shown = doc; asked.stale = ''; }
    drawDetail(asked);
  }
  function headOf(title, name) {
    return h('div', { class: 'head' }, h('h2', {}, title), name && pill(name), h('button', { class: 'plain close', type: 'button', onclick: close, 'aria-label': 'Close the explanation' }, 'Close'));
  }
  function drawDetail(asked) {
    const box = $('detail'), doc = asked.shown, top = box.scrollTop, inside = box.contains(document.activeElement);
    const parts = [];
    if (asked.stale) parts.push(banner('warn', 'This may be old', asked.stale));
    if (!doc.resources) {
      parts.push(headOf(asked.title, doc.past ? 'Free' : ''), h('p', { class: 'why' }, doc.error), ...history_(doc.past));
    } else {
      doc.resources.slice(0, 50).forEach((r, i) => {
        if (i) parts.push(h('hr'));
        parts.push(...item(r, i === 0));
      });
      if (doc.resources.length > 50) parts.push(h('p', { class: 'dim' }, `and ${doc.resources.length - 50} more`));
    }
    if (!isStatic && doc.at) parts.push(h('p', { class: 'dim small' }, `Every witness was asked at ${stamp(doc.at)}.`));
    put(box, ...parts);
    box.scrollTop = top;
    if (inside) box.querySelector('.close')?.focus();
  }
  function item(r, first) {
    const rows = [];
    const row = (k, v, mono) => { if (v) rows.push(h('dt', {}, k), h('dd', { class: mono ? 'mono' : '' }, v)); };
    row('Pod', pod(r.pod));
    row('Container', r.containerID, true);
    row('Interface', r.ifName, true);
    row('Network', r.network);
    row('Kept in', r.path, true);
    row('Held by', r.holder, true);
    if (r.stamp) row('Stamp', r.stamp.age ? `made by holdfast-ipam ${r.stamp.age} before, in this boot` : 'made by holdfast-ipam in another boot');
    if (r.firstSeen) row('First seen', when(r.firstSeen));
    if (r.absentSince) row('Absent since', when(r.absentSince));
    const t = state.map?.worst.find((t) => t.path === r.path);
    if (t?.told || t?.cause) row('What lost it', t.told || t.cause);
    row('Releasable', due(r));
    const title = r.address || `${r.kind} ${r.path.split('/').pop()}`;
    return [
      first ? headOf(title, r.verdict) : h('div', { class: 'head' }, h('h2', {}, title), pill(r.verdict)),
      h('p', { class: 'why' }, r.why.charAt(0).toUpperCase() + r.why.slice(1) + '.'),
      h('p', { class: 'dim small' }, 'rule ', h('code', {}, r.rule)),
      h('dl', {}, rows),
      (r.says || []).length > 0 && h('h3', {}, 'What the witnesses said'),
      (r.says || []).length > 0 && h('table', {}, h('tbody', {}, r.says.map((s) => h('tr', {}, h('th', { scope: 'row' }, s.witness), h('td', { class: 'word ' + s.word }, s.word), h('td', {}, s.detail))))),
      (r.plan || []).length > 0 && h('h3', {}, 'What a release would do'),
      (r.plan || []).length > 0 && h('ol', {}, r.plan.map((p) => h('li', {}, h('b', {}, p.step), ' ', h('code', {}, p.object), h('span', { class: 'dim' }, ` (${p.inverse})`)))),
      ...history_(r.releases),
    ].filter(Boolean);
  }
  function history_(entries) {
    if (!entries || entries.length === 0) return [];
    return [h('h3', {}, 'Releases of this address'), h('ol', {}, [...entries].reverse().map((e) => h('li', {}, h('b', {}, e.state), ` ${when(e.at)}`, (e.pod || e.containerID) && h('div', {}, 'of ' + owner(e)), e.why && h('div', { class: 'dim' }, e.why), h('div', { class: 'dim small' }, h('code', {}, e.releaseID), e.undoable ? `: "holdfast undo ${e.releaseID}" takes it back` : ''))))];
  }
  function close() {
    const was = state.selected;
    state.query = state.selected = null;
    $('detail').hidden = true;
    history.replaceState(null, '', location.pathname + location.search);
    for (const v of state.views.values()) v.draw();
    document.querySelector(`.cell[data-address="${CSS.escape(was || '')}"]`)?.focus();
  }

  // --- what people do
  function find(text) {
    const q = text.trim();
    if (q === '') return;
    if (parse(q)) select(q, true);
    else if (q.includes('/')) found({ pod: q }, q);
    else found({ container: q }, q);
  }
  async function found(q, title) {
    await ask(q, title);
    const at = state.query?.shown?.resources?.find((r) => r.address)?.address, a = at && parse(at);
    if (!a) return;
    state.selected = show(a.v, a.bits);
    for (const v of state.views.values()) if (!v.reveal(a)) v.draw();
  }
  $('search').addEventListener('submit', (e) => { e.preventDefault(); find($('query').value); });
  document.addEventListener('keydown', (e) => {
    if (e.key === 'Escape' && state.query) close();
    if (e.key === '/' && !/INPUT|TEXTAREA/.test(document.activeElement?.tagName || '')) { e.preventDefault(); $('query').focus(); }
  });
  const fromHash = () => { let q = ''; try { q = decodeURIComponent(location.hash.slice(1)); } catch { /* not ours */ } if (q && q !== state.selected) find(q); };
  addEventListener('hashchange', fromHash);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { for (const v of state.views.values()) v.draw(); });

  async function embedded() {
    const bytes = Uint8Array.from(atob($('data').textContent.trim()), (c) => c.charCodeAt(0));
    const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
    return JSON.parse(text);
  }
  (async () => {
    if (isStatic) {
      document.body.classList.add('static');
      try {
        const d = await embedded();
        state.items = d.items;
        state.journal = d.journal;
        setMap(d.map);
        fromHash();
      } catch (e) {
        put($('headline'), banner('bad', 'The data in this file cannot be read', String(e && e.message || e)));
      }
      return;
    }
    await poll();
    if (state.map) fromHash();
    let last = Date.now(), timer = 0;
    const again = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        const had = state.map;
        await poll();
        if (!had && state.map) fromHash();
        if (state.query && !state.since && Date.now() - last > LIVE) { last = Date.now(); refresh(); }
      }
      clearTimeout(timer);
      timer = setTimeout(again, POLL);
    };
    timer = setTimeout(again, POLL);
    document.addEventListener('visibilitychange', again); // who comes back sees what is so now
    setInterval(() => { if (state.map || state.since) header(); }, 1000);
  })();
})();
