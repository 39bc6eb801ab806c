package sim

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// liar is a Subject that undertakes what it does not do.
type liar struct {
	duties Duties
	gc     func(n *Node) error
	undo   func(n *Node) Report
}

func (l liar) Duties() Duties { return l.duties }
func (l liar) Do(n *Node, c Command) Report {
	switch {
	case c.Verb == GC:
		return Report{Refused: l.gc(n)}
	case c.Verb == Undo && l.undo != nil:
		return l.undo(n)
	}
	return Report{}
}

// spoiled is the product, and something after each audit.
type spoiled struct {
	*Holdfast
	after func(n *Node)
}

func (s spoiled) Do(n *Node, c Command) Report {
	r := s.Holdfast.Do(n, c)
	if c.Verb == Audit {
		s.after(n)
	}
	return r
}

// listAndAsk does everything in the right order.
func listAndAsk(n *Node) []claim.Resource {
	list := n.List().Resources
	askAll(n)
	return list
}

func askAll(n *Node) {
	n.Kernel()
	n.Runtimes(nil, true)
	_, _ = n.Boot()
}

// gated undertakes the gates, and does something with what it lists and hears.
func gated(do func(n *Node, list []claim.Resource) error) Subject {
	return liar{Duties{Gates: true}, func(n *Node) error { return do(n, listAndAsk(n)) }, nil}
}

// second does so from the second gc on, and remembers what it saw.
func second(do func(n *Node, list []claim.Resource) error) Subject {
	return &twice{do: do}
}

type twice struct {
	do   func(n *Node, list []claim.Resource) error
	seen bool
}

func (t *twice) Duties() Duties { return Duties{Gates: true} }

func (t *twice) Do(n *Node, c Command) Report {
	list := listAndAsk(n)
	rep := Report{Remembered: true}
	if c.Verb == GC && t.seen {
		rep.Refused = t.do(n, list)
	}
	t.seen = true
	return rep
}

func removeAll(n *Node, list []claim.Resource) error {
	for _, r := range list {
		if err := n.Remove(r.Path); err != nil {
			return err
		}
	}
	return nil
}

