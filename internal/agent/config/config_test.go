package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
)

const head = "apiVersion: holdfast.dev/v1alpha1\nkind: AgentConfiguration\n"

func TestDefault(t *testing.T) {
	c := Default()
	want := &Config{
		Interval: time.Minute, OrphanGrace: time.Hour, WitnessTimeout: 10 * time.Second, Adopt: true, SideResources: true,
		Paths:        api.AgentPaths{StateDir: "/var/lib/holdfast", RunDir: "/run/holdfast", Proc: "/proc", KubeletConfig: "/var/lib/kubelet/config.yaml"},
		KubeRequired: true, KubeEvents: true, PressureThreshold: 0.85, PressureGrace: 30 * time.Second, PressureInterval: 10 * time.Second,
		HTTPAddress: DefaultHTTP, LogLevel: "info", LogFormat: "json",
	}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
}

func TestEveryField(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "full.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse("full.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	// Each field of the file differs from the default, so each that is not read shows.
	def := reflect.ValueOf(*Default())
	got := reflect.ValueOf(*c)
	for i := range got.NumField() {
		if reflect.DeepEqual(got.Field(i).Interface(), def.Field(i).Interface()) {
			t.Errorf("%s is still %v", got.Type().Field(i).Name, def.Field(i))
		}
	}
	// And the file has every field there is.
	for _, path := range fields("", reflect.TypeFor[api.AgentConfiguration]()) {
		name := path[strings.LastIndex(path, ".")+1:]
		if !strings.Contains(string(text), name+":") {
			t.Errorf("full.yaml lacks %s", path)
		}
	}
}

func fields(prefix string, t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			out = append(out, fields(prefix, f.Type)...)
		case f.Type.Kind() == reflect.Struct:
			out = append(out, fields(prefix+name+".", f.Type)...)
		default:
			out = append(out, prefix+name)
		}
	}
	return out
}

// docs/agent.md has a line for every field.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range fields("", reflect.TypeFor[api.AgentConfiguration]()) {
		if path != "apiVersion" && path != "kind" && !strings.Contains(string(page), "| `"+path+"` |") {
			t.Errorf("docs/agent.md has no line for %s", path)
		}
	}
}

func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string // one for each line of the error
	}{
		"good":             {head + "interval: 90s\n", nil},
		"JSON":             {`{"apiVersion":"holdfast.dev/v1alpha1","kind":"AgentConfiguration","interval":"90s"}`, nil},
		"empty":            {"", []string{"f: is empty; allowed is a mapping", "f: apiVersion: is \"\"", "f: kind: is \"\""}},
		"no YAML":          {"a: [", []string{"f: no YAML:"}},
		"a list":           {"- a\n", []string{"f: is a list; allowed is a mapping of fields", "apiVersion", "kind"}},
		"other version":    {"apiVersion: holdfast.dev/v2\nkind: AgentConfiguration\n", []string{`f: apiVersion: is "holdfast.dev/v2"; allowed is "holdfast.dev/v1alpha1"`}},
		"other kind":       {"apiVersion: holdfast.dev/v1alpha1\nkind: Agent\n", []string{`f: kind: is "Agent"; allowed is "AgentConfiguration"`}},
		"twice":            {head + "interval: 1m\ninterval: 2m\n", []string{"f: no YAML:"}},
		"unknown":          {head + "intervall: 1m\n", []string{`f: "intervall": there is no such field; there are `}},
		"unknown below":    {head + "kube: {requird: true}\n", []string{`f: "kube.requird": there is no such field; there are enabled, events, kubeconfig, required`}},
		"case":             {head + "Interval: 1m\n", []string{`f: "Interval": there is no such field`}},
		"control chars":    {head + "\"a\\e[31m\": 1\n", []string{`f: "a\x1b[31m": there is no such field`}},
		"a number":         {head + "interval: 60\n", []string{"f: interval: is 60; allowed is text"}},
		"null":             {head + "kube: {required: null}\n", []string{"f: kube.required: is empty; allowed is true or false"}},
		"text for a bool":  {head + "dryRun: \"yes\"\n", []string{`f: dryRun: is the text "yes"; allowed is true or false`}},
		"half a number":    {head + "maxReleases: 1.5\n", []string{"f: maxReleases: is 1.5; allowed is a whole number"}},
		"too short":        {head + "interval: 10ms\n", []string{`f: interval: is "10ms"; allowed is a duration from 1s to 1h0m0s`}},
		"pressure off":     {head + "pressure: {grace: 0s}\n", nil},
		"threshold":        {head + "pressure: {threshold: 85}\n", []string{"f: pressure.threshold: is 85; allowed is 0.1 to 1"}},
		"relative":         {head + "paths: {dataDirs: [a]}\n", []string{`f: paths.dataDirs[0]: is "a"; allowed is an absolute path`}},
		"none and another": {head + "cri: {endpoints: [none, /run/a.sock]}\n", []string{"f: cri.endpoints: \"none\" cannot stand beside"}},
		"address":          {head + "http: {address: \"example.org:80\"}\n", []string{"f: http.address: is"}},
		"no port":          {head + "http: {address: \"127.0.0.1\"}\n", []string{"f: http.address: is"}},
		"all at once": {head + "interval: 1\nexclude: [x]\nnope: 1\nlog: {level: loud, format: xml}\n",
			[]string{"interval", `"nope"`, `exclude[0]: is "x"`, `log.level: is "loud"; allowed is one of info, debug, warn, error`, `log.format: is "xml"`}},
		"too large": {head + strings.Repeat("#", MaxSize), []string{"allowed are 1048576"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("f", []byte(c.text))
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if len(c.want) == 0 && err != nil || len(lines) < len(c.want) || len(c.want) > 0 && name != "no YAML" && name != "twice" && len(lines) != len(c.want) {
				t.Fatalf("%d mistakes, want %d:\n%v", len(lines), len(c.want), err)
			}
			for i, want := range c.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("%q does not say %q", lines[i], want)
				}
			}
		})
	}
}

// Whatever a file holds, it is a configuration or an error that prints.
func FuzzParse(f *testing.F) {
	full, err := os.ReadFile(filepath.Join("testdata", "full.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte(head))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f", text)
		if (c == nil) != (err != nil) {
			t.Fatalf("%v, %v", c, err)
		}
		if c == nil {
			return
		}
		if c.Interval < time.Second || c.OrphanGrace <= 0 || c.PressureThreshold < 0.1 || c.PressureThreshold > 1 || c.Paths.StateDir == "" {
			t.Errorf("taken for good: %+v", c)
		}
	})
}
