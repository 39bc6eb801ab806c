package config

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// decode puts a document's tree into v by the JSON names of its fields. It is stricter than
// encoding/json (names are compared exactly, null is refused), and it goes on after a
// mistake, so that all are told at once.
func (p *parser) decode(tree any, v any) { p.value("", tree, reflect.ValueOf(v).Elem()) }

func (p *parser) value(field string, tree any, v reflect.Value) {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		if m, ok := tree.(map[string]any); ok {
			p.fields(field, m, v)
			return
		}
	case reflect.Slice:
		if list, ok := tree.([]any); ok {
			v.Set(reflect.MakeSlice(v.Type(), len(list), len(list)))
			for i := range list {
				p.value(fmt.Sprintf("%s[%d]", field, i), list[i], v.Index(i))
			}
			return
		}
	case reflect.String:
		if s, ok := tree.(string); ok {
			v.SetString(s)
			return
		}
	case reflect.Bool:
		if b, ok := tree.(bool); ok {
			v.SetBool(b)
			return
		}
	case reflect.Int:
		if n, ok := tree.(float64); ok && n == math.Trunc(n) && math.Abs(n) < 1<<31 {
			v.SetInt(int64(n))
			return
		}
	case reflect.Float64:
		if n, ok := tree.(float64); ok {
			v.SetFloat(n)
			return
		}
	}
	p.fail(field, "is %s; allowed is %s", describe(tree), kinds[v.Kind()])
}

// kinds are the words for what a field takes.
var kinds = map[reflect.Kind]string{
	reflect.Struct: "a mapping of fields", reflect.Slice: "a list", reflect.String: `text (in quotes where it looks like a number; a duration has a unit, such as 30s)`, reflect.Bool: "true or false",
	reflect.Int: "a whole number", reflect.Float64: "a number",
}

func describe(tree any) string {
	switch t := tree.(type) {
	case nil:
		return "empty"
	case string:
		return fmt.Sprintf("the text %q", t)
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	}
	return fmt.Sprint(tree)
}

func (p *parser) fields(field string, m map[string]any, v reflect.Value) {
	known := map[string]reflect.Value{}
	names(v, known)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		path := k
		if field != "" {
			path = field + "." + k
		}
		if f, ok := known[k]; ok {
			p.value(path, m[k], f)
			continue
		}
		p.fail(fmt.Sprintf("%+q", path), "there is no such field; there are %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
}

// names collects the fields of a struct, those of embedded ones too.
func names(v reflect.Value, into map[string]reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			names(v.Field(i), into)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		into[name] = v.Field(i)
	}
}