// Every invariant that the oracle watches is broken here by a Subject, and seen. A pair:
// the product runs the same script and breaks none.
func TestOracleCanFail(t *testing.T) {
	all := Duties{Reclaims: true, Silence: true, Journals: true}
	for _, r := range []struct {
		name, script, want string
		subject            Subject
	}{
		{"releases the living", "add 0\n gc", "I1", Policy(func(n *Node) error { return removeAll(n, listAndAsk(n)) })},
		{"releases an ADD in flight", "begin 0 0 3\n gc", "I1", Policy(func(n *Node) error { return removeAll(n, listAndAsk(n)) })},
		{"releases the only guard of a living address", "config small=1\n add 0\n leak 0\n add 1\n wipe 0\n plant 0 1 4\n gc", "I1",
			Policy(func(n *Node) error { return removeAll(n, listAndAsk(n)) })},
		{"releases what an earlier life of a living ID reserved", "add 1\n leak 1\n rename 0\n reuse 1 0 6\n finish 1\n wipe 0\n gc", "I1",
			Policy(func(n *Node) error { return removeAll(n, listAndAsk(n)) })},
		{"removes the namespace of the living", "config runtimes=2\n add 0 3\n gc", "I1", Policy(func(n *Node) error {
			for _, ns := range n.Kernel()[0].Kernel.Netns {
				if !ns.Host {
					_ = n.RemoveNetns(ns.Mounts[0], ns.ID)
				}
			}
			return nil
		})},
		{"leaves a leak", "add 0\n leak 0\n quiesce", "I2", liar{Duties{Reclaims: true}, func(*Node) error { return nil }, nil}},
		{"does not journal", "add 0\n leak 0\n gc", "I3", liar{all, func(n *Node) error { return removeAll(n, listAndAsk(n)) }, nil}},
		{"undo says it did", "add 0\n leak 0\n wait 4\n gc\n wait 4\n gc\n undo", "I3", undoes{NewHoldfast(), Report{Undone: []string{dataDir + "/podnet/10.0.0.2"}}}},
		{"undo does nothing", "add 0\n leak 0\n wait 4\n gc\n wait 4\n gc\n undo", "I3", undoes{NewHoldfast(), Report{}}},
		{"releases what is held", "add 0\n leak 0\n hold 0 0\n gc", "I3", liar{all, func(n *Node) error { return removeAll(n, listAndAsk(n)) }, nil}},
		{"makes a reservation", "gc", "I3", liar{all, func(n *Node) error {
			_ = n.w.disk.MkdirAll(dataDir + "/podnet")
			return n.w.disk.WriteFile(dataDir+"/podnet/10.0.0.9", []byte("x"))
		}, nil}},
		{"loses what it released", "add 0\n leak 0\n gc\n wait 4\n gc\n audit\n sync\n power 0 1", "I3", emptyQuarantine()},
		{"quarantine and journal differ", "add 0\n leak 0\n gc\n wait 4\n gc\n audit\n quiesce", "I4", emptyQuarantine()},
		{"asks nobody", "add 0\n leak 0\n gc", "I5", liar{Duties{Silence: true}, func(n *Node) error { return removeAll(n, n.List().Resources) }, nil}},
		{"asks before it lists", "add 0\n leak 0\n gc", "I6", liar{Duties{Silence: true}, func(n *Node) error {
			listAndAsk(n)
			return removeAll(n, n.List().Resources)
		}, nil}},
		{"does not hear silence", "add 0\n leak 0\n rt 0 1\n gc", "I5", liar{Duties{Silence: true}, func(n *Node) error { return removeAll(n, listAndAsk(n)) }, nil}},
		{"asks half before it lists", "add 0\n leak 0\n gc", "I6", liar{Duties{Silence: true}, func(n *Node) error {
			n.Kernel()
			list := n.List().Resources
			n.Runtimes(nil, true)
			if _, err := n.Boot(); err != nil {
				return err
			}
			return removeAll(n, list)
		}, nil}},
		{"does not see the host", "add 0\n leak 0\n witness 0 4\n gc", "I5", liar{Duties{Silence: true}, func(n *Node) error { return removeAll(n, listAndAsk(n)) }, nil}},
		{"saves another verdict", "add 0\n audit", "I10", forger{NewHoldfast(), "InUse", "Leaked"}},
		{"saves other evidence", "add 0\n leak 0\n gc", "I10", forger{NewHoldfast(), `"state":"complete"`, `"state":"silent"`}},
		{"saves what nobody can read", "audit", "I10", forger{NewHoldfast(), "{", "["}},
		{"does not mind its vantage", "add 0\n leak 0\n witness 0 2\n gc", "I13", liar{Duties{Silence: true}, func(n *Node) error { return removeAll(n, listAndAsk(n)) }, nil}},
		{"releases what a person wrote", "add 0\n leak 0\n plant 0 5 1\n gc", "I5", liar{Duties{Journals: true}, func(n *Node) error { return removeAll(n, listAndAsk(n)) }, nil}},
		{"releases by name", "config small=1\n add 0\n add 1\n add 2\n add 3\n add 4\n add 6\n leak 0\n @ask:2 del 5\n @ask:2 add 7\n @ask:2 leak 7\n gc", "I7", Policy(func(n *Node) error { return removeAll(n, listAndAsk(n)[:1]) })},
		{"releases half of an attachment", "config dual=1\n add 0\n leak 0\n gc", "I3", liar{all, func(n *Node) error { return n.Remove(listAndAsk(n)[0].Path) }, nil}},
		{"address first", "add 0\n crash 0\n forget 0\n gc", "I8", liar{all, func(n *Node) error { return removeAll(n, listAndAsk(n)) }, nil}},
		{"judges by what it heard before it listed", "add 0\n leak 0\n gc\n wait 4\n gc", "G1", second(func(n *Node, _ []claim.Resource) error {
			list := n.List().Resources
			n.Judged()
			askAll(n)
			return removeAll(n, list)
		})},
		{"one sighting", "add 0\n leak 0\n gc", "G2", gated(func(n *Node, list []claim.Resource) error {
			n.Judged()
			listAndAsk(n)
			return removeAll(n, list)
		})},
		{"no grace", "add 0\n leak 0\n gc\n wait 3\n gc", "G2", second(func(n *Node, list []claim.Resource) error {
			n.Judged()
			askAll(n)
			return removeAll(n, list)
		})},
		{"forgets that it was alive", "begin 0 0 6\n gc\n wait 2\n finish 0\n audit\n leak 0\n wait 3\n wait 2\n gc", "G2", second(func(n *Node, list []claim.Resource) error {
			n.Judged()
			askAll(n)
			return removeAll(n, list)
		})},
		{"does not ask again", "add 0\n leak 0\n gc\n wait 4\n gc", "G3", second(func(n *Node, list []claim.Resource) error {
			n.Judged()
			return removeAll(n, list)
		})},
		{"acts late", "add 0\n leak 0\n gc\n wait 4\n gc", "G3", second(func(n *Node, list []claim.Resource) error {
			n.Judged()
			askAll(n)
			n.w.pass(10*time.Second, true)
			return removeAll(n, list)
		})},
		{"no cap", "config cap=1\n add 0\n leak 0\n add 1\n leak 1\n gc\n wait 4\n gc", "G9", second(func(n *Node, list []claim.Resource) error {
			n.Judged()
			askAll(n)
			return removeAll(n, list)
		})},
		{"removes a namespace that nobody vouches for", "config runtimes=4\n add 0\n crash 0\n gc", "orphan", gated(func(n *Node, _ []claim.Resource) error {
			for _, ns := range n.w.namespaces {
				_ = n.RemoveNetns(ns.mount, ns.id)
			}
			return nil
		})},
		{"two at a time", "add 0\n leak 0\n @ask:2 gc\n gc", "I9", liar{all, func(n *Node) error { return removeAll(n, listAndAsk(n)) }, nil}},
		{"lets a network be full of the dead", full + "add 6 0 0", "full", liar{Duties{Reclaims: true}, func(*Node) error { return nil }, nil}},
		{"heals by releasing all", "config small=1 ipam=1\n add 0\n heal 0", "I1", heals{NewHoldfast()}},
		{"an allocator that never looks at the kernel", "config ipam=1\n add 0\n wipe 0\n add 1", "I11", badAllocator{NewHoldfast(), neverLooks}},
		{"an allocator that never looks, after a rename", "config ipam=1\n add 0\n rename 0\n add 1", "I11", badAllocator{NewHoldfast(), neverLooks}},
		{"an allocator that hands out what is taken", "config small=1 ipam=1\n add 0\n add 1\n add 2\n add 3\n add 4\n add 5\n add 6", "I11", badAllocator{NewHoldfast(), isKind}},
		{"an allocator that does not sync the directory", "config ipam=1\n add 0\n power 0 1\n add 0\n power 0 2\n add 0\n power 0 3\n add 0\n power 0 4", "alloc", badAllocator{NewHoldfast(), neverSyncs}},
		{"an allocator that writes in place", "config ipam=1\n add 0\n power 0 1\n add 0\n power 0 2\n add 0\n power 0 3", "alloc", badAllocator{NewHoldfast(), inPlace}},
		{"an allocator whose DEL lies", "config ipam=1\n add 0\n stop 0", "alloc", badAllocator{NewHoldfast(), delLies}},
	} {
		t.Run(r.name, func(t *testing.T) {
			s, err := ParseScript(r.script)
			if err != nil {
				t.Fatal(err)
			}
			res, err := Play(s, r.subject)
			if err != nil || res.Fail == nil || res.Fail.Invariant != r.want {
				t.Errorf("%v, %v; want a breach of %s", res.Fail, err, r.want)
			}
			if res, err := Play(s, NewHoldfast()); err != nil || res.Fail != nil {
				t.Errorf("the product: %v, %v", res.Fail, err)
			}
		})
	}
}

