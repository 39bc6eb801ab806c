package main

const (
	reapFile    = "internal/sweep/reap.go"
	settleFile  = "internal/sweep/settle.go"
	sweepFile   = "internal/sweep/sweep.go"
	planFile    = "internal/plan/plan.go"
	releaseFile = "internal/sys/hostlocal/release.go"
	restoreFile = "internal/sys/hostlocal/restore.go"
	vaultFile   = "internal/sys/hostlocal/quarantine.go"
	journalFile = "internal/journal/journal.go"
)

// engineMutations are those of engine, planner and drivers.
func engineMutations() []mutation {
	return []mutation{
		// Gate 3.
		one("3", "no live re-check", reapFile, "j, holds, err := b.e.again(ctx, b.a)", "j, holds, err := b.a.Judgement, b.a.Case.Policy.Holds, error(nil)").by("sweep", "TestConfirmReprieves"),
		one("3", "a re-check of any age", reapFile, "if !ok || d > stale {", "if !ok || d < 0 {").by("sweep", "TestStaleConfirmation"),
		one("3", "witnesses that took long are believed", reapFile, "if d, ok := b.answered.Since(asked); !ok || d > tooSlow {", "if d, ok := b.answered.Since(asked); !ok || d < 0 {").by("sweep", "TestConfirmationAge"),
		one("3", "what the re-check keeps goes", reapFile, "if !b.now[keyOf(f.Resource)].Releasable {", "if false {").by("sweep", "TestConfirmReprieves"),
		one("3", "what a later re-check keeps goes", reapFile, "if g.unpinned && now.Gone || !g.unpinned && now.Releasable {", "if true {").by("sweep", "TestHoldUnderTheLock|TestNamespaceThatStays"),
		one("3", "alive at the re-check is forgotten", sweepFile, "if len(revived) > 0 {", "if false {").by("sweep", "TestAliveAtTheLastMomentIsRemembered"),
		one("3, hold", "a hold that comes meanwhile is not heeded", sweepFile, "if c.Policy.Holds, err = e.Holds.List(); err != nil {", "if err != nil {").
			and(reapFile, "return err == nil && slices.Equal(holds, b.holds)", "return err == nil || len(holds) > 0").by("sweep", "TestHoldUnderTheLock"),
		// Gate 4.
		one("4, I3", "no intent", reapFile, "if err := b.e.Journal.Append(b.intents()...); err != nil {", "if err := error(nil); err != nil {"),
		one("4, I3", "the intent is not fsynced", journalFile, "		err = j.f.Sync()\n", ""),
		one("4, I3", "a journal that cannot be written does not stop it", reapFile, "if err := b.e.Journal.Append(b.intents()...); err != nil {", "if err := b.e.Journal.Append(b.intents()...); false {").by("sweep", "TestIntentCannotBeWritten").blind(),
		one("4, I3", "a new journal's name is not fsynced", journalFile, "if err := fsys.SyncDir(j.fs, j.dir); err != nil {", "if err := error(nil); err != nil {").by("journal", "TestAppendEndsAtEveryCall").blind(),
		// Gate 5.
		one("5, I7", "the incarnation is not compared under the lock", releaseFile, "case inc != r.moves[i].Inc:", "case false:").by("sys/hostlocal", "TestRelease"),
		one("5, I7", "the incarnation is compared neither under the lock nor after the move", releaseFile, "case inc != r.moves[i].Inc:", "case false:").
			and(releaseFile, "if inQ.Key() != (fsys.Key{Dev: m.Inc.Dev, Ino: m.Inc.Ino}) || inQ.Size != m.Inc.Size {", "if false {").by("sys/hostlocal", "TestRelease|TestReleasePutsBackAnotherFile"),
		one("5, I7", "it is not looked at after the move", releaseFile, "if inQ.Key() != (fsys.Key{Dev: m.Inc.Dev, Ino: m.Inc.Ino}) || inQ.Size != m.Inc.Size {", "if false {").by("sys/hostlocal", "TestReleasePutsBackAnotherFile"),
		one("5", "without the allocator's lock", releaseFile, "h, err := r.q.lock(ctx, r.store)",
			"h, err := &held{fs: r.fs, fd: -1, turn: make(chan struct{}, 1)}, error(nil)\n		h.turn <- struct{}{}"),
		one("5", "a lock that came late is good enough", releaseFile, "if r.opt.Fresh != nil && !r.opt.Fresh() {", "if false {").by("sys/hostlocal", "TestReleaseStale"),
		// Gate 6.
		one("6, I8", "the namespace stays", reapFile, "b.run(ctx, g, plan.StepVeth, plan.StepNetns)", "_ = g"),
		one("6, I8", "a piece that holds the address alive does not block it", reapFile, "case r.State == journal.StepFailed && s.Blocks:", "case false:").by("sweep", "TestEachNetnsByItsOwnStep|TestSideFailures").blind(),
		one("6, I8", "the cache file stays", reapFile, "			b.run(ctx, g, plan.StepCache)\n", ""),
		one("6, I8", "the address goes first", planFile, "g.Steps = slices.Concat(veths, netns, dels, caches, addrs)", "g.Steps = slices.Concat(addrs, veths, netns, dels, caches)").by("plan", "TestOrderWithinAnAttachment").blind(),
		one("6, I8", "the address goes first, in the engine", reapFile, "	// Gate 6: what can hold an address alive goes before the address, and is seen gone.\n", "	b.move(ctx)\n"),
		one("6, I8", "the plan tears an attachment apart", planFile, `if why := late[unit(f.Resource)]; why != "" && f.Resource.Kind == claim.KindReservation {`, `if why := late[unit(f.Resource)]; false {`),
		one("6, I8", "the plan lets a cache file go without its address", planFile, "why := kept[k]\n", "why := \"\"\n").by("plan", "TestLaterCacheStaysWithItsReservation").blind(),
		one("6, I8", "an address that did not go loses its cache file", reapFile, "	b.putBack()\n", "").by("sweep", "TestAddressThatStaysHasItsCacheFileBack").blind(),
		// Gate 7.
		one("7", "the quarantine is not fsynced", releaseFile, "r.fs.syncErr(r.qfd, r.q.Dir), ", "").
			and(releaseFile, "failpoint.At(failpoint.ReleaseVaultSynced), r.fs.syncErr(r.store.fd, r.store.path), ", ""),
		one("7", "a copy is not fsynced before the original goes", releaseFile, "if serr := r.fs.Fsync(r.qfd); serr != nil {", "if serr := error(nil); serr != nil {").by("sys/hostlocal", "TestReleaseEndsAtEveryCall").blind(),
		one("7", "the quarantine may lie inside a data directory", vaultFile, "if inner[key] {", "if false {").by("sys/hostlocal", "TestQuarantineInside").blind(),
		one("7", "a release ID may be used twice", "internal/sys/hostlocal/fs.go", "err := f.Renameat2(fromFD, from, toFD, to, unix.RENAME_NOREPLACE)", "err := f.Renameat2(fromFD, from, toFD, to, 0)").by("sys/hostlocal", "TestRelease|TestReleasePutsBackAnotherFile").blind(),
		// Gate 8, I4.
		one("8", "no outcome", reapFile, "if err := b.e.Journal.Append(b.outcomes()...); err != nil {", "if err := error(nil); len(b.outcomes()) < 0 {"),
		one("I4", "nothing is settled after a crash", settleFile, "if !en.State.Unsettled() || en.Release == nil", "if true || en.Release == nil"),
		one("I4", "what went is taken for standing", settleFile, "case quarantined && !origin:", "case false:").by("sweep", "TestOutcomeCannotBeWritten|TestSettle").blind(),
		one("I4", "a copy whose original stands is kept", settleFile, "if err := e.Vault.Discard(en.ID); err != nil {", "if err := error(nil); err != nil {").by("sweep", "TestSettle").blind(),
		one("I4", "any file at the path is taken for the judged one", vaultFile, "origin = oThere && oInc == judged", "origin = oThere").by("sys/hostlocal", "TestCrashRules").blind(),
		one("I4", "an address that stayed does not get its cache file back", settleFile, "		// An address that stays keeps its cache file, which may be gone already.\n		return rec, e.cacheBack(&rec, en)\n", "		return rec, nil\n").by("sweep", "TestSettledAddressHasItsCacheFileBack").blind(),
		// Gate 9.
		one("9", "no cap", planFile, "if !opt.ForceOverCap {", "if false {").by("plan", "TestCap|TestCapPerNetworkAndWhole"),
		one("I9", "two reapers at a time", "internal/sys/hostlocal/reaper.go", "unix.LOCK_EX|unix.LOCK_NB", "unix.LOCK_SH|unix.LOCK_NB"),
		// Undo.
		one("undo, I3", "no hold", settleFile, "added, err := e.Holds.Hold(hold, en.ID)", "added, err := false, error(nil)"),
		one("undo, I3", "in any boot", "internal/journal/replay.go", `boot != "" && e.Intent.Boot == boot`, `boot != ""`),
		one("undo, I3", "whether or not the address is free", restoreFile, "if len(taken) == 0 {", "if true {").by("sys/hostlocal", "TestRestore|TestCrashRules").blind(),
		one("undo, I3", "what is back is not fsynced before its copy goes", restoreFile, "if err := f.syncErr(sfd, dir); err != nil {", "if err := error(nil); err != nil {").by("sys/hostlocal", "TestReleaseEndsAtEveryCall").blind(),
		one("undo, I3", "an undo that a crash left open is not held", settleFile, "if _, err := e.Holds.Hold(holdOf(en), en.ID); err != nil {", "if false {").by("sweep", "TestSettledUndoIsHeld").blind(),
		// State files.
		one("state", "a new state file is not fsynced", "internal/sys/state/dir.go", `err = os.NewSyscallError("fsync", d.fs.Fsync(d.root))`, "err = nil"),
		one("state", "a store that was not looked at loses its sightings", judgeFile, "if unseen && next.Get(v.Key) == nil {", "if unseen && false {").by("verdict", "TestL7LockedStore").blind(),
	}
}
