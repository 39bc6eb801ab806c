package failpoint

// Point is the name of a point.
type Point string

// The points, each between two durable steps. "switch" says that an error injected there
// stands for a kernel or file system that cannot do something, so that the other way of
// doing it is gone.
const (
	// internal/journal. The first three are passed when a journal is made and when it is
	// compacted.
	JournalTempWritten   Point = "journal.temp.written"
	JournalTempSynced    Point = "journal.temp.synced"
	JournalRenamed       Point = "journal.renamed"
	JournalNameSynced    Point = "journal.name.synced"
	JournalAppendBefore  Point = "journal.append.before"
	JournalAppendWritten Point = "journal.append.written"
	JournalAppendSynced  Point = "journal.append.synced"
	JournalCutTruncated  Point = "journal.cut.truncated"

	// internal/sys/state: boots, runtimes, sightings, holds.
	StateTempWritten  Point = "state.temp.written"
	StateTempSynced   Point = "state.temp.synced"
	StateRenamed      Point = "state.renamed"
	StateDirSynced    Point = "state.dir.synced"
	StateAsideRenamed Point = "state.aside.renamed"

	// internal/sys/hostlocal, both ways.
	MoveNoReplace Point = "move.noreplace" // switch: no RENAME_NOREPLACE
	MoveLinked    Point = "move.linked"
	CopyWritten   Point = "copy.written"
	CopySynced    Point = "copy.synced"

	// internal/sys/hostlocal, into the quarantine.
	ReleaseLockBefore    Point = "release.lock.before"
	ReleaseLockHad       Point = "release.lock.had"
	ReleaseRenameBefore  Point = "release.rename.before"
	ReleaseRenameAfter   Point = "release.rename.after"
	ReleaseCopyPlaced    Point = "release.copy.placed"
	ReleaseCopiesSynced  Point = "release.copies.synced"
	ReleaseUnlinkBefore  Point = "release.unlink.before"
	ReleaseUnlinkAfter   Point = "release.unlink.after"
	ReleaseVaultSynced   Point = "release.quarantine.synced"
	ReleaseStoreSynced   Point = "release.store.synced"
	DiscardUnlinked      Point = "discard.unlinked"
	DiscardSynced        Point = "discard.synced"
	RestoreLockBefore    Point = "restore.lock.before"
	RestoreLockHad       Point = "restore.lock.had"
	RestorePlaced        Point = "restore.placed"
	RestoreTmpfile       Point = "restore.tmpfile" // switch: no O_TMPFILE
	RestoreStoreSynced   Point = "restore.store.synced"
	RestoreVaultUnlinked Point = "restore.quarantine.unlinked"
	RestoreVaultSynced   Point = "restore.quarantine.synced"

	// internal/sys/hostlocal, making a reservation again.
	AdoptDirMade      Point = "adopt.dir.made"
	AdoptTmpfile      Point = "adopt.tmpfile" // switch: no O_TMPFILE
	AdoptDraftWritten Point = "adopt.draft.written"
	AdoptDraftSynced  Point = "adopt.draft.synced"
	AdoptLockHad      Point = "adopt.lock.had"
	AdoptLinked       Point = "adopt.linked"
	AdoptStoreSynced  Point = "adopt.store.synced"

	// internal/sys/hostlocal, allocating. All of holdfast-ipam's begin with "ipam.".
	IpamDirMade      Point = "ipam.dir.made"
	IpamTmpfile      Point = "ipam.tmpfile" // switch: no O_TMPFILE
	IpamDraftWritten Point = "ipam.draft.written"
	IpamXattr        Point = "ipam.xattr" // switch: no extended attributes
	IpamDraftStamped Point = "ipam.draft.stamped"
	IpamDraftSynced  Point = "ipam.draft.synced"
	IpamReserved     Point = "ipam.reserved"
	IpamLastWritten  Point = "ipam.last.written"
	IpamLastCut      Point = "ipam.last.cut"
	IpamRemoveBefore Point = "ipam.remove.before"
	IpamRemoved      Point = "ipam.removed"
	IpamRenewed      Point = "ipam.renewed"
	IpamIndexMarked  Point = "ipam.index.marked"
	IpamIndexCut     Point = "ipam.index.cut"
	IpamIndexSlots   Point = "ipam.index.slots"
	IpamIndexSaved   Point = "ipam.index.saved"
	IpamStoreSynced  Point = "ipam.store.synced"

	// internal/sys/links and internal/sys/cniexec.
	VethBefore     Point = "veth.before"
	VethAfter      Point = "veth.after"
	NetnsBefore    Point = "netns.before"
	NetnsUnmounted Point = "netns.unmounted"
	NetnsAfter     Point = "netns.after"
	DelBefore      Point = "del.before"
	DelAfter       Point = "del.after"

	// internal/sys/cnicache.
	CacheRemoveBefore     Point = "cache.remove.before"
	CacheRemoveAfter      Point = "cache.remove.after"
	CacheRestoreTmpfile   Point = "cache.restore.tmpfile" // switch: no O_TMPFILE
	CacheRestoreWritten   Point = "cache.restore.written"
	CacheRestoreSynced    Point = "cache.restore.synced"
	CacheRestoreLinked    Point = "cache.restore.linked"
	CacheRestoreTemp      Point = "cache.restore.temp"
	CacheRestoreDirSynced Point = "cache.restore.dir.synced"

	// internal/sweep.
	ReapIntents    Point = "reap.intents"
	ReapSides      Point = "reap.sides"
	ReapMoved      Point = "reap.moved"
	ReapOutcomes   Point = "reap.outcomes"
	SettleBefore   Point = "settle.before"
	SettleAfter    Point = "settle.after"
	SettleWritten  Point = "settle.written"
	UndoIntent     Point = "undo.intent"
	UndoHeld       Point = "undo.held"
	UndoRestored   Point = "undo.restored"
	UndoCache      Point = "undo.cache"
	UndoOutcome    Point = "undo.outcome"
	AdoptIntents   Point = "adopt.intents"
	AdoptMade      Point = "adopt.made"
	AdoptOutcomes  Point = "adopt.outcomes"
	UnadoptIntent  Point = "unadopt.intent"
	UnadoptHeld    Point = "unadopt.held"
	UnadoptMoved   Point = "unadopt.moved"
	UnadoptOutcome Point = "unadopt.outcome"
)