// forger is the product with something else in each saved document.
type forger struct {
	*Holdfast
	was, is string
}

func (f forger) Do(n *Node, c Command) Report {
	f.replay = 1
	r := f.Holdfast.Do(n, c)
	r.Saved = bytes.ReplaceAll(r.Saved, []byte(f.was), []byte(f.is))
	return r
}

// undoes is the product with an undo that only says something.
type undoes struct {
	*Holdfast
	says Report
}

func (u undoes) Do(n *Node, c Command) Report {
	if c.Verb == Undo {
		return u.says
	}
	return u.Holdfast.Do(n, c)
}

func emptyQuarantine() Subject {
	return spoiled{NewHoldfast(), func(n *Node) {
		names, _ := n.w.disk.List(quarantineDir)
		for _, name := range names {
			_ = n.FS().Unlinkat(unix.AT_FDCWD, quarantineDir+"/"+name, 0)
		}
	}}
}

// full is a network whose range holds nothing but the dead.
const full = "config small=1 ipam=1\n add 0\n add 1\n add 2\n add 3\n add 4\n add 5\n leak 0\n leak 1\n leak 2\n leak 3\n leak 4\n leak 5\n wait 4\n"

// badAllocator is the product with an allocator that is not.
type badAllocator struct {
	*Holdfast
	faults allocFault
}

func (b badAllocator) allocFaults() allocFault { return b.faults }

// heals is the product with a healer that judges nothing.
type heals struct{ *Holdfast }

func (h heals) Do(n *Node, c Command) Report {
	if c.Verb == Heal {
		return Report{Refused: removeAll(n, listAndAsk(n))}
	}
	return h.Holdfast.Do(n, c)
}
