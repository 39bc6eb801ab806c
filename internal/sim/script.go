package sim

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// site is where an operation happens.
type site byte

const (
	atOnce site = iota
	atFile      // before the k-th file call of the next command
	atAsk       // before the k-th question to the witnesses of the next command
	atLock      // before the k-th time that it takes the lock of a store
	atMove      // before the k-th time that it renames something into the quarantine
)

// Op is one operation of a script.
type Op struct {
	At   site
	K    int // for all but atOnce, from 1
	Name string
	Args [3]int
	// Text is what an expectation, or config, says.
	Text string
}

// String is the operation as a script spells it.
func (o Op) String() string {
	var b strings.Builder
	switch o.At {
	case atFile:
		fmt.Fprintf(&b, "@file:%d ", o.K)
	case atAsk:
		fmt.Fprintf(&b, "@ask:%d ", o.K)
	case atLock:
		fmt.Fprintf(&b, "@lock:%d ", o.K)
	case atMove:
		fmt.Fprintf(&b, "@move:%d ", o.K)
	}
	b.WriteString(o.Name)
	if o.Text != "" {
		return b.String() + " " + o.Text
	}
	n := len(o.Args)
	if d := opByName(o.Name); d != nil {
		n = len(d.max)
	}
	for _, a := range o.Args[:n] {
		fmt.Fprintf(&b, " %d", a)
	}
	return b.String()
}

// Script is a list of operations.
type Script []Op

// String is the script as a file of testdata.
func (s Script) String() string {
	var b strings.Builder
	for _, o := range s {
		b.WriteString(o.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// ParseScript reads a script: one operation a line, "#" begins a comment.
func ParseScript(text string) (Script, error) {
	var out Script
	sc := bufio.NewScanner(strings.NewReader(text))
	for n := 1; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		o, err := parseOp(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		out = append(out, o)
	}
	return out, sc.Err()
}

func parseOp(fields []string) (Op, error) {
	var o Op
	if where, ok := strings.CutPrefix(fields[0], "@"); ok {
		kind, k, _ := strings.Cut(where, ":")
		n, err := strconv.Atoi(k)
		if err != nil || n < 1 || len(fields) < 2 {
			return o, fmt.Errorf("%q: want @file:K, @ask:K, @lock:K or @move:K and an operation", fields[0])
		}
		o.K = n
		switch kind {
		case "file":
			o.At = atFile
		case "ask":
			o.At = atAsk
		case "lock":
			o.At = atLock
		case "move":
			o.At = atMove
		default:
			return o, fmt.Errorf("%q: want @file:K, @ask:K, @lock:K or @move:K", fields[0])
		}
		fields = fields[1:]
	}
	o.Name = fields[0]
	if o.Name == "expect" || o.Name == "config" {
		o.Text = strings.Join(fields[1:], " ")
		return o, nil
	}
	d := opByName(o.Name)
	if d == nil {
		return o, fmt.Errorf("there is no operation %q", o.Name)
	}
	if len(fields)-1 > len(d.max) {
		return o, fmt.Errorf("%s: %d arguments, at most %d", o.Name, len(fields)-1, len(d.max))
	}
	for i, f := range fields[1:] {
		v, err := strconv.Atoi(f)
		if err != nil || v < 0 {
			return o, fmt.Errorf("%s: argument %q is no number from 0", o.Name, f)
		}
		o.Args[i] = v
	}
	return o, nil
}

func opByName(name string) *opDef {
	table := ops()
	i := slices.IndexFunc(table, func(d opDef) bool { return d.name == name })
	if i < 0 {
		return nil
	}
	return &table[i]
}
