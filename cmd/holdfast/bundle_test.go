package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
)

// unpack reads an archive: contents by name, the order, and the one time of all.
func unpack(t *testing.T, b []byte) (files map[string]string, order []string, at time.Time) {
	t.Helper()
	zr, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(zr)
	files = map[string]string{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, order, at
		}
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, "holdfast-bundle/")
		if !ok || !filepath.IsLocal(h.Name) || h.Mode != 0o600 || len(order) > 0 && !h.ModTime.Equal(at) {
			t.Errorf("entry %q, mode %o, time %v", h.Name, h.Mode, h.ModTime)
		}
		at = h.ModTime
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[name]; twice {
			t.Errorf("%q is there twice", name)
		}
		files[name] = string(content)
		order = append(order, name)
	}
}

// secretConfig hides the word s3cr3t in every value that must not leave the node.
const secretConfig = `{
  "cniVersion": "1.0.0", "name": "secret-net", "dataDir": "/var/lib/x", "mtu": 1450,
  "plugins": [{
    "type": "calico", "log_level": "info",
    "etcd_endpoints": "https://root:s3cr3t@10.0.0.1:2379,https://10.0.0.2:2379/a@s3cr3t@b",
    "etcd_key_file": "/s3cr3t/key.pem", "etcdCert": "s3cr3t", "ETCD_CA_CERTIFICATE": "s3cr3t",
    "policy": {"type": "k8s", "k8s_auth_token": "s3cr3t", "k8s-client-key": {"inner": ["s3cr3t"]}},
    "kubernetes": {"kubeconfig": "apiVersion: v1\nusers: s3cr3t"},
    "Password": "s3cr3t", "PASSPHRASE": 12345678901, "clientKey": "s3cr3t", "ca-data": "s3cr3t", "Authorization": "Bearer s3cr3t",
    "s3cr3tless": true,
    "args": {"cni": {"labels": [{"key": "a", "value": "s3cr3t"}], "annotations": {"x": "s3cr3t"}}, "env": {"X": "s3cr3t"}},
    "command": ["--password", "s3cr3t", "--token=s3cr3t", "-v"],
    "list": [{"name": "db-password", "value": "s3cr3t"}],
    "note": "Authorization: Basic s3cr3t", "note2": "curl -H 'bearer s3cr3t'", "note3": "password = s3cr3t; rest",
    "nested": "{\"token\":\"s3cr3t\",\"plain\":\"kept-inside\"}", "half": "{\"token\": \"s3cr3t\", ",
    "pemFile": "x", "blobby": "-----BEGIN RSA PRIVATE KEY-----\ns3cr3t\n-----END RSA PRIVATE KEY-----",
    "odd": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0s3cr3t",
    "https://u:s3cr3t@h": 1,
    "ipam": {"type": "host-local", "dataDir": "DATADIR", "ranges": [[{"subnet": "10.201.0.0/24", "gateway": "10.201.0.1"}]]},
    "kubeconfigPath": "/etc/cni/net.d/kube", "bin": "/var/lib/rancher/k3s/data/current/bin/with/a/long/path"
  }]
}`

