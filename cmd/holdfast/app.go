package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// app is one run of the command: its streams and its flags.
type app struct {
	stdin          *os.File
	stdout, stderr *os.File
	opts           *options
	colour         bool
	// sink, unless nil, takes the messages for people instead of stderr.
	sink func(text string)
	// args are the command line's, without the program's name.
	args []string
	// served, unless nil, is the agent in whose process this command runs.
	served *service
}

func newApp(stdin, stdout, stderr *os.File) *app {
	return &app{
		stdin: stdin, stdout: stdout, stderr: stderr, opts: &options{},
		// https://no-color.org: any value that is not empty turns colour off.
		colour: isTerminal(stdout) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
	}
}

func isTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

// say writes a message for people.
func (a *app) say(format string, args ...any) {
	text := report.Clean(fmt.Sprintf(format, args...))
	if a.sink != nil {
		a.sink(text)
		return
	}
	fmt.Fprintln(a.stderr, "holdfast: "+text)
}

// isText reports whether the output is for people.
func (a *app) isText() bool { return a.opts.output == "table" || a.opts.output == "wide" }

func (a *app) wide() bool { return a.opts.output == "wide" }

// emit writes a document in the format asked for; text writes it for people.
func (a *app) emit(doc any, text func(w io.Writer)) error {
	var err error
	switch a.opts.output {
	case "json":
		err = writeJSON(a.stdout, doc)
	case "yaml":
		var b []byte
		if b, err = marshalYAML(doc); err == nil {
			_, err = a.stdout.Write(b)
		}
	default:
		w := bufio.NewWriterSize(a.stdout, 64<<10)
		text(w)
		err = w.Flush()
	}
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	return nil
}

// encode gives indented JSON with every rune as it is.
func encode(doc any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(doc)
	return buf.Bytes(), err
}

// yamlMark is what stands for a rune while the YAML encoder works, which takes format
// characters for printable: U+0002 makes it quote the string and comes out as "\x02".
var yamlMark = regexp.MustCompile(`\\x02([0-9a-f]{8})`)

// marshalYAML is as tame as marshal.
func marshalYAML(doc any) ([]byte, error) {
	b, err := encode(doc)
	if err != nil {
		return nil, err
	}
	var tree any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	if b, err = encode(markRunes(tree)); err != nil {
		return nil, err
	}
	if b, err = yaml.JSONToYAML(b); err != nil {
		return nil, err
	}
	return yamlMark.ReplaceAll(b, []byte(`\U$1`)), nil
}

// markRunes replaces in every string the runes that must be escaped, and U+0002 itself.
func markRunes(v any) any {
	switch v := v.(type) {
	case string:
		if !strings.ContainsFunc(v, func(r rune) bool { return r == 2 || mustEscape(r) }) {
			return v
		}
		var out strings.Builder
		for _, r := range v {
			if r == 2 || mustEscape(r) {
				fmt.Fprintf(&out, "\x02%08x", r)
			} else {
				out.WriteRune(r)
			}
		}
		return out.String()
	case []any:
		for i := range v {
			v[i] = markRunes(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			if key, ok := markRunes(k).(string); ok {
				out[key] = markRunes(e)
			}
		}
		return out
	}
	return v
}

// table writes a table with aligned columns, coloured by verdict on a terminal.
func (a *app) table(w io.Writer, t report.Table) {
	a.rows(w, t.Header, widthsOf(t.Header, t.All()), t.All())
}

// widthsOf measures the columns.
func widthsOf(header []string, rows iter.Seq2[string, []string]) []int {
	widths := make([]int, len(header))
	measure := func(row []string) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	measure(header)
	for _, row := range rows {
		measure(row)
	}
	return widths
}

// rows is table for rows that are made as they are asked for.
func (a *app) rows(w io.Writer, header []string, widths []int, rows iter.Seq2[string, []string]) {
	var line []byte
	write := func(row []string, tint string) {
		line = append(line[:0], tint...)
		for i, cell := range row {
			line = append(line, cell...)
			if i+1 < len(row) {
				for range widths[i] - utf8.RuneCountInString(cell) + 2 {
					line = append(line, ' ')
				}
			}
		}
		line = bytes.TrimRight(line, " ")
		// Colours go around whole lines, after the columns are laid out.
		if tint != "" {
			line = append(line, "\x1b[0m"...)
		}
		line = append(line, '\n')
		_, _ = w.Write(line) // a buffer, whose user sees what fails
	}
	bold := ""
	if a.colour {
		bold = "\x1b[1m"
	}
	write(header, bold)
	for mark, row := range rows {
		write(row, a.tint(mark))
	}
}

func (a *app) tint(mark string) string {
	if !a.colour {
		return ""
	}
	switch verdict.Verdict(mark) {
	case verdict.Conflict, verdict.Missing, verdict.Leaked, verdict.Orphaned:
		return "\x1b[31m"
	case verdict.Suspect, verdict.Malformed, verdict.Foreign, "Unknown":
		return "\x1b[33m"
	case verdict.InUse, verdict.Held:
		return ""
	}
	return ""
}

// ask asks a yes-or-no question at the terminal; anything but y or yes is no.
func (a *app) ask(question string) bool {
	fmt.Fprint(a.stderr, report.Clean(question)+" [y/N] ")
	var answer string
	if _, err := fmt.Fscanln(a.stdin, &answer); err != nil {
		return false
	}
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes"
}

// interactive: a person can be asked.
func (a *app) interactive() bool { return isTerminal(a.stdin) && isTerminal(a.stderr) }

func nodeName() string {
	h, err := os.Hostname()
	if err != nil {
		return ""
	}
	return h
}

// ago is for messages: whole seconds.
func seconds(d time.Duration) string { return d.Round(time.Second).String() }
