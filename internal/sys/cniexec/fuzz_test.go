package cniexec

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// FuzzPluginError: whatever a plugin prints, its error is short and tame, and a CNI
// error is read as the CNI library reads it.
func FuzzPluginError(f *testing.F) {
	f.Add(1, []byte(`{"cniVersion":"1.0.0","code":11,"msg":"try again","details":"lock"}`), []byte{})
	f.Add(1, []byte(`{"code":0,"msg":""}`), []byte("panic: \x1b[2J\u202e"))
	f.Add(-1, []byte(`{"code":-1}`), []byte(strings.Repeat("x", 5000)))
	f.Add(2, []byte("\xff\xfe"), []byte(" \n"))
	f.Add(0, []byte(`{"msg":1,"code":7}`), []byte{})
	f.Fuzz(func(t *testing.T, exit int, stdout, stderr []byte) {
		e := pluginError(exit, stdout, stderr)
		text := e.Error()
		// Each of the two texts is cut at 400 bytes, of which quoting makes ten at most.
		if len(text) > 2*10*404+100 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q", text)
		}
		var said types.Error
		if json.Unmarshal(stdout, &said) == nil && said.Code != 0 && e.Code != said.Code || e.Exit != exit {
			t.Fatalf("%+v of %q", e, stdout)
		}
		if (strings.TrimSpace(string(stdout)) != "" || strings.TrimSpace(string(stderr)) != "") && e.Code == 0 && e.Msg == "" && e.Details == "" {
			t.Fatalf("what was said is lost: %q, %q", stdout, stderr)
		}
	})
}

// FuzzNFT: a listing of nft counts only if it is one: cut off, empty or another
// document is an error, for it would say that there are no rules.
func FuzzNFT(f *testing.F) {
	const meta = `{"metainfo":{"version":"1.0.6","json_schema_version":1}}`
	f.Add([]byte(`{"nftables":[`+meta+`,{"chain":{"family":"inet","table":"cni_plugins_masquerade","name":"masq_checks","handle":1}}]}`), "a-b")
	f.Add([]byte(`{"nftables":[`+meta+`,{"rule":{"table":"cni_plugins_masquerade","chain":"masq_checks","handle":7,"comment":"a-b, net: x"}},{"rule":{"handle":8,"comment":"a-c"}}]}`), "a-b")
	f.Add([]byte(`{}`), "a")
	f.Add([]byte(`null`), "a")
	f.Add([]byte(`{"nftables":null}`), "")
	f.Add([]byte(`{"nftables":[null,{"rule":null}`), "")
	f.Fuzz(func(t *testing.T, out []byte, prefix string) {
		l, err := parseNFT(out)
		if err != nil {
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("%q is not fit to print", err)
			}
			return
		}
		var keys map[string]json.RawMessage
		var objects []map[string]json.RawMessage
		if err := json.Unmarshal(out, &keys); err != nil {
			t.Fatal(err)
		}
		for k, v := range keys {
			if strings.EqualFold(k, "nftables") && json.Unmarshal(v, &objects) == nil && objects != nil {
				break
			}
		}
		if objects == nil {
			t.Fatalf("%q has no list of objects", out)
		}
		for _, h := range l.handles(prefix) {
			if h == 0 {
				t.Fatal("rule without a handle")
			}
		}
		if len(l.handles(prefix)) > len(l.handles("")) {
			t.Fatal("more rules with a longer comment")
		}
	})
}
