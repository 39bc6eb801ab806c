package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// writeJSON writes indented JSON with every rune as it is, but no control or format
// character raw: encoding/json leaves DEL, C1 controls and text-direction marks as they
// are, and a terminal would obey them.
//
// The documents whose lists are as long as a node is full are written an element at a
// time: encoding/json would hold all of the text, and twice to indent it. With an error
// w may have got a part.
func writeJSON(w io.Writer, doc any) error {
	s := stream{w: bufio.NewWriterSize(w, 64<<10)}
	s.enc = json.NewEncoder(&s.buf)
	s.enc.SetEscapeHTML(false)
	if err := s.value(reflect.ValueOf(doc), ""); err != nil {
		return err
	}
	_ = s.w.WriteByte('\n') // Flush says what failed
	return s.w.Flush()
}

// marshal is writeJSON into memory.
func marshal(doc any) ([]byte, error) {
	var b bytes.Buffer
	err := writeJSON(&b, doc)
	return b.Bytes(), err
}

type stream struct {
	w   *bufio.Writer
	enc *json.Encoder // into buf
	buf bytes.Buffer
}

// long are the types that hold, at whatever depth, lists as long as a node is full. Their
// fields are written one by one; they must have no JSON methods of their own.
func long(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[api.Audit](), reflect.TypeFor[api.Sweep](), reflect.TypeFor[verdict.Case](), reflect.TypeFor[claim.Snapshot]():
		return true
	}
	return false
}

// value writes v; indent stands before its further lines.
func (s *stream) value(v reflect.Value, indent string) error {
	for v.Kind() == reflect.Pointer && !v.IsNil() && long(v.Type().Elem()) {
		v = v.Elem()
	}
	switch {
	case !v.IsValid():
		return s.leaf(nil, indent)
	case long(v.Type()):
		return s.structure(v, indent)
	case v.CanAddr():
		return s.leaf(v.Addr().Interface(), indent)
	}
	return s.leaf(v.Interface(), indent)
}

// leaf leaves v to encoding/json.
func (s *stream) leaf(v any, indent string) error {
	s.buf.Reset()
	s.enc.SetIndent(indent, "  ")
	if err := s.enc.Encode(v); err != nil {
		return err
	}
	_, _ = s.w.Write(escape(bytes.TrimSuffix(s.buf.Bytes(), []byte{'\n'})))
	return nil
}

func (s *stream) structure(v reflect.Value, indent string) error {
	list := fields(v)
	if len(list) == 0 {
		return s.leaf(struct{}{}, indent)
	}
	within := indent + "  "
	for i, f := range list {
		_, _ = fmt.Fprintf(s.w, "%s\n%s%q: ", []string{"{", ","}[min(i, 1)], within, f.name)
		if err := s.field(f.value, within); err != nil {
			return err
		}
	}
	_, _ = s.w.WriteString("\n" + indent + "}")
	return nil
}

// field writes a field, of a list each element for itself.
func (s *stream) field(v reflect.Value, indent string) error {
	if v.Kind() != reflect.Slice || v.Len() == 0 || v.Type().Elem().Kind() == reflect.Uint8 {
		return s.value(v, indent)
	}
	within := indent + "  "
	for i := range v.Len() {
		_, _ = s.w.WriteString([]string{"[", ","}[min(i, 1)] + "\n" + within)
		if err := s.value(v.Index(i), within); err != nil {
			return err
		}
	}
	_, _ = s.w.WriteString("\n" + indent + "]")
	return nil
}

type field struct {
	name  string
	value reflect.Value
}

// fields lists the fields of a struct as encoding/json does, those of embedded structs
// in their place.
func fields(v reflect.Value) []field {
	var out []field
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag := strings.Split(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag[0] == "":
			out = append(out, fields(v.Field(i))...)
		case slices.Contains(tag, "omitempty") && isEmpty(v.Field(i)) || slices.Contains(tag, "omitzero") && v.Field(i).IsZero():
		default:
			out = append(out, field{tag[0], v.Field(i)})
		}
	}
	return out
}

// isEmpty is encoding/json's omitempty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// escape escapes in JSON what must be escaped for a terminal.
func escape(b []byte) []byte {
	if bytes.IndexFunc(b, mustEscape) < 0 {
		return b
	}
	out := make([]byte, 0, len(b)+64)
	for _, r := range string(b) {
		switch {
		case !mustEscape(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// mustEscape: such a rune can only stand inside a JSON string here, since the encoder's
// own layout uses blanks and newlines alone.
func mustEscape(r rune) bool {
	return r >= 0x7f && report.Clean(string(r)) != string(r)
}
