package failpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxTimes = 1_000_000
	maxDelay = time.Hour
)

type kind string

const (
	kindOff   kind = "off"
	kindError kind = "error"
	kindPanic kind = "panic"
	kindDelay kind = "delay"
	kindKill  kind = "kill"
)

// action is what one passage brings about. The zero value is nothing.
type action struct {
	kind  kind
	text  string        // of error and panic
	delay time.Duration // of delay
}

// term is [N*]action.
type term struct {
	times int // 0: every time
	act   action
}

func (t term) String() string {
	s := string(t.act.kind)
	switch t.act.kind {
	case kindError, kindPanic:
		s += "(" + t.act.text + ")"
	case kindDelay:
		s += "(" + t.act.delay.String() + ")"
	}
	if t.times > 0 {
		s = strconv.Itoa(t.times) + "*" + s
	}
	return s
}

// SyntaxError is a line that is not of the form.
type SyntaxError struct {
	Line int // from 1
	Why  string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("line %d: %s; a line is: NAME [N*]off|error(TEXT)|panic(TEXT)|delay(DURATION)|kill, terms joined by ->", e.Line, e.Why)
}

// take reads the text of a file and returns what it says about the passage of a point, and
// the text that holds for the next one. The whole text must be well formed.
func take(text string, p Point) (action, string, error) {
	var act action
	names := Names()
	seen := map[Point]bool{}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		fail := func(format string, args ...any) (action, string, error) {
			return action{}, "", &SyntaxError{i + 1, fmt.Sprintf(format, args...)}
		}
		name, said, _ := strings.Cut(trimmed, " ")
		at := Point(name)
		switch {
		case !slices.Contains(names, at):
			return fail("there is no point %q", name)
		case seen[at]:
			return fail("%q is named twice", name)
		}
		seen[at] = true
		terms, err := parseTerms(strings.TrimSpace(said))
		if err != nil {
			return fail("%v", err)
		}
		if at != p {
			continue
		}
		act = terms[0].act
		if terms[0].times == 0 {
			continue
		}
		if terms[0].times--; terms[0].times == 0 {
			terms = terms[1:]
		}
		lines[i] = name + " " + format(terms)
	}
	return act, strings.Join(lines, "\n"), nil
}

func format(terms []term) string {
	if len(terms) == 0 {
		return string(kindOff)
	}
	words := make([]string, len(terms))
	for i, t := range terms {
		words[i] = t.String()
	}
	return strings.Join(words, "->")
}

func parseTerms(s string) ([]term, error) {
	var terms []term
	for {
		t, rest, err := parseTerm(s)
		if err != nil {
			return nil, err
		}
		terms = append(terms, t)
		if rest == "" {
			return terms, nil
		}
		var ok bool
		if s, ok = strings.CutPrefix(rest, "->"); !ok {
			return nil, fmt.Errorf("%q stands where -> or the end should", rest)
		}
	}
}

// parseTerm reads the first term of s and returns what follows it.
func parseTerm(s string) (t term, rest string, err error) {
	whole := s
	if digits := len(s) - len(strings.TrimLeft(s, "0123456789")); digits > 0 {
		n, err := strconv.Atoi(s[:digits])
		if err != nil || n < 1 || n > maxTimes || !strings.HasPrefix(s[digits:], "*") {
			return t, "", fmt.Errorf("%q does not begin with N*, N from 1 to %d", whole, maxTimes)
		}
		t.times, s = n, s[digits+1:]
	}
	word := s[:len(s)-len(strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz"))]
	s = s[len(word):]
	t.act.kind = kind(word)
	switch t.act.kind {
	case kindOff, kindKill:
		return t, s, nil
	case kindError, kindPanic, kindDelay:
	default:
		return t, "", fmt.Errorf("%q begins with no action", whole)
	}
	arg, rest, ok := strings.Cut(strings.TrimPrefix(s, "("), ")")
	if !ok || !strings.HasPrefix(s, "(") || arg == "" || strings.ContainsFunc(arg, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return t, "", fmt.Errorf("%q: %s needs an argument in parentheses", whole, word)
	}
	if t.act.kind != kindDelay {
		t.act.text = arg
		return t, rest, nil
	}
	t.act.delay, err = time.ParseDuration(arg)
	if err != nil || t.act.delay < 0 || t.act.delay > maxDelay {
		return t, "", fmt.Errorf("%q: no duration from 0 to %v", arg, maxDelay)
	}
	return t, rest, nil
}
