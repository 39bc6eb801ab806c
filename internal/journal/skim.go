package journal

import (
	"net/netip"
	"strings"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Of nearly every line only its type, its release and its outcome are of interest. skim
// finds them in what this package writes at a tenth of the price of encoding/json, and
// checks the rest as that would. Whatever is out of the ordinary it leaves to encoding/json:
// blanks, null, an unknown field, fields in another order, a negative number.

// fieldKind is what stands behind a field's name.
type fieldKind byte

const (
	ofText   fieldKind = iota
	ofBytes            // base64
	ofAddr             // netip.Addr
	ofTime             // time.Time
	ofInt              // int64 or uint64, from 0 to the largest int64
	ofBool             //
	ofObject           // with the fields of sub
	ofList             // of such objects
)

// field is one field of a struct. A table is in the order of the struct, which is that of
// encoding/json.
type field struct {
	name string
	kind fieldKind
	sub  []field
}

// The fields of Record that skim returns, by their place in recordFields.
const (
	typeField, releaseIDField, releaseField, outcomeField, incField = 0, 3, 4, 5, 8
)

func recordFields() []field {
	instant := []field{{"boot", ofText, nil}, {"mono", ofInt, nil}, {"wall", ofTime, nil}}
	inc := []field{{"dev", ofInt, nil}, {"ino", ofInt, nil}, {"ctime", ofInt, nil}, {"size", ofInt, nil}, {"sum", ofText, nil}}
	release := []field{
		{"kind", ofText, nil}, {"store", ofText, nil}, {"path", ofText, nil}, {"network", ofText, nil}, {"addr", ofAddr, nil},
		{"owner", ofObject, []field{{"shape", ofText, nil}, {"id", ofText, nil}, {"ifName", ofText, nil}}},
		{"attachment", ofObject, []field{{"network", ofText, nil}, {"containerID", ofText, nil}, {"ifName", ofText, nil}}},
		{"inc", ofObject, inc},
		{"pod", ofObject, []field{{"namespace", ofText, nil}, {"name", ofText, nil}, {"uid", ofText, nil}}},
		{"verdict", ofText, nil}, {"rule", ofText, nil}, {"why", ofText, nil},
		{"says", ofList, []field{{"witness", ofText, nil}, {"word", ofText, nil}, {"detail", ofText, nil}}},
		{"firstSeen", ofObject, instant},
		{"cache", ofObject, []field{{"path", ofText, nil}, {"content", ofBytes, nil}}},
		{"undoes", ofText, nil},
	}
	return []field{
		{"type", ofText, nil}, {"at", ofObject, instant}, {"sweep", ofText, nil}, {"releaseID", ofText, nil}, {"release", ofObject, release},
		{"outcome", ofText, nil}, {"detail", ofText, nil},
		{"steps", ofList, []field{{"step", ofText, nil}, {"object", ofText, nil}, {"state", ofText, nil}, {"detail", ofText, nil}, {"irreversible", ofBool, nil}}},
		{"inc", ofObject, inc},
	}
}

// skim returns type, release ID and outcome of a record's JSON, and a release without
// content if it has one. False: encoding/json must say what it is.
func skim(fields []field, json []byte) (Record, bool) {
	s := skimmer{b: json}
	var raw [9][]byte
	if !s.object(fields, raw[:]) || s.at != len(s.b) {
		return Record{}, false
	}
	r := Record{Type: Type(unquoted(raw[typeField])), ReleaseID: unquoted(raw[releaseIDField]), Outcome: unquoted(raw[outcomeField])}
	if raw[releaseField] != nil {
		r.Release = &Release{}
	}
	if raw[incField] != nil {
		r.Inc.Size = 1
	}
	// An escape in one of them does not pass this either.
	ok := r.check() == nil
	r.Inc = claim.Incarnation{}
	return r, ok
}

func unquoted(b []byte) string {
	if len(b) < 2 {
		return ""
	}
	return string(b[1 : len(b)-1])
}

const maxInt = "9223372036854775807"

type skimmer struct {
	b  []byte
	at int
}

// is takes c if it is next.
func (s *skimmer) is(c byte) bool {
	if s.at < len(s.b) && s.b[s.at] == c {
		s.at++
		return true
	}
	return false
}

// object takes an object of fields and puts the text of their values into raw, unless nil.
func (s *skimmer) object(fields []field, raw [][]byte) bool {
	if !s.is('{') {
		return false
	}
	if s.is('}') {
		return true
	}
	for i := 0; ; i++ {
		start := s.at
		if !s.text() {
			return false
		}
		name := s.b[start+1 : s.at-1]
		for i < len(fields) && fields[i].name != string(name) {
			i++
		}
		if i == len(fields) || !s.is(':') {
			return false
		}
		start = s.at
		if !s.value(&fields[i]) {
			return false
		}
		if raw != nil {
			raw[i] = s.b[start:s.at]
		}
		if s.is('}') {
			return true
		}
		if !s.is(',') {
			return false
		}
	}
}

func (s *skimmer) value(f *field) bool {
	start := s.at
	switch f.kind {
	case ofObject:
		return s.object(f.sub, nil)
	case ofList:
		return s.list(f.sub)
	case ofInt:
		return s.integer()
	case ofBool:
		return s.word("true") || s.word("false")
	}
	if !s.text() {
		return false
	}
	switch text := s.b[start+1 : s.at-1]; f.kind {
	case ofBytes:
		return isBase64(text)
	case ofAddr:
		_, err := netip.ParseAddr(string(text))
		return err == nil || len(text) == 0
	case ofTime:
		return new(time.Time).UnmarshalJSON(s.b[start:s.at]) == nil
	}
	return true
}

func (s *skimmer) list(of []field) bool {
	if !s.is('[') {
		return false
	}
	if s.is(']') {
		return true
	}
	for s.object(of, nil) {
		if s.is(']') {
			return true
		}
		if !s.is(',') {
			return false
		}
	}
	return false
}

func (s *skimmer) word(w string) bool {
	if strings.HasPrefix(string(s.b[s.at:min(len(s.b), s.at+len(w))]), w) {
		s.at += len(w)
		return true
	}
	return false
}

// integer takes a number that fits whatever the field's type is: no sign, since a uint64
// has none.
func (s *skimmer) integer() bool {
	start := s.at
	for s.at < len(s.b) && s.b[s.at] >= '0' && s.b[s.at] <= '9' {
		s.at++
	}
	n := s.at - start
	return n > 0 && (s.b[start] != '0' || n == 1) && (n < len(maxInt) || n == len(maxInt) && string(s.b[start:s.at]) <= maxInt)
}

// text takes a string.
func (s *skimmer) text() bool {
	if !s.is('"') {
		return false
	}
	for ; s.at < len(s.b); s.at++ {
		switch c := s.b[s.at]; {
		case c == '"':
			s.at++
			return true
		case c < ' ':
			return false
		case c == '\\':
			if s.at++; !s.escape() {
				return false
			}
		}
	}
	return false
}

// escape looks at what is behind a backslash, and leaves its last byte to take.
func (s *skimmer) escape() bool {
	if s.at == len(s.b) {
		return false
	}
	if s.b[s.at] != 'u' {
		return strings.IndexByte(`"\/bfnrt`, s.b[s.at]) >= 0
	}
	for range 4 {
		if s.at++; s.at >= len(s.b) || strings.IndexByte("0123456789abcdefABCDEF", s.b[s.at]) < 0 {
			return false
		}
	}
	return true
}

func isBase64(text []byte) bool {
	if len(text)%4 != 0 {
		return false
	}
	for i, c := range text {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '+', c == '/':
		case c == '=' && (i == len(text)-1 || i == len(text)-2 && text[i+1] == '='):
		default:
			return false
		}
	}
	return true
}
