package main

const (
	adoptFile  = "internal/verdict/adopt.go"
	readopt    = "internal/sweep/adopt.go"
	makerFile  = "internal/sys/hostlocal/adopt.go"
	adoptTests = "TestAdoptable"
)

// adoptMutations are those of what makes a reservation again.
func adoptMutations() []mutation {
	return []mutation{
		one("I14", "nobody need be Ready to be adopted", adoptFile, "	case !ready:\n", "	case false:\n").by("verdict", adoptTests).blind(),
		one("I14", "two namespaces may hold what is adopted", adoptFile, "if len(holders) != 1 {", "if len(holders) == 0 {").by("verdict", adoptTests).blind(),
		one("I14", "a namespace without processes is alive enough to be adopted", adoptFile, "	case !s.used(n):\n", "	case false:\n").by("verdict", adoptTests).blind(),
		one("I14", "anybody's namespace is the attachment's", adoptFile, "	case !slices.ContainsFunc(s.tenants[n.ID], func(id string) bool { return slices.Contains(ids, id) }):\n", "	case false:\n").by("verdict", adoptTests).blind(),
		one("I14", "any interface is the attachment's", adoptFile, "	case !slices.ContainsFunc(n.Addrs, func(a claim.IfAddr) bool { return plain(a.Addr) == r.Addr && a.If == r.Owner.IfName }):\n", "	case false:\n").by("verdict", adoptTests).blind(),
		one("I14", "who is said to have the address too does not matter", adoptFile, `if other, _ := s.claimedBy(r.Addr, ids); other != "" {`, `if other, _ := s.claimedBy(r.Addr, ids); other == "none" {`).by("verdict", adoptTests).blind(),
		one("I14", "no cached result need name it", adoptFile, `return "no cached result says whose it is"`, `return ""`).by("verdict", adoptTests).blind(),
		one("I14", "what is held is adopted", adoptFile, `if why := s.c.Policy.held(r); why != "" {`, `if why := s.c.Policy.held(r); false {`).by("verdict", adoptTests).blind(),
		one("I14", "adopted without vantage", adoptFile, "if ok, why := s.mayConvict(); !ok {", "if ok, why := s.mayConvict(); false && !ok {").by("verdict", adoptTests).blind(),
		one("I14", "adopted while a witness is silent", adoptFile, `if why := s.firstSilent(claim.WitnessKube); why != "" {`, `if why := s.firstSilent(claim.WitnessKube); false {`).by("verdict", adoptTests).blind(),
		one("I14", "adopted while a plugin is at work for it", adoptFile, `if h.Via == "cni" {`, `if h.Via == "none" {`).by("verdict", adoptTests).blind(),
		one("I14", "no live re-check before an adoption", readopt, "return verdict.Readopt(&c, list), nil", "return make([]string, len(list)), nil").by("sweep", "TestAdoptIsConfirmed").blind(),
		one("I14, I3", "no intent of an adoption", readopt, "if err := r.e.Journal.Append(intents...); err != nil {", "if err := error(nil); err != nil {").by("sweep", "TestAdopt").blind(),
		one("I14, I4", "an adoption that a crash left open failed", readopt, "if err == nil && stands {", "if err == nil && stands && rec.Sweep == \"none\" {").by("sweep", "TestAdoptKilledAnywhere").blind(),
		one("I14", "what was taken back is adopted again", readopt, "added, err := e.Holds.Hold(hold, en.ID)", "added, err := false, error(nil)").by("sweep", "TestUndoAdoption").blind(),
		one("I14", "a lock that came late is good enough to adopt", makerFile, "if fresh != nil && !fresh() {", "if false {").by("sys/hostlocal", "TestAdoptStale").blind(),
		one("I14", "a draft is not fsynced before it has its name", makerFile, "		err = r.fs.Fsync(d.fd)\n", "").by("sys/hostlocal", "TestAdoptEndsAtEveryCall").blind(),
		one("I14", "the name of what was adopted is not fsynced", makerFile, "if err := r.fs.syncErr(r.fd, r.dir); err != nil {", "if err := error(nil); err != nil {").by("sys/hostlocal", "TestAdoptEndsAtEveryCall").blind(),
	}
}
