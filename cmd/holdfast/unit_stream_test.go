package main

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// fill sets every field below v; lists get two elements.
func fill(v reflect.Value, depth int) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)
		return
	case *netip.Addr:
		*x = netip.MustParseAddr("10.1.0.2")
		return
	case *netip.Prefix:
		*x = netip.MustParsePrefix("10.1.0.0/16")
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x <&> Grüße \" \\")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(7)
	case reflect.Uint64, reflect.Uint32, reflect.Uint8:
		v.SetUint(7)
	case reflect.Pointer:
		if depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth-1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), depth-1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e, depth-1)
		v.SetMapIndex(reflect.ValueOf("k").Convert(v.Type().Key()), e)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), depth)
			}
		}
	}
}

// What is written an element at a time is what encoding/json writes in one piece.
func TestStreamIsTheDocument(t *testing.T) {
	var audit api.Audit
	var sweep api.Sweep
	fill(reflect.ValueOf(&audit).Elem(), 8)
	fill(reflect.ValueOf(&sweep).Elem(), 8)
	if len(audit.Evidence.Snapshots[1].Resources) != 2 || audit.Evidence.Memory[1].Path == "" || audit.Evidence.Snapshots[1].Resources[1].Cache == nil {
		t.Fatalf("not filled: %+v", audit.Evidence)
	}
	gaps := audit
	gaps.Resources, gaps.Networks, gaps.Summary, gaps.Evidence = nil, []api.Network{}, nil, &verdict.Case{Memory: verdict.Memory{nil}}
	for name, doc := range map[string]any{
		"audit": &audit, "audit, not by pointer": audit, "audit with gaps": &gaps, "empty audit": &api.Audit{}, "no audit": (*api.Audit)(nil),
		"sweep": &sweep, "empty sweep": &api.Sweep{}, "another document": &api.Explanation{}, "nothing": nil, "case": audit.Evidence,
	} {
		want, err := encode(doc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := marshal(doc)
		if d := cmp.Diff(string(want), string(got)); err != nil || d != "" {
			t.Errorf("%s: %v %s", name, err, d)
		}
	}
}

// An element that has no JSON, and a reader that has gone away, are errors.
func TestStreamFails(t *testing.T) {
	if _, err := marshal(&api.Audit{Evidence: &verdict.Case{Memory: verdict.Memory{{}, {First: claim.Instant{Wall: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}}}}}); err == nil {
		t.Error("the year 10000 has no JSON")
	}
	full := errors.New("full")
	if err := writeJSON(writer(func([]byte) (int, error) { return 0, full }), &api.Audit{}); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
