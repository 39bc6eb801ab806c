package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

func newBundle(a *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Pack audit, doctor, journal and redacted configuration into an archive for support",
		Long: `bundle looks at the node as audit and doctor do, without remembering anything, and packs
what they found with the journal, the CNI configuration files, the mounts of network
namespaces and a listing of the state directory.

In configuration files the values of keys that look like secrets, and passwords in URLs,
are replaced; a file that cannot be parsed is described and not included. The archive
still names Pods, addresses, paths and container IDs: look at it before you pass it on.`,
		Example: `  holdfast bundle
  holdfast bundle -f /tmp/node1.tar.gz
  holdfast bundle -f - | tar tzv`,
		Args: args0,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			return a.bundle(cmd.Context(), file, time.Now())
		},
	}
	a.opts.addNode(cmd.Flags())
	cmd.Flags().StringVarP(&file, "file", "f", "", "the new archive's `file`, \"-\" for standard output (default holdfast-bundle-<node>-<time>.tar.gz here)")
	return cmd
}

func (a *app) bundle(ctx context.Context, file string, now time.Time) (err error) {
	out := a.stdout
	if file == "-" {
		if isTerminal(a.stdout) {
			return usagef("bundle -f - writes a compressed archive, and standard output is a terminal")
		}
	} else {
		if file == "" {
			file = "holdfast-bundle-" + safeName(nodeName()) + "-" + now.UTC().Format("20060102-150405") + ".tar.gz"
		}
		// Never over another file, and for nobody else to read.
		if out, err = os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
		defer func() {
			if cerr := out.Close(); err == nil {
				err = cerr
			}
			if err != nil {
				os.Remove(file)
			}
		}()
	}
	x, err := examine(ctx, a.opts)
	if err != nil {
		return err
	}
	defer x.n.Close()
	files, err := x.files()
	if err != nil {
		return err
	}
	if err := writeArchive(out, files, now.UTC().Truncate(time.Second)); err != nil {
		return err
	}
	if file != "-" {
		a.say("%s holds %d files. It names Pods, addresses and paths: look at it before you pass it on.", file, len(files))
	}
	return nil
}

// archived is one file of the archive.
type archived struct {
	name    string
	content []byte
}

// writeArchive packs files in the order of their names, all of one time: the same files
// give the same bytes.
func writeArchive(w io.Writer, files []archived, at time.Time) error {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b archived) int { return strings.Compare(a.name, b.name) })
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: "holdfast-bundle/" + f.name, Size: int64(len(f.content)), Mode: 0o600, ModTime: at, Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		if _, err := tw.Write(f.content); err != nil {
			return fmt.Errorf("archive: %w", err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// files are the contents of the archive. What cannot be had is described in its place.
func (x *examination) files() ([]archived, error) {
	audit := report.Audit(&x.au.Case, x.au.Judgement, x.n.meta(x.au))
	docs := map[string]any{
		"audit.json":  audit,
		"doctor.json": x.document(),
		"version.json": &api.Version{
			TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindVersion},
			Version:  version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		},
	}
	var out []archived
	if j, err := readJournal(x.o); err != nil {
		out = append(out, archived{"journal.txt", []byte("The journal cannot be read: " + report.Clean(err.Error()) + "\n")})
	} else {
		docs["journal.json"] = j
	}
	for name, doc := range docs {
		b, err := marshal(doc)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, archived{name, b})
	}
	out = append(out, archived{"state.txt", listing(x.o.stateDir, x.o.runDir)}, archived{"netns-mounts.txt", nsfsMounts(x.o.proc)})
	return append(out, x.configs()...), nil
}

// maxConfig bounds one configuration file, and maxConfigFiles how many are packed.
const (
	maxConfig      = 1 << 20
	maxConfigFiles = 512
)

