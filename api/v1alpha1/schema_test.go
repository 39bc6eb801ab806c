package v1alpha1_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
)

const schemaFile = "schema.json"

var update = flag.Bool("update", false, "write schema.json from the Go types")

// kinds are the documents, by the kind that they carry.
func kinds() map[string]reflect.Type {
	return map[string]reflect.Type{
		api.KindAudit:       reflect.TypeFor[api.Audit](),
		api.KindSweep:       reflect.TypeFor[api.Sweep](),
		api.KindExplanation: reflect.TypeFor[api.Explanation](),
		api.KindJournal:     reflect.TypeFor[api.Journal](),
		api.KindUndo:        reflect.TypeFor[api.Undo](),
		api.KindDoctor:      reflect.TypeFor[api.Doctor](),
		api.KindHolds:       reflect.TypeFor[api.Holds](),
		api.KindRuntimes:    reflect.TypeFor[api.Runtimes](),
		api.KindStops:       reflect.TypeFor[api.Stops](),
		api.KindVersion:     reflect.TypeFor[api.Version](),
		api.KindFleet:       reflect.TypeFor[api.Fleet](),
		api.KindMap:         reflect.TypeFor[api.Map](),
		api.KindStatus:      reflect.TypeFor[api.Status](),

		api.KindAgentConfiguration: reflect.TypeFor[api.AgentConfiguration](),
	}
}

// object is a JSON object as a schema is made of.
type object = map[string]any

// generator makes a JSON Schema from the Go types. Our own types are closed and their
// lists are never null; what lies under evidence belongs to the judge and is open.
type generator struct {
	defs object
	docs map[string]string // "Type" and "Type.Field" of package api
}

func own(t reflect.Type) bool { return strings.HasSuffix(t.PkgPath(), "/api/v1alpha1") }

func defName(t reflect.Type) string {
	if own(t) {
		return t.Name()
	}
	// "verdict.Case" of internal/verdict: a Hold is in both.
	return "evidence." + t.String()
}

func (g *generator) schema(t reflect.Type, within bool) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "description": "nanoseconds"}
	case t == reflect.TypeFor[netip.Addr](), t == reflect.TypeFor[netip.Prefix]():
		return object{"type": "string"}
	case t.Kind() != reflect.Struct && t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.schema(t.Elem(), within)
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		s := object{"type": "array", "items": g.schema(t.Elem(), within)}
		if !within {
			s["type"] = []any{"array", "null"}
		}
		return s
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schema(t.Elem(), within)}
	case reflect.Struct:
		name := defName(t)
		if _, ok := g.defs[name]; !ok {
			g.defs[name] = nil // a type that holds itself ends here
			g.defs[name] = g.structure(t)
		}
		return object{"$ref": "#/$defs/" + name}
	}
	panic("no schema for " + t.String())
}

func (g *generator) structure(t reflect.Type) object {
	props, required := object{}, []any{}
	for _, f := range fieldsOf(t) {
		s := g.schema(f.typ, own(t))
		if d := g.docs[f.of.Name()+"."+f.goName]; d != "" && own(f.of) {
			s["description"] = d
		}
		switch {
		case f.name == "apiVersion" && own(t):
			s["const"] = api.APIVersion
		case f.name == "kind" && kinds()[t.Name()] == t:
			s["const"] = t.Name()
		}
		props[f.name] = s
		if !f.optional {
			required = append(required, f.name)
		}
	}
	s := object{"type": "object", "properties": props}
	if len(required) > 0 {
		slices.SortFunc(required, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		s["required"] = required
	}
	if own(t) {
		s["additionalProperties"] = false
		if d := g.docs[t.Name()]; d != "" {
			s["description"] = d
		}
	}
	return s
}

// field is one field as encoding/json writes it.
type field struct {
	name, goName string
	of, typ      reflect.Type
	optional     bool
}

// fieldsOf lists the fields of a struct with those of embedded ones.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		tag, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && tag == "" {
			out = append(out, fieldsOf(f.Type)...)
			continue
		}
		if !f.IsExported() || tag == "-" {
			continue
		}
		if tag == "" {
			panic(fmt.Sprintf("%s.%s has no json name", t, f.Name))
		}
		o := strings.Split(opts, ",")
		out = append(out, field{tag, f.Name, t, f.Type, slices.Contains(o, "omitempty") || slices.Contains(o, "omitzero")})
	}
	return out
}

// comments reads the doc comments of this package's types and fields.
func comments(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	line := func(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range gen.Specs {
				ts, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				docs[ts.Name.Name] = line(gen.Doc)
				st, ok := ts.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, fl := range st.Fields.List {
					for _, n := range fl.Names {
						docs[ts.Name.Name+"."+n.Name] = line(fl.Doc)
					}
				}
			}
		}
	}
	return docs
}

