package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/agent/web/page"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
)

// Source is where answers come from that are not in the Map.
type Source interface {
	// Fresh looks at the node now. It records and releases nothing.
	Fresh(ctx context.Context) (*sweep.Audit, error)
	// Journal is every release, oldest first.
	Journal(ctx context.Context) (*api.Journal, error)
}

// Health says whether the agent is well, and why not.
type Health interface {
	Live(now claim.Instant) (ok bool, why string)
	Ready() (ok bool, why []string)
}

// Config is what the port shows. Everything but Metrics, Pprof and Names is required.
type Config struct {
	Node    string
	Version string
	Source  Source
	Map     *Map
	Health  Health
	Clock   func() claim.Instant
	// Metrics serves /metrics.
	Metrics http.Handler
	// Pprof serves /debug/pprof/, which shows the program's own memory.
	Pprof bool
	// Names are host names under which the port may be asked, beside localhost and
	// addresses.
	Names []string
	// LookTime is how long an answer waits for a look at the node; 0 is 15 s.
	LookTime time.Duration
}

const (
	prefix = "/api/" + "v1alpha1/"
	// maxQuery bounds one parameter, maxEntries the journal in one answer.
	maxQuery   = 512
	maxEntries = 10_000
	// maxAudits is how many whole audits are written at once: each holds its look.
	maxAudits = 2
)

type server struct {
	Config
	looks  looks
	audits chan struct{}
}

// New makes the port's handler. It is for one agent and safe for concurrent use.
func New(c Config) http.Handler {
	if c.LookTime == 0 {
		c.LookTime = 15 * time.Second
	}
	s := &server{Config: c, looks: looks{fresh: c.Source.Fresh, most: c.LookTime}, audits: make(chan struct{}, maxAudits)}
	mux := http.NewServeMux()
	live := page.Live()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", live.Policy)
		_, _ = w.Write(live.HTML)
	})
	mux.HandleFunc("/healthz", probe(s.live))
	mux.HandleFunc("/readyz", probe(c.Health.Ready))
	mux.HandleFunc(prefix+"map", s.serveMap)
	mux.HandleFunc(prefix+"status", s.serveStatus)
	mux.HandleFunc(prefix+"audit", s.serveAudit)
	mux.HandleFunc(prefix+"explain", s.serveExplain)
	mux.HandleFunc(prefix+"journal", s.serveJournal)
	if c.Metrics != nil {
		mux.Handle("/metrics", c.Metrics)
	}
	if c.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
		// Not cmdline: nobody needs it who may not log in.
		mux.HandleFunc("/debug/pprof/cmdline", http.NotFound)
	}
	return guard(mux, c.Names)
}

// guard lets only readers through, and only those who know whom they ask: a page of
// another site, whose name resolves to this address (DNS rebinding), names that site.
func guard(next http.Handler, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this port only reads: GET or HEAD", http.StatusMethodNotAllowed)
		case !knownHost(r.Host, names):
			http.Error(w, "this is not the host that was asked for: use localhost, an address, or a name that the agent's configuration allows", http.StatusMisdirectedRequest)
		case r.URL.Path != "/" && r.Header.Get("Sec-Fetch-Site") == "cross-site":
			// It could not read the answer, and shall not cause the work either.
			http.Error(w, "another site's page has no business here", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// knownHost reports whether a Host header names this port: localhost, an address, or one
// of names, with any port.
func knownHost(host string, names []string) bool {
	if _, err := netip.ParseAddrPort(host); err == nil {
		return true
	}
	if _, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil {
		return true
	}
	u := url.URL{Host: host}
	name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	same := func(n string) bool { return strings.ToLower(strings.TrimSuffix(n, ".")) == name }
	return name != "" && (name == "localhost" || slices.ContainsFunc(names, same))
}

func (s *server) live() (bool, []string) {
	ok, why := s.Health.Live(s.Clock())
	if why == "" {
		return ok, nil
	}
	return ok, []string{why}
}

// probe answers a health check with its reasons.
func probe(ask func() (bool, []string)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		ok, reasons := ask()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		text := "ok\n"
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			text = "not ok\n"
		}
		var b strings.Builder
		b.WriteString(text)
		for _, r := range reasons {
			b.WriteString(report.Clean(r) + "\n")
		}
		_, _ = w.Write([]byte(b.String()))
	}
}

// serveMap answers 304 when the asker has the latest one, which is nearly always.
func (s *server) serveMap(w http.ResponseWriter, r *http.Request) {
	d := s.Map.latest()
	if d == nil {
		retry(w, "no sweep was made yet")
		return
	}
	w.Header().Set("ETag", d.tag)
	for tag := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(tag), "W/") == d.tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(d.body)))
	_, _ = w.Write(d.body)
}

func (s *server) serveStatus(w http.ResponseWriter, _ *http.Request) {
	doc := api.Status{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindStatus}, Node: s.Node, Version: s.Version}
	condition := func(ok bool, reasons []string) api.Condition {
		return api.Condition{OK: ok, Reasons: append([]string{}, reasons...)}
	}
	doc.Live, doc.Ready = condition(s.live()), condition(s.Health.Ready())
	if d := s.Map.latest(); d != nil {
		m := d.decode()
		for i := range m.Networks {
			m.Networks[i].Addresses = nil
		}
		doc.Seen = &m.Seen
	}
	answer(w, http.StatusOK, doc)
}

