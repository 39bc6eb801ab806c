package journal

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

// skimmed are what skim returns of a record.
func skimmed(r Record) Record {
	out := Record{Type: r.Type, ReleaseID: r.ReleaseID, Outcome: r.Outcome}
	if r.Release != nil {
		out.Release = &Release{}
	}
	return out
}

// What this package writes is skimmed, and not left to encoding/json.
func TestSkimReadsWhatIsWritten(t *testing.T) {
	full := intent(1)
	full.Release.Cache = &CacheFile{Path: "/c\"\\\u2028<&>", Content: []byte("any\x00bytes")}
	full.Release.Why, full.Release.Says = "\x1b\xff", []Say{{Witness: "kernel", Word: "absent", Detail: "x"}, {}}
	full.Release.Inc.Ctime, full.Release.Inc.Ino = 1796019697000000000, 1<<63-1
	done := outcome(1, OutcomeReleased)
	done.Detail, done.Steps = "d", []StepResult{{Step: "netns", State: StepDone, Irreversible: true}, {}}
	empty := full
	empty.Release = &Release{}
	for _, r := range []Record{full, empty, done, intent(2), outcome(2, OutcomeGone), undo(UndoIntent, 2, ""), undo(UndoOutcome, 2, UndoTaken), adopt(3), adopted(3, AdoptAdopted), adopted(3, AdoptFailed)} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := skim(recordFields(), b); !ok || !reflect.DeepEqual(got, skimmed(r)) {
			t.Errorf("%s is skimmed as %+v, %v", b, got, ok)
		}
	}
}

// The tables have every field of the structs, in their order.
func TestSkimKnowsEveryField(t *testing.T) {
	if want := fieldsOf(reflect.TypeFor[Record]()); !reflect.DeepEqual(recordFields(), want) {
		t.Errorf("the table is %v, want %v", recordFields(), want)
	}
	for i, name := range map[int]string{typeField: "type", releaseIDField: "releaseID", releaseField: "release", outcomeField: "outcome", incField: "inc"} {
		if recordFields()[i].name != name {
			t.Errorf("field %d is not %s", i, name)
		}
	}
}

func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		typ := f.Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		x := field{name: name}
		switch {
		case typ == reflect.TypeFor[netip.Addr]():
			x.kind = ofAddr
		case typ == reflect.TypeFor[time.Time]():
			x.kind = ofTime
		case typ == reflect.TypeFor[[]byte]():
			x.kind = ofBytes
		case typ.Kind() == reflect.Slice:
			x.kind, x.sub = ofList, fieldsOf(typ.Elem())
		case typ.Kind() == reflect.Struct:
			x.kind, x.sub = ofObject, fieldsOf(typ)
		case typ.Kind() == reflect.Int64 || typ.Kind() == reflect.Uint64:
			x.kind = ofInt
		case typ.Kind() == reflect.Bool:
			x.kind = ofBool
		case typ.Kind() != reflect.String:
			x.name += ": " + typ.String() + " is not known to skim"
		}
		out = append(out, x)
	}
	return out
}

// FuzzSkim: what skim takes encoding/json takes too, for the same.
func FuzzSkim(f *testing.F) {
	full := intent(1)
	full.Release.Cache = &CacheFile{Path: "/c", Content: []byte("abcd")}
	full.Release.Says = []Say{{Witness: "kernel", Word: "absent", Detail: "x"}}
	for _, r := range []Record{full, intent(2), outcome(1, OutcomeReleased), undo(UndoIntent, 1, ""), undo(UndoOutcome, 1, UndoTaken), adopt(3), adopted(3, AdoptAdopted)} {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{
		`{"type":"intent","releaseID":"20261130-062137-1a2b3c","release":{"inc":{"ino":9223372036854775807,"ctime":9223372036854775808}}}`,
		`{"type":"outcome","at":{"mono":0,"wall":"2026-02-30T00:00:00Z"},"releaseID":"20261130-062137-1a2b3c","outcome":"gone"}`,
		`{"type":"outcome","releaseID":"20261130-062137-1a2b3c","outcome":"gone","steps":[{"irreversible":true},{"state":"\ud800"}]}`,
		`{"type":"intent","releaseID":"20261130-062137-1a2b3c","release":{"addr":"fe80::1%","inc":{"ino":18446744073709551615,"size":-1},"cache":{"content":"AA=="}}}`,
		`{"type":"intent","releaseID":"20261130-062137-1a2b3c","release":{"cache":{"content":"A==="},"addr":"1"},"Release":{}}`,
	} {
		f.Add([]byte(s))
	}
	fields := recordFields()
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := skim(fields, b)
		if !ok {
			return
		}
		var r Record
		if err := json.Unmarshal(b, &r); err != nil || r.check() != nil {
			t.Fatalf("%q is skimmed and no record: %v, %v", b, err, r.check())
		}
		if !reflect.DeepEqual(got, skimmed(r)) {
			t.Fatalf("%q is skimmed as %+v and read as %+v", b, got, r)
		}
	})
}
