package main

const (
	lineFile  = "internal/line/line.go"
	watchFile = "internal/line/watch.go"
	rateFile  = "internal/plan/rate.go"
	stopsFile = "internal/sys/state/stops.go"
)

// lineMutations are those of what only an agent has: the rate, and the stopped line.
func lineMutations() []mutation {
	watch := func(what, before, after string) mutation {
		return one("9, line", what, watchFile, before, after).by("line", "TestWatchTable").blind()
	}
	next := func(what, before, after string) mutation {
		return one("9, line", what, lineFile, before, after).by("line", "TestNextTable").blind()
	}
	rate := func(what, before, after string) mutation {
		return one("9, rate", what, rateFile, before, after).by("plan", "TestRateRefill|TestRateBound").blind()
	}
	return []mutation{
		watch("a process of what was released is no contradiction", "if pid, ok := s.procs[id]; ok {", "if pid, ok := s.procs[id]; ok && pid < 0 {"),
		watch("a late DEL is a sign of life", `if h.Via == "cgroup" {`, "if true {"),
		watch("its sandbox is no contradiction", "if at, ok := s.ready[id]; ok {", `if at, ok := s.ready[id]; ok && at == "" {`),
		watch("what is NotReady is a sign of life", "			if b.Ready {\n", "			if true {\n"),
		watch("its address in use is no contradiction", "held := s.held(r)", "held := false"),
		watch("a namespace of another is a sign of life", "t := s.tenants[n]", "t := s.tenants[n][:0]"),
		watch("an idle namespace is a sign of life", "case n.Host || !n.Used():", "case n.Host:"),
		watch("an address of the host is a sign of life", "case n.Host || !n.Used():", "case !n.Used():"),
		watch("a container that was added again is a contradiction", "return !known || ok && d > 0", "return !known && ok && d > 0"),
		watch("any reservation of the owner was made again", "return !known || ok && d > 0", "return !known || ok || d >= 0"),
		watch("an address that was handed on is a contradiction", "case held && !s.reserved(r):", "case held:"),
		watch("the listing of before the witnesses is enough", "case s.later == nil:", "case s.later == nil && s.c.Relisted == nil:"),
		watch("what came since the listing does not count", "	return s.later != nil && any(s.later)\n", "	return false\n"),
		watch("a witness that is silent is heard", `if _, refused := j.Reasons[t.Witness]; refused || t.State != claim.StateComplete {`, `if _, refused := j.Reasons[t.Witness]; refused && false {`),
		watch("a duplicate is nothing", `f.Rule == "held-twice"`, `f.Rule == "held-thrice"`),
		watch("what a dead container left beside a living one is a duplicate", "if n.Host || ready {", "if n.Host || ready || true {"),
		watch("an idle namespace of a Ready sandbox is no duplicate", "if n.Host || ready {", "if n.Host || ready && n.Host {"),
		watch("the host's address is no duplicate", "if n.Host || ready {", "if ready {"),
		watch("two that have each reserved an address are a duplicate", "return len(holders) > 1 && len(by) < len(holders)", "return len(holders) > 1"),
		watch("two that have each reserved something are no duplicate", `return o.Addr == addr && o.Problem == ""`, `return o.Problem == ""`),
		watch("releases of another boot and of long ago count", "if d, ok := c.Now.Since(r.At); !ok || d > Remembered {", "if d, ok := c.Now.Since(r.At); !ok && d > Remembered {"),
		one("6", "a second listing of before the details is enough", sweepFile, "	if need.Relist {\n", "	if need.Relist && a.Case.Relisted == nil {\n").by("sweep", "TestLateWitness").blind(),
		next("a stop is over at once", "case passed >= Clean:", "case passed >= 0:"),
		next("a stop is never over", "case passed >= Clean:", "case passed < 0:"),
		next("a contradiction does not begin the hour again", "s.Since, s.ReleaseIDs = now, join(s.ReleaseIDs, f.ReleaseIDs)", "s.ReleaseIDs = join(s.ReleaseIDs, f.ReleaseIDs)"),
		next("a stop outlives its boot", "case s.Since.Boot != now.Boot:", "case false:"),
		next("a clock that cannot be read ends a stop", `case store == "" || now.Boot == "":`, `case store == "":`),
		next("the stop of every network ends by itself", `case store == "" || now.Boot == "":`, `case now.Boot == "":`),
		rate("the bucket never fills", "passed, next.at = d, now", "passed, next.at = min(d, 0), now"),
		rate("another boot's time fills it", "	} else if r.at.Boot == \"\" {\n", "	} else {\n"),
		rate("the bucket fills twice as fast", "next.owed[store] = owed - passed*c", "next.owed[store] = max(0, owed-2*passed*c)"),
		rate("what was released is not owed", "next.owed[store] += min(time.Duration(n), maxOwed) * RateWindow", "_ = n"),
		one("9, line", "a damaged list of stops is none", stopsFile, "return errors.Join(d.stopAll(all, corrupt), corrupt)", "return d.aside(stopsFile, corrupt)").by("sys/state", "TestDamagedStops|TestStopsEndAtEveryCall").blind(),
		one("9, line", "a list of stops of a newer version is none", stopsFile, "	return []line.Stop{all}, err\n", "	return nil, err\n").by("sys/state", "TestDamagedStops|TestStopsOfANewerVersion").blind(),
	}
}