func TestBundle(t *testing.T) {
	d := newDesk(t)
	d.write(t, filepath.Join(d.conf, "20-secret.conflist"), strings.ReplaceAll(secretConfig, "DATADIR", d.data))
	d.write(t, filepath.Join(d.conf, "30-broken.conf"), `{"token": "s3cr3t", `)
	d.write(t, filepath.Join(d.conf, "31-list.json"), `["s3cr3t"]`)
	d.write(t, filepath.Join(d.conf, "32-two.json"), `{} {"token":"s3cr3t"}`)
	d.write(t, filepath.Join(d.conf, "calico-kubeconfig"), "token: s3cr3t")
	d.write(t, filepath.Join(d.conf, "40-a\x1b[2Jb.conf"), `{"name": "hostile"}`)
	d.write(t, filepath.Join(d.state, "quarantine", "x"), "s3cr3t")
	out := filepath.Join(d.dir, "b.tar.gz")
	before := d.tree(t)
	args := append([]string{"bundle", "-f", out}, d.flags("--cri-endpoint", "none")...)
	code, stdout, stderr := invoke(t, args...)
	if code != exitOK || stdout != "" || !strings.Contains(stderr, out) {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	fi, err := os.Stat(out)
	if err != nil || fi.Mode() != 0o600 {
		t.Fatalf("%v, %v", fi.Mode(), err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	files, order, _ := unpack(t, b)
	if !slices.IsSorted(order) {
		t.Errorf("order: %q", order)
	}
	for name, content := range files {
		// The key with the word in it is no secret; it shows that keys stay.
		if strings.Contains(strings.ReplaceAll(content, "s3cr3tless", ""), "s3cr3t") {
			t.Errorf("%s holds a secret:\n%s", name, content)
		}
		if strings.ContainsAny(content+name, "\x1b") {
			t.Errorf("%s holds a control character", name)
		}
	}
	for _, name := range []string{"audit.json", "doctor.json", "journal.json", "version.json"} {
		accepts(t, files[name])
	}
	var audit api.Audit
	if err := json.Unmarshal([]byte(files["audit.json"]), &audit); err != nil || audit.Evidence == nil || len(audit.Resources) == 0 {
		t.Errorf("the audit cannot be judged again: %v", err)
	}
	if !strings.Contains(files["state.txt"], "quarantine/x") || !strings.Contains(files["netns-mounts.txt"], "PID ") {
		t.Errorf("listings: %q, %q", files["state.txt"], files["netns-mounts.txt"])
	}
	secret := ""
	described := 0
	for name, content := range files {
		if strings.HasPrefix(name, "configs/") && strings.HasSuffix(name, "20-secret.conflist") {
			secret = content
		}
		if strings.HasPrefix(name, "configs/") && strings.HasPrefix(content, "Not included: ") {
			described++
		}
		if strings.Contains(name, "kubeconfig") {
			t.Errorf("%s is no CNI configuration", name)
		}
	}
	if described != 3 {
		t.Errorf("%d files are described, want the broken one, the list and the double one: %q", described, order)
	}
	for _, kept := range []string{`"secret-net"`, `"calico"`, "10.201.0.0/24", `"host-local"`, d.data, `"/var/lib/x"`, "1450", `"log_level": "info"`, "10.0.0.1:2379", "--token=REDACTED", "kept-inside", "with/a/long/path", `"-v"`} {
		if !strings.Contains(secret, kept) {
			t.Errorf("%s is lost:\n%s", kept, secret)
		}
	}
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	// The directory's own time changed with the archive's coming and going.
	if diff := cmp.Diff(before[1:], d.tree(t)[1:]); diff != "" {
		t.Errorf("bundle wrote elsewhere: -before +after\n%s", diff)
	}
}

func TestBundleOutput(t *testing.T) {
	d := newDesk(t)
	flags := d.flags("--cri-endpoint", "none")
	taken := filepath.Join(d.dir, "taken")
	d.write(t, taken, "mine")
	if code, _, _ := invoke(t, append([]string{"bundle", "-f", taken}, flags...)...); code != exitFailed {
		t.Errorf("over another file: exit %d", code)
	}
	if b, err := os.ReadFile(taken); err != nil || string(b) != "mine" {
		t.Errorf("the other file is now %q, %v", b, err)
	}
	link := filepath.Join(d.dir, "link")
	if err := os.Symlink(filepath.Join(d.dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := invoke(t, append([]string{"bundle", "-f", link}, flags...)...); code != exitFailed {
		t.Errorf("through a link: exit %d", code)
	}
	// A run that fails leaves no half archive.
	half := filepath.Join(d.dir, "half")
	if code, _, _ := invoke(t, append([]string{"bundle", "-f", half, "--timeout", "0s"}, flags[:len(flags)-4]...)...); code != exitUsage {
		t.Errorf("a wrong flag: exit %d", code)
	}
	if _, err := os.Stat(half); err == nil {
		t.Error("a failed run left an archive")
	}
	code, stdout, stderr := invoke(t, append([]string{"bundle", "-f", "-"}, flags...)...)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if files, _, _ := unpack(t, []byte(stdout)); len(files) < 6 {
		t.Errorf("only %d files on standard output", len(files))
	}
	t.Chdir(t.TempDir())
	if code, _, stderr := invoke(t, append([]string{"bundle"}, flags...)...); code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if m, _ := filepath.Glob("holdfast-bundle-*-20*.tar.gz"); len(m) != 1 {
		t.Errorf("default name: %q", m)
	}
}

func TestBundleWithoutState(t *testing.T) {
	d := newDesk(t)
	d.write(t, d.state, "a file where the directory should be")
	_, stdout, stderr := invoke(t, append([]string{"bundle", "-f", "-"}, d.flags("--cri-endpoint", "none")...)...)
	if stdout == "" {
		t.Fatal(stderr)
	}
	files, _, _ := unpack(t, []byte(stdout))
	if files["journal.json"] != "" || !strings.Contains(files["journal.txt"], "cannot be read") {
		t.Errorf("journal: %q, %q", files["journal.json"], files["journal.txt"])
	}
}

// TestArchiveIsTheSameTwice: the same files give the same bytes, in whatever order they
// are handed over.
func TestArchiveIsTheSameTwice(t *testing.T) {
	at := time.Date(2026, 11, 30, 6, 21, 37, 0, time.UTC)
	list := []archived{{"b", []byte("2")}, {"a", []byte("1")}, {"configs/" + strings.Repeat("long", 40), nil}}
	var one, two bytes.Buffer
	if err := errors.Join(writeArchive(&one, list, at), writeArchive(&two, []archived{list[2], list[1], list[0]}, at)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the archives differ")
	}
	files, order, got := unpack(t, one.Bytes())
	if !got.Equal(at) || order[0] != "a" || files["b"] != "2" {
		t.Errorf("%v, %q, %q", got, order, files)
	}
	if list[0].name != "b" {
		t.Error("the caller's list was sorted")
	}
}

// FuzzRedact: no JSON makes it panic or write what is not JSON, and a second redaction
// finds nothing to parse differently.
func FuzzRedact(f *testing.F) {
	f.Add([]byte(secretConfig))
	f.Add([]byte(`{"a":"{\"a\":\"{\\\"token\\\":1}\"}"}`))
	f.Add([]byte(`{"token":`))
	f.Add([]byte("{\"\u202e\":\"\x7f\"}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := redactJSON(b)
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Errorf("no JSON: %q", out)
		}
		if _, err := redactJSON(out); err != nil {
			t.Errorf("%v: %q", err, out)
		}
	})
}