// configs are the CNI configuration files: those in the configuration directories, and
// those that name a network.
func (x *examination) configs() []archived {
	dirs := orDefault(x.o.confDirs, []string{hostlocal.DefaultConfDir})
	var paths []string
	for _, s := range x.listed(true) {
		for _, c := range s.Configs {
			if !slices.Contains(dirs, filepath.Dir(c)) {
				paths = append(paths, c)
			}
		}
	}
	var out []archived
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				out = append(out, archived{"configs/" + safeName(dir) + ".txt", []byte("The directory cannot be read: " + rootCause(err) + "\n")})
			}
			continue
		}
		for _, e := range entries {
			switch filepath.Ext(e.Name()) {
			case ".conf", ".conflist", ".json":
				if !e.IsDir() {
					paths = append(paths, filepath.Join(dir, e.Name()))
				}
			}
		}
	}
	slices.Sort(paths)
	used := map[string]bool{}
	for i, path := range slices.Compact(paths) {
		if i == maxConfigFiles {
			out = append(out, archived{"configs/more.txt", fmt.Appendf(nil, "There are %d more.\n", len(paths)-i)})
			break
		}
		name := safeName(path)
		for used[name] {
			name += "_" // two hostile names may look the same when made safe
		}
		used[name] = true
		b, err := readConfig(path)
		if err == nil {
			b, err = redactJSON(b)
		}
		if err != nil {
			out = append(out, archived{"configs/" + name + ".txt", []byte("Not included: " + report.Clean(err.Error()) + "\n")})
			continue
		}
		out = append(out, archived{"configs/" + name, b})
	}
	return out
}

// readConfig reads a small regular file. Links are followed, as runtimes do: what lies
// behind one is included only if it is a JSON object, and redacted like any.
func readConfig(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, errors.New(rootCause(err))
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.New(rootCause(err))
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("it is no regular file but %v", fi.Mode().Type())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, errors.New(rootCause(err))
	}
	if len(b) > maxConfig {
		return nil, fmt.Errorf("it is larger than %d bytes", maxConfig)
	}
	return b, nil
}

// redacted stands where a value was.
const redacted = "REDACTED"

// redactJSON parses a JSON object and writes it again without what looks like a secret.
// An error says why that cannot be done, and quotes nothing of it.
func redactJSON(b []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("it is no JSON object (%d bytes)", len(b))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows the JSON object (%d bytes)", len(b))
	}
	return marshal(redact(v))
}

func redact(v any) any {
	switch v := v.(type) {
	case string:
		return redactText(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = redact(v[i])
		}
		// ["--password", "x"]: an option and its value.
		for i := 1; i < len(v); i++ {
			if s, ok := v[i-1].(string); ok && strings.HasPrefix(s, "-") && !strings.Contains(s, "=") && secretKey(s) {
				out[i] = redacted
			}
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		named := false
		for _, k := range []string{"name", "key"} {
			s, ok := v[k].(string)
			named = named || ok && secretKey(s)
		}
		for k, e := range v {
			switch {
			case secretKey(k) && !harmless(k, e), named && k == "value":
				out[redactText(k)] = redacted
			default:
				out[redactText(k)] = redact(e)
			}
		}
		return out
	}
	return v
}

// harmless: nothing that could be a secret, or a plain path to a file with one.
func harmless(key string, v any) bool {
	switch v := v.(type) {
	case nil, bool:
		return true
	case string:
		return v == "" || strings.EqualFold(key, "kubeconfig") && texts().plainPath.MatchString(v)
	}
	return false
}

// secretKey reports whether a key looks as if its value were a secret, or something that
// has no place in a support archive (environment, labels, annotations). It would rather
// hide too much.
func secretKey(k string) bool {
	letters := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, k)
	for _, s := range []string{
		"token", "password", "passwd", "passphrase", "secret", "credential", "auth", "bearer", "cert", "private", "kubeconfig",
		"cookie", "session", "signature", "apikey", "accesskey", "psk", "pwd", "pem", "jwt", "label", "annotation", "header",
	} {
		if strings.Contains(letters, s) {
			return true
		}
	}
	for _, s := range []string{"key", "keys", "data", "keyfile", "pass", "env", "envs", "environment", "salt"} {
		if strings.HasSuffix(letters, s) {
			return true
		}
	}
	return false
}

// texts are the shapes of texts inside of values. Only a bundle compiles them: every
// command would, and wait half a millisecond for it, if they were variables of their own.
var texts = sync.OnceValue(func() *shapes {
	return &shapes{
		plainPath: regexp.MustCompile(`^/[A-Za-z0-9._/@-]{1,255}$`),
		nextURL:   regexp.MustCompile(`([,;])([A-Za-z][A-Za-z0-9+.-]*://)`),
		userinfo:  regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s"'\x00]*@`),
		assigned:  regexp.MustCompile(`(?i)((?:token|passw(?:or)?d|passphrase|secret|credential|api_?-?key|access_?-?key|signature|[a-z]-data)[A-Za-z0-9_-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s&;,"']+)`),
		authority: regexp.MustCompile(`(?i)\b(authorization)\b.*`),
		bearer:    regexp.MustCompile(`(?i)\b(bearer|basic)\s+\S+`),
		pem:       regexp.MustCompile(`(?s)-----BEGIN .*`),
		blob:      regexp.MustCompile(`[A-Za-z0-9+/=_-]{40,}`),
	}
})