// serveAudit looks anew and writes what it saw an element at a time: a full node's is
// large. It is the document of `holdfast audit -o json` without the evidence.
func (s *server) serveAudit(w http.ResponseWriter, r *http.Request) {
	select {
	case s.audits <- struct{}{}:
		defer func() { <-s.audits }()
	default:
		retry(w, "others are being answered")
		return
	}
	au, ok := s.look(w, r)
	if !ok {
		return
	}
	found := report.Sorted(au.Judgement, nil)
	head := report.Head(&au.Case, au.Judgement, report.Meta{Node: s.Node, Took: au.Took})
	head.Evidence, head.Summary = nil, report.Summary(found)
	b, err := json.Marshal(head)
	if err != nil {
		failed(w, http.StatusInternalServerError, "the audit cannot be written: "+err.Error())
		return
	}
	// Inside of a string the quotes would be escaped.
	const list = `"resources":[`
	before, behind, _ := strings.Cut(string(b), list)
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodHead {
		return
	}
	_, err = w.Write([]byte(before + list))
	e := json.NewEncoder(w)
	for i, f := range found {
		if i > 0 && err == nil {
			_, err = w.Write([]byte{','})
		}
		if err == nil {
			err = e.Encode(report.Resource(f, au.Case.Now))
		}
		if err != nil {
			// Half an answer must not look like a whole one.
			panic(http.ErrAbortHandler)
		}
	}
	_, _ = w.Write([]byte(behind + "\n"))
}

func (s *server) serveExplain(w http.ResponseWriter, r *http.Request) {
	query, err := queryOf(r.URL.Query())
	if err != nil {
		failed(w, http.StatusBadRequest, err.Error())
		return
	}
	au, ok := s.look(w, r)
	if !ok {
		return
	}
	// Without the journal the rest is still true; that it cannot be read is told by /readyz.
	var entries []api.JournalEntry
	if j, err := s.Source.Journal(r.Context()); err == nil {
		entries = j.Entries
	}
	doc, err := report.Explanation(&au.Case, au.Judgement, entries, report.Meta{Node: s.Node, Took: au.Took}, query)
	switch {
	case errors.Is(err, report.ErrNothing):
		failed(w, http.StatusNotFound, err.Error())
	case err != nil:
		failed(w, http.StatusBadRequest, err.Error())
	default:
		answer(w, http.StatusOK, doc)
	}
}

// queryOf is what to explain: exactly one of address, container and pod.
func queryOf(v url.Values) (string, error) {
	var kind, query string
	for _, k := range []string{"address", "container", "pod"} {
		switch {
		case !v.Has(k):
		case kind != "" || len(v[k]) != 1:
			return "", errors.New("want one of address, container and pod, once")
		default:
			kind, query = k, v.Get(k)
		}
	}
	if query == "" {
		return "", errors.New("want address=ADDRESS, container=ID or pod=NAMESPACE/NAME")
	}
	if len(query) > maxQuery {
		return "", fmt.Errorf("%s: longer than %d bytes", kind, maxQuery)
	}
	_, notAddress := netip.ParseAddr(query)
	slash := strings.Contains(query, "/")
	switch {
	case kind == "address" && notAddress != nil:
		return "", fmt.Errorf("address=%q: no address", query)
	case kind == "pod" && !slash:
		return "", fmt.Errorf("pod=%q: want NAMESPACE/NAME", query)
	case kind == "container" && (slash || notAddress == nil):
		return "", fmt.Errorf("container=%q: no container ID", query)
	}
	return query, nil
}

// serveJournal answers the newest releases, oldest of them first: of one address if
// address is given, at most limit.
func (s *server) serveJournal(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	limit := maxEntries
	if v.Has("limit") {
		n, err := strconv.Atoi(v.Get("limit"))
		if err != nil || n < 1 || n > maxEntries {
			failed(w, http.StatusBadRequest, fmt.Sprintf("limit=%q: want 1 to %d", v.Get("limit"), maxEntries))
			return
		}
		limit = n
	}
	addr := ""
	if v.Has("address") {
		a, err := netip.ParseAddr(v.Get("address"))
		if err != nil {
			failed(w, http.StatusBadRequest, fmt.Sprintf("address=%q: no address", v.Get("address")))
			return
		}
		addr = a.Unmap().String()
	}
	j, err := s.Source.Journal(r.Context())
	if err != nil {
		failed(w, http.StatusInternalServerError, "the journal cannot be read: "+err.Error())
		return
	}
	doc := *j
	doc.Entries = []api.JournalEntry{}
	for _, e := range slices.Backward(j.Entries) {
		if len(doc.Entries) == limit {
			break
		}
		if addr == "" || e.Address == addr {
			doc.Entries = append(doc.Entries, e)
		}
	}
	slices.Reverse(doc.Entries)
	answer(w, http.StatusOK, doc)
}

// look gets a look at the node, or answers why there is none.
func (s *server) look(w http.ResponseWriter, r *http.Request) (*sweep.Audit, bool) {
	au, err := s.looks.get(r.Context())
	if err != nil {
		retry(w, "the node could not be looked at: "+err.Error())
		return nil, false
	}
	return au, true
}

// retry says that another time it may work.
func retry(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "2")
	failed(w, http.StatusServiceUnavailable, why)
}

func failed(w http.ResponseWriter, code int, why string) {
	answer(w, code, map[string]string{"error": why})
}

func answer(w http.ResponseWriter, code int, doc any) {
	b, err := json.Marshal(doc)
	if err != nil {
		code, b = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n'))
}
