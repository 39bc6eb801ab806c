package ipam

import "testing"

// The names of the intended differences.
const (
	diffStatus     = "status"
	diffGC         = "gc"
	diffGCAbsent   = "gc-absent-list"
	diffGCForeign  = "gc-foreign-files"
	diffCheck      = "check-compares"
	diffLastFails  = "last-unwritable"
	diffDelFails   = "release-fails"
	diffRollback   = "rollback"
	diffOnlyNames  = "only-addresses"
	diffNull       = "null-address"
	diffLock       = "lock-timeout"
	diffFull       = "full-names-numbers"
	diffTakeOver   = "take-over"
	diffDurability = "no-empty-file"
)

// difference is where a drop-in is meant to behave otherwise than host-local.
type difference struct {
	name     string
	upstream string // what host-local 1.10.0 does
	ours     string // what a drop-in does
	why      string
	// elsewhere says where it is tested, if not by a pair of rows of the contract.
	elsewhere string
}

func differences() []difference {
	return []difference{
		{
			name:     diffStatus,
			upstream: "STATUS succeeds whatever the state of the store",
			ours:     "fails with code 50 when a range is exhausted or the store cannot be written",
			why:      "the runtime must not send Pods to a node that has no address for them",
		},
		{
			name:     diffGC,
			upstream: "GC removes at once what is not listed",
			ours:     "what is not listed goes through the same gates as any other leak",
			why:      "two runtimes share networks, and each lists only its own (cni #1086)",
		},
		{
			name:     diffGCAbsent,
			upstream: "GC without cni.dev/valid-attachments removes every reservation",
			ours:     "an error, and nothing is removed",
			why:      "no answer is not the answer that nothing is alive (I5)",
		},
		{
			name:     diffGCForeign,
			upstream: "GC removes any regular file but the lock and last_reserved_ip.*",
			ours:     "GC looks only at files that are named by an address",
			why:      "a note, a backup or a temporary file is no reservation",
		},
		{
			name:     diffCheck,
			upstream: "CHECK succeeds if the attachment holds any address",
			ours:     "CHECK fails where the reserved addresses are not those of prevResult",
			why:      "that is what CHECK is for",
		},
		{
			name:     diffLastFails,
			upstream: "ADD fails when last_reserved_ip.N cannot be written, and the reservation stays",
			ours:     "ADD fails and nothing stays",
			why:      "a failed ADD must not lose an address (case L19)",
		},
		{
			name:     diffDelFails,
			upstream: "DEL succeeds when a file cannot be removed",
			ours:     "DEL fails and names the file",
			why:      "what is claimed to be free must be free (case L18)",

			elsewhere: "TestRefused, which needs a directory that refuses",
		},
		{
			name:     diffRollback,
			upstream: "an ADD that fails in a later range set removes every reservation of the attachment",
			ours:     "only what this very ADD reserved",
			why:      "a repeated ADD would free the address of a running container (I1)",
		},
		{
			name:     diffOnlyNames,
			upstream: "DEL removes any file with the owner's content, in sub-directories too, also last_reserved_ip.N of a container whose ID is an address",
			ours:     "only files of the network's directory that are named by an address",
			why:      "the rest is no reservation (case L20)",
		},
		{
			name:     diffNull,
			upstream: "a null among the requested addresses ends in a panic: exit 2, no error document",
			ours:     "an error document, exit 1",
			why:      "the runtime reads stdout",
		},
		{
			name:     diffLock,
			upstream: "waits for the lock for ever",
			ours:     "gives up after a bounded time, and names the holder",
			why:      "a hung process must not hang every Pod (case L7)",

			elsewhere: "the store's own tests, where the bound is passed in",
		},
		{
			name:     diffFull,
			upstream: `"no IP addresses available in range set: RANGES" and no more`,
			ours:     "the same, then what is in use, suspect and withheld",
			why:      "an operator has to know whether the range is too small or leaks",

			elsewhere: "the tests of healing; the common beginning is in the contract",
		},
		{
			name:     diffTakeOver,
			upstream: "ADD of an attachment that holds an address fails, dead or alive",
			ours:     "an address whose stamp proves it dead is taken over",
			why:      "podman and Nomad start the same ID again after a reboot (case L17)",

			elsewhere: "the plugin's tests, which can forge a stamp; what has no stamp is in the contract",
		},
		{
			name:     diffDurability,
			upstream: "killed at the wrong moment it leaves an empty reservation that nothing releases, or an empty last_reserved_ip.N",
			ours:     "neither, ever",
			why:      "plugins #498",

			elsewhere: "TestInterleaved, by counting",
		},
	}
}

// TestDifferences: each is shown by a row for host-local and one for ours, or says where
// it is tested; and a row for one of them names a difference.
func TestDifferences(t *testing.T) {
	shown := map[string][2]bool{}
	for _, r := range rows() {
		if (r.only == everyone) != (r.differs == "") {
			t.Errorf("row %q: only some programs without a difference, or a difference for all", r.name)
		}
		s := shown[r.differs]
		s[0], s[1] = s[0] || r.only == onlyUpstream, s[1] || r.only == onlyOurs
		shown[r.differs] = s
	}
	delete(shown, "")
	for _, d := range differences() {
		if d.upstream == "" || d.ours == "" || d.why == "" {
			t.Errorf("%s: a word is missing", d.name)
		}
		if s := shown[d.name]; d.elsewhere == "" && s != [2]bool{true, true} {
			t.Errorf("%s: a row for host-local %v, a row for ours %v; want both", d.name, s[0], s[1])
		}
		delete(shown, d.name)
	}
	for name := range shown {
		t.Errorf("%s is no known difference", name)
	}
}