type shapes struct{ plainPath, nextURL, userinfo, assigned, authority, bearer, pem, blob *regexp.Regexp }

// redactText replaces what looks like a secret inside of a text. Long unbroken words are
// taken for keys; no container IDs stand in these files.
func redactText(s string) string {
	if inner := strings.TrimSpace(s); strings.HasPrefix(inner, "{") {
		// JSON within JSON, as annotations and some plugins have it.
		if b, err := redactJSON([]byte(inner)); err == nil {
			return string(bytes.TrimSpace(b))
		}
	}
	s = texts().pem.ReplaceAllString(s, redacted)
	// A password may hold anything, so all up to the last @ goes; only the next URL of a
	// list ends it.
	s = texts().nextURL.ReplaceAllString(strings.ReplaceAll(s, "\x00", ""), "${1}\x00${2}")
	s = strings.ReplaceAll(texts().userinfo.ReplaceAllString(s, "${1}"+redacted+"@"), "\x00", "")
	s = texts().authority.ReplaceAllString(s, "${1} "+redacted)
	s = texts().bearer.ReplaceAllString(s, "${1} "+redacted)
	s = texts().assigned.ReplaceAllString(s, "${1}"+redacted)
	return texts().blob.ReplaceAllStringFunc(s, func(w string) string {
		if strings.HasPrefix(w, "/") && !strings.ContainsAny(w, "+=") {
			return w // a path
		}
		return redacted
	})
}

// safeName makes one path element of any text.
func safeName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._-", r)) {
			return r
		}
		return '_'
	}, strings.Trim(s, "/"))
	if len(s) > 200 {
		s = s[:200]
	}
	return strings.TrimLeft(s, ".")
}

// maxListed bounds a listing.
const maxListed = 20_000

// listing names what lies in the directories, with mode, size and time.
func listing(dirs ...string) []byte {
	var b bytes.Buffer
	n := 0
	for _, dir := range dirs {
		fmt.Fprintf(&b, "%s\n", report.Clean(dir))
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if n++; n > maxListed {
				fmt.Fprintf(&b, "  and more\n")
				return fs.SkipAll
			}
			rel, rerr := filepath.Rel(dir, path)
			if err != nil || rerr != nil {
				fmt.Fprintf(&b, "  %s: %s\n", report.Clean(rel), rootCause(errors.Join(err, rerr)))
				return nil
			}
			fi, err := e.Info()
			if err != nil {
				fmt.Fprintf(&b, "  %s: %s\n", report.Clean(rel), rootCause(err))
				return nil
			}
			fmt.Fprintf(&b, "  %v %10d %s %s\n", fi.Mode(), fi.Size(), fi.ModTime().UTC().Format(time.RFC3339), report.Clean(rel))
			return nil
		})
		if err != nil {
			fmt.Fprintf(&b, "  %s\n", rootCause(err))
		}
	}
	return b.Bytes()
}

// maxMounts bounds the mount table that is read.
const maxMounts = 32 << 20

// nsfsMounts are the mounts of namespaces, as PID 1 sees them, or else we.
func nsfsMounts(proc string) []byte {
	var b bytes.Buffer
	for _, who := range []string{"1", "self"} {
		f, err := os.Open(filepath.Join(proc, who, "mountinfo"))
		var text []byte
		if err == nil {
			text, err = io.ReadAll(io.LimitReader(f, maxMounts))
			f.Close()
		}
		if err != nil {
			fmt.Fprintf(&b, "PID %s: %s\n", who, rootCause(err))
			continue
		}
		fmt.Fprintf(&b, "as PID %s sees them:\n", who)
		for line := range strings.Lines(string(text)) {
			// "36 35 0:4 net:[4026532] /run/netns/x rw shared:1 - nsfs nsfs rw"
			if _, kind, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(kind, "nsfs ") {
				fmt.Fprintln(&b, report.Clean(strings.TrimSuffix(line, "\n")))
			}
		}
		break
	}
	return b.Bytes()
}
