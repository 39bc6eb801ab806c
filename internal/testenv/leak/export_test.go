package leak

import "testing"

// Trial is a ledger of a test's own, to plant something in.
type Trial struct{ l ledger }

// Begin takes down what is there now.
func (tr *Trial) Begin(t *testing.T) { tr.l.enter(t.Name()) }

// Own is the function Own for this ledger.
func (tr *Trial) Own(names ...string) { tr.l.own(names...) }

// Left returns at once what is there now and was not.
func (tr *Trial) Left() []Finding { return tr.l.left() }

// End returns what is left after some time to settle.
func (tr *Trial) End(t *testing.T) []Finding { return tr.l.leave(t.Name()) }