// Names are all points.
func Names() []Point {
	return []Point{
		JournalTempWritten, JournalTempSynced, JournalRenamed, JournalNameSynced,
		JournalAppendBefore, JournalAppendWritten, JournalAppendSynced, JournalCutTruncated,
		StateTempWritten, StateTempSynced, StateRenamed, StateDirSynced, StateAsideRenamed,
		MoveNoReplace, MoveLinked, CopyWritten, CopySynced,
		ReleaseLockBefore, ReleaseLockHad, ReleaseRenameBefore, ReleaseRenameAfter,
		ReleaseCopyPlaced, ReleaseCopiesSynced, ReleaseUnlinkBefore, ReleaseUnlinkAfter,
		ReleaseVaultSynced, ReleaseStoreSynced, DiscardUnlinked, DiscardSynced,
		RestoreLockBefore, RestoreLockHad, RestorePlaced, RestoreTmpfile,
		RestoreStoreSynced, RestoreVaultUnlinked, RestoreVaultSynced,
		AdoptDirMade, AdoptTmpfile, AdoptDraftWritten, AdoptDraftSynced, AdoptLockHad, AdoptLinked, AdoptStoreSynced,
		IpamDirMade, IpamTmpfile, IpamDraftWritten, IpamXattr, IpamDraftStamped, IpamDraftSynced, IpamReserved,
		IpamLastWritten, IpamLastCut, IpamRemoveBefore, IpamRemoved, IpamRenewed,
		IpamIndexMarked, IpamIndexCut, IpamIndexSlots, IpamIndexSaved, IpamStoreSynced,
		VethBefore, VethAfter, NetnsBefore, NetnsUnmounted, NetnsAfter, DelBefore, DelAfter,
		CacheRemoveBefore, CacheRemoveAfter, CacheRestoreTmpfile, CacheRestoreWritten, CacheRestoreSynced,
		CacheRestoreLinked, CacheRestoreTemp, CacheRestoreDirSynced,
		ReapIntents, ReapSides, ReapMoved, ReapOutcomes, SettleBefore, SettleAfter, SettleWritten,
		UndoIntent, UndoHeld, UndoRestored, UndoCache, UndoOutcome,
		AdoptIntents, AdoptMade, AdoptOutcomes, UnadoptIntent, UnadoptHeld, UnadoptMoved, UnadoptOutcome,
	}
}
