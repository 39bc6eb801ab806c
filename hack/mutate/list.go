package main

import "slices"

// mutation takes one gate away.
type mutation struct {
	Gate  string // the number of docs/design.md's gate, an invariant, or a rule's name
	What  string
	Edits []edit
	// Tests, by package below internal/: those that match must fail.
	Tests map[string]string
	// Blind: the simulator cannot reach it, or not within few seeds; tests must notice.
	Blind bool
}

// edit replaces Old, which stands exactly once in File and within one function, by New.
type edit struct{ File, Old, New string }

func mutations() []mutation {
	return slices.Concat(judgeMutations(), engineMutations(), adoptMutations(), ipamMutations(), kubeMutations(), lineMutations())
}

// one is a mutation of one edit.
func one(gate, what, file, before, after string) mutation {
	return mutation{Gate: gate, What: what, Edits: []edit{{file, before, after}}}
}

// by names the tests of a mutation.
func (m mutation) by(pkg, tests string) mutation {
	m.Tests = map[string]string{pkg: tests}
	return m
}

// blind says that the simulator need not notice.
func (m mutation) blind() mutation {
	m.Blind = true
	return m
}

// and adds an edit.
func (m mutation) and(file, before, after string) mutation {
	m.Edits = append(m.Edits, edit{file, before, after})
	return m
}
