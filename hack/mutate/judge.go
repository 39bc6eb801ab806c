package main

const (
	judgeFile  = "internal/verdict/judge.go"
	sceneFile  = "internal/verdict/scene.go"
	wordsFile  = "internal/verdict/words.go"
	groupFile  = "internal/verdict/group.go"
	policyFile = "internal/verdict/policy.go"
	pressFile  = "internal/verdict/pressure.go"
)

// judgeMutations are those of the pure core.
func judgeMutations() []mutation {
	return []mutation{
		// Gate 1, I6.
		one("1, I6", "witnesses asked before the listing count", sceneFile, "if t.Asked.Mono < l.Mono {", "if false {").
			and("internal/sweep/sweep.go", "	a.answers = ask(ctx, e.Witnesses, e.beside(), false, func(int) bool { return true })\n", "").
			and("internal/sweep/sweep.go", "	a.Case.Snapshots = e.list(ctx)\n", "	a.answers = ask(ctx, e.Witnesses, e.beside(), false, func(int) bool { return true })\n	a.Case.Snapshots = e.list(ctx)\n").by("sweep", "TestRelistIsHostLocals|TestLookRounds"),
		one("1, I6; 3", "witnesses asked before the listing count, and nobody asks again", sceneFile, "if t.Asked.Mono < l.Mono {", "if false {").
			and("internal/sweep/sweep.go", "	a.answers = ask(ctx, e.Witnesses, e.beside(), false, func(int) bool { return true })\n", "").
			and("internal/sweep/sweep.go", "	a.Case.Snapshots = e.list(ctx)\n", "	a.answers = ask(ctx, e.Witnesses, e.beside(), false, func(int) bool { return true })\n	a.Case.Snapshots = e.list(ctx)\n").
			and("internal/sweep/reap.go", "j, holds, err := b.e.again(ctx, b.a)", "j, holds, err := b.a.Judgement, b.a.Case.Policy.Holds, error(nil)"),
		one("1, I6", "the judge does not mind when a witness was asked", sceneFile, "if t.Asked.Mono < l.Mono {", "if false {").by("verdict", "TestF2AskedBeforeListed").blind(),
		one("1, I6", "the judge does not mind in which boot a witness was asked", sceneFile, `if l.Boot != t.Asked.Boot || t.Asked.Boot != s.now.Boot || t.Asked.Boot == "" {`, "if false {").by("verdict", "TestF2AskedBeforeListed").blind(),
		one("1, I6", "the judge does not mind a witness that was asked in the future", sceneFile, "if t.Asked.Mono > s.now.Mono {", "if false {").by("verdict", "TestKeepsImpossibleAnswers").blind(),
		// Gate 2.
		one("2", "no grace", judgeFile, "over := twice && elapsed >= grace", "over := twice"),
		one("2", "one sighting is enough, whatever its age", judgeFile, "over := twice && elapsed >= grace", "over := ok || twice"),
		one("2", "the first sighting counts as the second, without a grace", judgeFile, "twice := ok && sight.Absent.Mono != s.now.Mono", "twice := ok").by("verdict", "TestWallDecidesNothing").blind(),
		one("2", "alive does not end a run of absence", judgeFile, "next.Absent, next.Witnesses = claim.Instant{}, nil", "_ = next.Witnesses").by("verdict", "TestF2F3Birth|TestLaterNetnsGoneForAWhile"),
		one("2", "silence counts as a sighting", judgeFile, "	case classAbsent, classOrphan:\n		if ok, _", "	case classAbsent, classOrphan, classUnknown:\n		if ok, _").by("verdict", "TestWeakSightingsDoNotStart"),
		one("2", "a sighting without vantage counts", judgeFile, "		if ok, _ := s.mayConvict(); !ok {\n			break\n		}\n", "").by("verdict", "TestWeakSightingsDoNotStart|TestVerdictTable"),
		one("2", "a sighting by fewer witnesses counts", judgeFile, "if !sameRun || !covers(next.Witnesses, s.witnessesOf(a)) {", "if !sameRun {").by("verdict", "TestLaterOrphanInAnotherNetns|TestSightings"),
		one("2", "a sighting of an orphan's namespace counts for any absence", wordsFile, "	a.oddly().witnesses = others\n", "").by("verdict", "TestLaterOrphanInAnotherNetns|TestSightings"),
		one("2", "a sighting while NotReady counts for any absence", wordsFile, `a.oddly().witnesses = slices.DeleteFunc(others, func(w string) bool { return w == "cri:"+stale.Endpoint })`, "_ = others").by("verdict", "TestNotReadyThenGone"),
		one("2", "a sighting of the future or of another boot counts", "internal/claim/instant.go", `if i.Boot == "" || i.Boot != earlier.Boot || earlier.Mono > i.Mono {`, `if i.Boot == "" {`).by("verdict", "TestMissingNeedsALaterListing|TestMemoryOfAnAdversary"),
		one("2", "a sighting of another boot counts", "internal/claim/instant.go", "i.Boot != earlier.Boot || ", "").by("verdict", "TestMemoryOfAnAdversary"),
		one("2", "a first sighting in the future is believed", judgeFile, `if _, ok := s.now.Since(next.First); !ok && (next.First.Boot == s.now.Boot || next.First.Boot == "") {`, "if false {").by("verdict", "TestMemoryOfAnAdversary").blind(),
		one("2", "no longer grace for orphans, malformed files and NotReady", judgeFile, "if a.slow || byAddress(a.Resource) {", "if false {").by("verdict", "TestFieldReclaims|TestNotReady"),
		// I13.
		one("I13", "no vantage is needed", judgeFile, "	if ok, why := s.vantage(); !ok {\n		return \"no vantage: \" + why\n	}\n", ""),
		one("I13", "a vantage that is not proven is one", sceneFile, "if !v.Proven {", "if false {"),
		one("I13", "any PID namespace is a vantage", sceneFile, "if v.InitialPIDNS {", "if true {").by("verdict", "TestVerdictTable"),
		one("I13", "a runtime in another PID namespace makes a vantage", sceneFile, "if v.PIDNS == 0 || rt.PeerPIDNS != v.PIDNS {", "if false {").by("verdict", "TestVerdictTable"),
		// I5.
		one("I5", "a required witness may be silent", wordsFile, "case s.silentRequired() != \"\":", "case false:").
			and(wordsFile, "case kernel == Silent || process == Silent || cri == Silent:", "case false:"),
		one("I5", "a witness that cannot speak of one resource is taken for absent", wordsFile, "case kernel == Silent || process == Silent || cri == Silent:", "case false:"),
		one("I5", "the boot witness may be silent", sceneFile, "	if why, silent := s.silent[claim.WitnessBoot]; silent {\n		return \"boot is silent: \" + why\n	}\n	return \"\"\n", "	return \"\"\n").by("verdict", "TestF2AskedBeforeListed|TestF23BootHistory"),
		one("I5", "a runtime that is required and gave no answer is passed over", sceneFile, "if rt.State != claim.StateComplete && (rt.Named || rt.Known || rt.State != claim.StateNone) {", "if false {").
			and(sceneFile, "	case t.State != claim.StateComplete:\n		why = \"gave no reason\"", "	case t.State != claim.StateComplete && t.CRI == nil:\n		why = \"gave no reason\"").by("verdict", "TestKeepsImpossibleAnswers").blind(),
		one("I5", "a kernel without the host's namespace counts", sceneFile, "if !slices.ContainsFunc(t.Kernel.Netns, func(n claim.Netns) bool { return n.Host }) {", "if false {"),
		one("I5", "who answers twice is heard", sceneFile, "if heard[t.Witness] {", "if false {").by("verdict", "TestKeepsImpossibleAnswers").blind(),
		one("I5", "an empty list of a runtime is believed while shims run", sceneFile, "		if n > 0 {\n			s.mute", "		if false {\n			s.mute").by("verdict", "TestFieldNeverRelease|TestF6Contradiction"),
		one("I5", "the policy may leave out kernel or process", policyFile, "if !slices.Contains(p.Required, w) {", "if false {").by("verdict", "TestVerdictTable").blind(),
		one("I5", "the policy may leave out cri", policyFile, "if !p.CRINone && !slices.Contains(p.Required, claim.WitnessCRI) {", "if false {").by("verdict", "TestFieldNeverRelease|TestBootProofYields").blind(),
		one("I5", "a directory that was not listed whole is complete", wordsFile, `if why := s.incomplete(r); why != "" {`, `if why := s.incomplete(r); false {`).by("verdict", "TestHoldKeepsTheCache|TestVerdictTable").blind(),
		one("I5", "a file that could not be read is judged", wordsFile, `if r.Kind != claim.KindCache && r.Problem != "" {`, "if false {").by("verdict", "TestVerdictTable|TestSiblings").blind(),
		one("I5", "no status of the sandboxes is asked", judgeFile, "	if s.cri != nil && !s.cri.Detailed {\n		for i", "	if false {\n		for i").by("verdict", "TestKeepsAddressOfAnotherSandbox|TestNothingGoesBeforeTheDetails"),
		one("I5", "a foreign owner's file goes", judgeFile, "f.Releasable = over && s.c.Policy.Foreign", "f.Releasable = over"),
		one("I5", "an empty file goes at once", judgeFile, "f.Releasable, f.BootProven = over || a.dead, a.dead", "f.Releasable, f.BootProven = true, a.dead").by("verdict", "TestFieldReclaims|TestMalformedAndForeign"),
		// Who is alive.
		one("I1", "the kernel's word does not count", wordsFile, "case kernel == Alive && slices.ContainsFunc(homes, s.used):", "case false:").by("verdict", "TestFieldNeverRelease|TestF5EmptyOwner").blind(),
		one("I1", "the process witness' word does not count", wordsFile, "case process == Alive:", "case false:"),
		one("I1", "the runtime's word does not count", wordsFile, "case cri == Alive:", "case false:").by("verdict", "TestFieldNeverRelease|TestL4Reboot").blind(),
		one("I1", "the runtime's word does not count, nor that its sandbox has the namespace", wordsFile, "case cri == Alive:", "case false:").
			and(wordsFile, `if id := s.livesIn(n); id != "" {`, `if id := s.livesIn(n); false {`),
		one("NotReady", "what is NotReady is gone, whatever kernel and process say", wordsFile, "if s.aliveElsewhere(ids) {", "if false {").by("verdict", "TestNotReady").blind(),
		one("NotReady", "without the longer grace", wordsFile, "		if waits {\n			a.slow = true\n		}\n", "		_ = waits\n").by("verdict", "TestFieldReclaims|TestNotReady"),
		one("NotReady", "any Ready sandbox of the Pod is a newer one", wordsFile, " && n.Created > b.Created {", " {").by("verdict", "TestNotReady").blind(),
		one("NotReady", "any Pod's Ready sandbox is a newer one", wordsFile, "n.Pod.UID == b.Pod.UID && ", "").by("verdict", "TestNotReady"),
		one("orphan", "a namespace that a living one may have is nobody's", wordsFile, `if id := s.livesIn(n); id != "" {`, `if id := s.livesIn(n); false {`).by("verdict", "TestKeepsIdleNetnsOfReadySandbox|TestKeepsIdleNetnsOfTwoTenants").blind(),
		one("orphan", "no runtime need vouch for its name", judgeFile, "if !vouched && !s.c.Policy.Orphans {", "if !vouched && false {").by("verdict", "TestLaterIdleNetnsPinnedByAPerson|TestOrphaned"),
		one("orphan", "a hold of an address does not keep its namespace", wordsFile, `if why := s.c.Policy.heldAnywhere(plain(x.Addr), s.read); why != "" {`, `if why := s.c.Policy.heldAnywhere(plain(x.Addr), s.read); false {`).by("verdict", "TestLaterIdleNetnsWithHeldAddress"),
		one("orphan", "a path below /proc names a namespace", sceneFile, `if p == "" || strings.HasPrefix(p, "/proc/") {`, `if p == "" {`).by("verdict", "TestF13UsedAgainPID").blind(),
		one("conflict", "an address that another's namespace holds is free", wordsFile, "		case !excused:", "		case false:").by("verdict", "TestConflict").blind(),
		one("conflict", "an address that another is said to have is free", wordsFile, "		a.class, a.Rule, a.Holder = classConflict, \"claimed-by-other\", other", "		a.Rule, a.Holder = \"claimed-by-other\", other"),
		one("conflict", "two namespaces with one address are no conflict", wordsFile, "if len(holders) > 1 {", "if false {").by("verdict", "TestKeepsCacheOfConflict|TestHeldTwiceKeepsOtherNetworks").blind(),
		one("boot", "any other boot is past", wordsFile, "case a.prior != nil && s.past[a.prior.First.Boot]:", "case a.prior != nil && a.prior.First.Boot != s.now.Boot:").by("verdict", "TestF23BootHistory|TestMemoryOfAnAdversary"),
		one("boot", "a boot ID that changed meanwhile counts", sceneFile, `if t.Boot.Current == "" || t.Boot.Current != s.now.Boot {`, "if false {").by("verdict", "TestF23BootHistory"),
		one("boot", "a past boot that came back proves death", "internal/sys/state/boots.go", "	if h.Returned == \"\" {\n", "	if true {\n").
			and("internal/sys/state/boots.go", `if next.Returned != "" {`, "if false {").by("sys/state", "TestBoots").blind(),
		// I8 in the judge.
		one("6, I8", "a living sibling does not keep the rest", groupFile, "if alive[id] {", "if alive[id] && false {").by("verdict", "TestBootProofYields|TestHeldTwiceKeepsOtherNetworks").blind(),
		one("6, I8", "a kept address does not keep its attachment, nor in the plan", groupFile, "why := stuck[attachment(a.Resource)]", `why := ""`).
			and("internal/plan/plan.go", `if why := late[unit(f.Resource)]; why != "" && f.Resource.Kind == claim.KindReservation {`, `if why := late[unit(f.Resource)]; false {`),
		one("6, I8", "a kept address does not keep its attachment", groupFile, "why := stuck[attachment(a.Resource)]", `why := ""`).by("verdict", "TestSiblings").blind(),
		one("6, I8", "a conflict does not keep the container's other addresses", groupFile, "				why = conflict[id]\n", "").by("verdict", "TestHeldTwiceKeepsOtherNetworks").blind(),
		one("6, I8", "a cache entry goes before its reservation", groupFile, "f.Verdict, f.Rule, f.Why = Suspect, \"with-reservation\"", "f.Releasable, f.Rule, f.Why = true, \"with-reservation\"").by("verdict", "TestF21CacheOfRestartedContainer").blind(),
		one("6, I8", "a reservation does not wait for its cache entry", groupFile, "again = addressLast(list)", "again = false"),
		one("6, I8", "a cache entry goes before an address that is kept", groupFile, "				why = kept[id]\n", "				_ = kept[id]\n").
			and(groupFile, "f.Verdict, f.Rule, f.Why = Suspect, \"with-reservation\"", "f.Releasable, f.Rule, f.Why = true, \"with-reservation\"").by("verdict", "TestHoldKeepsTheCache|TestF21CacheOfRestartedContainer").blind(),
		one("6, I8", "a namespace goes before all that it holds", groupFile, "if p := pinned[n.ID]; p != nil && f.Releasable {", "if p := pinned[n.ID]; p != nil && false {").
			and(groupFile, `if r := stays[plain(a.Addr)]; r != nil && why == "" {`, `if r := stays[plain(a.Addr)]; r != nil && false {`).by("verdict", "TestLaterIdleNetns.*").blind(),
		one("6, I8", "a namespace goes while a directory is unread", groupFile, `all = "a directory could not be listed whole"`, "_ = all").by("verdict", "TestNamespaceStaysWhileADirectoryIsUnread").blind(),
		one("I5, hold", "holds that cannot be read are none, for the judge", policyFile, `if p.Unheld != "" {`, "if false {").by("verdict", "TestUnreadHoldsKeep").blind(),
		one("I5, hold", "holds that cannot be read are none, at the re-check", "internal/sweep/sweep.go", "		return nil, nil, fmt.Errorf(\"the holds cannot be read: %w\", err)\n", "		err = nil\n").
			and("internal/sweep/reap.go", "return err == nil && slices.Equal(holds, b.holds)", "return err == nil || len(holds) == 0").by("sweep", "TestNothingGoesWhileHoldsAreUnread"),
		one("hold", "a hold is not heeded", judgeFile, "held := s.c.Policy.held(f.Resource)", `held := ""`),
		// What a stamp proves, and what it does not.
		one("2, stamp", "a stamp of any age is enough", judgeFile, "if age >= s.c.Policy.Grace {", "if age >= 0 {").by("verdict", "TestStampTable").blind(),
		one("2, stamp", "a stamp of another boot proves an age", judgeFile, "claim.Instant{Boot: stamp.Boot, Mono: stamp.Mono}", "claim.Instant{Boot: s.now.Boot, Mono: stamp.Mono}").by("verdict", "TestStampTable").blind(),
		one("2, stamp", "an age shortens the longer grace", judgeFile, "if stamp == nil || a.class != classAbsent || a.slow || a.odd", "if stamp == nil || a.class != classAbsent || a.odd").by("verdict", "TestStampTable").blind(),
		one("2, stamp", "under pressure the namespace need not be gone", judgeFile, " && s.byID[stamp.Netns] == nil {", " {").by("verdict", "TestStampTable").blind(),
		one("2, stamp", "under pressure no runtime need be asked", judgeFile, "p > 0 && s.cri != nil && ", "p > 0 && ").by("verdict", "TestStampTable").blind(),
		one("2, stamp", "pressure has no least age", judgeFile, "if age >= p {", "if age >= 0 {").by("verdict", "TestStampTable").blind(),
		one("2, stamp", "the stamp of other content counts", "internal/sys/hostlocal/stamp.go", " || hex.EncodeToString(b[stampSum:]) != contentSum", "").by("sys/hostlocal", "TestParseStamp|TestStampFollowsContent").blind(),
		one("2, stamp", "what names no owner has a stamp too", sceneFile, "case r.Kind == claim.KindReservation && !byAddress(r):", "case r.Kind == claim.KindReservation:").by("verdict", "TestStampOfNobody").blind(),
		// The pressure rule without a stamp.
		one("2, pressure", "one sighting more is enough, whatever its age", judgeFile, "case early && twice && elapsed >= s.c.Policy.PressureGrace:", "case early && twice:").by("verdict", "TestPressureTable"),
		one("2, pressure", "without a pressure grace", pressFile, "return s.c.Policy.PressureGrace > 0 && s.cri", "return s.cri").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "in every store", pressFile, "return slices.Contains(s.c.Policy.Pressed, dir)", "return dir != \"\"").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "without any runtime", pressFile, "s.cri != nil && !a.slow", "!a.slow").
			and(pressFile, "if !s.mayBePressed(a) || !s.cri.Detailed {", "if !s.mayBePressed(a) || s.cri != nil && !s.cri.Detailed {").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "before the runtimes were asked for their namespaces", pressFile, "if !s.mayBePressed(a) || !s.cri.Detailed {", "if !s.mayBePressed(a) {").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "it shortens the longer grace", pressFile, "s.cri != nil && !a.slow && ", "s.cri != nil && ").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "by the word of the API server", pressFile, " && !(a.odd != nil && a.odd.podGone) &&", " &&").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "for IDs of any shape", pressFile, "isHex64(a.Resource.Owner.ID) && ", "").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "whatever namespaces there are", pressFile, "if len(s.c.Policy.Pressed) == 0 || s.kernel == nil {", "if true {").by("verdict", "TestPressureTable"),
		one("2, pressure", "a namespace that is held open is in use", pressFile, "n.Host || n.Procs > 0 && !runtimeNamed(n)", "n.Host || n.Used() && !runtimeNamed(n)").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "a namespace with a process is nobody's ADD", pressFile, "n.Host || n.Procs > 0 && !runtimeNamed(n)", "n.Host || n.Procs > 0").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "a namespace that was seen before is nobody's ADD", pressFile, "ok && d >= s.c.Policy.Grace", "ok && d >= 0").by("verdict", "TestPressureTable"),
		one("2, pressure", "a namespace of somebody dead is nobody's ADD", pressFile, "slices.ContainsFunc(s.tenants[n.ID], s.living)", "len(s.tenants[n.ID]) > 0").by("verdict", "TestPressureTable").blind(),
		one("2, pressure", "of stamps in every store", judgeFile, "(len(s.c.Policy.Pressed) == 0 || s.underPressure(a.Resource)) && ", "").by("verdict", "TestPressureOfStampsByStore").blind(),
		one("boot", "any other boot in a stamp is past", wordsFile, "case stamp != nil && s.past[stamp.Boot]:", "case stamp != nil && stamp.Boot != s.now.Boot:").by("verdict", "TestStampTable").blind(),
		one("I1", "what is being added, or valid for its runtime, does not count", wordsFile, "valid := s.isValid(r)", "valid := false").by("verdict", "TestStampTable").blind(),
		one("hold", "an excluded address goes", policyFile, "if r.Addr.IsValid() && e.Contains(r.Addr) {", "if false {").by("verdict", "TestLaterIdleNetnsWithHeldAddress|TestVerdictTable").blind(),
	}
}