func generate(t *testing.T) []byte {
	t.Helper()
	g := &generator{defs: object{}, docs: comments(t)}
	var roots []any
	names := []string{}
	for k := range kinds() {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		roots = append(roots, g.schema(kinds()[k], true))
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(object{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"$id":         "https://holdfast.dev/v1alpha1/schema.json",
		"title":       "The documents of Holdfast, v1alpha1",
		"description": "What holdfast prints with -o json. Made from the Go types by the test of package v1alpha1.",
		"oneOf":       roots,
		"$defs":       g.defs,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSchemaIsCurrent(t *testing.T) {
	want := generate(t)
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), string(want)); diff != "" {
		t.Errorf("schema.json is not what the Go types say; write it with\n\tgo test ./api/v1alpha1 -run TestSchemaIsCurrent -update\n(-have +want)\n%s", diff)
	}
}

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(schemaFile, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fill sets every field to something that is not its zero value, so that omitempty
// leaves nothing out.
func fill(v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 11, 30, 6, 21, 37, 5, time.UTC)))
		return
	case reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.MustParseAddr("10.22.0.17")))
		return
	case reflect.TypeFor[netip.Prefix]():
		v.Set(reflect.ValueOf(netip.MustParsePrefix("10.22.0.0/24")))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k").Convert(v.Type().Key()), e)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
		// A document may be part of another one.
		if name := v.Type().Name(); kinds()[name] == v.Type() {
			v.FieldByName("TypeMeta").Set(reflect.ValueOf(api.TypeMeta{APIVersion: api.APIVersion, Kind: name}))
		}
	default:
		panic("cannot fill " + v.Type().String())
	}
}

// filled is a document with every field set, as JSON values.
func filled(t *testing.T, kind string) object {
	t.Helper()
	v := reflect.New(kinds()[kind]).Elem()
	fill(v)
	return asJSON(t, v.Interface())
}

func asJSON(t *testing.T, doc any) object {
	t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return v.(object)
}

// places visits every object of a document that is one of ours, with its Go type.
func places(path string, v any, t reflect.Type, visit func(path string, o object, t reflect.Type)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice:
		if list, ok := v.([]any); ok {
			for i, e := range list {
				places(fmt.Sprintf("%s/%d", path, i), e, t.Elem(), visit)
			}
		}
	case reflect.Struct:
		o, ok := v.(object)
		if !ok {
			return
		}
		visit(path, o, t)
		for _, f := range fieldsOf(t) {
			places(path+"/"+f.name, o[f.name], f.typ, visit)
		}
	}
}

func TestDocumentsAndSchemaAgree(t *testing.T) {
	schema := compile(t)
	for kind, typ := range kinds() {
		t.Run(kind, func(t *testing.T) {
			doc := filled(t, kind)
			if err := schema.Validate(doc); err != nil {
				t.Fatalf("a document with every field set is refused: %v", err)
			}
			refuses := func(what string) {
				t.Helper()
				if schema.Validate(doc) == nil {
					t.Errorf("accepted: %s", what)
				}
			}
			places("", doc, typ, func(path string, o object, ot reflect.Type) {
				// Go's fields are the document's, so every one of them was tried above.
				for _, f := range fieldsOf(ot) {
					old, ok := o[f.name]
					if !ok {
						t.Fatalf("%s/%s: not in the filled document", path, f.name)
					}
					if !own(ot) && f.optional {
						continue
					}
					delete(o, f.name)
					if err := schema.Validate(doc); f.optional == (err != nil) {
						t.Errorf("%s without %s: optional %t, validation says %v", path, f.name, f.optional, err)
					}
					if own(ot) {
						o[f.name] = object{"unlikely": true}
						if f.typ.Kind() == reflect.Map {
							o[f.name] = "no map"
						}
						if f.name != "evidence" && kindOf(f.typ) != reflect.Struct {
							refuses(path + "/" + f.name + " of another type")
						}
					}
					o[f.name] = old
				}
				o["surprise"] = "x"
				if err := schema.Validate(doc); own(ot) != (err != nil) {
					t.Errorf("%s with an unknown field: validation says %v", path, err)
				}
				delete(o, "surprise")
			})
			doc["apiVersion"] = "holdfast.dev/v1"
			refuses("another apiVersion")
			doc["apiVersion"], doc["kind"] = api.APIVersion, "Nothing"
			refuses("another kind")
		})
	}
	for _, bad := range []any{object{}, nil, []any{}, object{"apiVersion": api.APIVersion, "kind": "Audit"}} {
		if schema.Validate(bad) == nil {
			t.Errorf("accepted: %v", bad)
		}
	}
}

func kindOf(t reflect.Type) reflect.Kind {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[time.Time]() {
		return reflect.String
	}
	return t.Kind()
}

// TestSameFields compares names in both directions, without the generator: a field that
// the generator forgot, or one that only the file has.
func TestSameFields(t *testing.T) {
	b, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Defs map[string]struct {
			Properties map[string]json.RawMessage `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	reached := map[string]bool{}
	for kind, typ := range kinds() {
		places("", filled(t, kind), typ, func(path string, o object, ot reflect.Type) {
			if ot == reflect.TypeFor[time.Time]() || ot == reflect.TypeFor[netip.Addr]() || ot == reflect.TypeFor[netip.Prefix]() {
				return
			}
			name := defName(ot)
			reached[name] = true
			var inGo, inSchema []string
			for k := range o {
				inGo = append(inGo, k)
			}
			for k := range s.Defs[name].Properties {
				inSchema = append(inSchema, k)
			}
			slices.Sort(inGo)
			slices.Sort(inSchema)
			if diff := cmp.Diff(inGo, inSchema); diff != "" {
				t.Errorf("%s%s (%s): -Go +schema\n%s", kind, path, name, diff)
			}
		})
	}
	for name := range s.Defs {
		if !reached[name] {
			t.Errorf("the schema defines %s, which no document holds", name)
		}
	}
}
