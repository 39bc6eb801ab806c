package hostlocal

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// maxConfigs bounds the configuration files read per directory.
const maxConfigs = 1024

// candidate is a directory that may be a store.
type candidate struct {
	claim.Store
	// named: a configuration names it, so it may be reached through a symlink, may be
	// missing, and counts as a store whatever lies in it.
	named bool
}

// discovery collects candidates from configurations and data directories.
type discovery struct {
	fs     files
	places []place
	stores []*candidate
	byDir  map[string]*candidate
	byKey  map[fsys.Key]*candidate
	notes  []claim.Note
	// whole are the data directories that were read whole or do not exist.
	whole []string
	// subnets remembers flannel's files, which several networks may share.
	subnets map[string][]claim.Range
}

func discover(fs files, confDirs, dataDirs []string, places []place) *discovery {
	d := &discovery{
		fs: fs, places: places, byDir: make(map[string]*candidate), byKey: make(map[fsys.Key]*candidate),
		subnets: make(map[string][]claim.Range),
	}
	for _, p := range places {
		if p.confDir != "" && !slices.Contains(confDirs, p.confDir) {
			confDirs = append(slices.Clip(confDirs), p.confDir)
		}
		if p.dataDir != "" && !slices.Contains(dataDirs, p.dataDir) {
			dataDirs = append(slices.Clip(dataDirs), p.dataDir)
		}
	}
	for _, dir := range confDirs {
		d.confDir(dir, "", 0)
	}
	// A network that was renamed leaves its old directory beside the new one (case
	// L15), so every data directory that a configuration names is looked through.
	for _, s := range d.stores {
		if !slices.Contains(dataDirs, s.DataDir) {
			dataDirs = append(slices.Clip(dataDirs), s.DataDir)
		}
	}
	seen := make(map[fsys.Key]bool)
	for _, dir := range dataDirs {
		d.dataDir(filepath.Clean(dir), seen)
	}
	for _, s := range d.stores {
		s.Capacity = Capacity(s.Ranges)
	}
	return d
}

func (d *discovery) note(path, format string, args ...any) {
	d.notes = append(d.notes, claim.Note{Path: path, Text: fmt.Sprintf(format, args...)})
}

// confDir reads the configuration files of dir, and of its sub-directories: libcni
// loads plugins from a folder named like the network, and nerdctl keeps a folder per
// namespace. fallback is the network's name for a file without one.
func (d *discovery) confDir(dir, fallback string, depth int) {
	entries, err := d.fs.entries(dir)
	if err != nil {
		if !isNotThere(err) {
			d.note(dir, "configuration directory cannot be read (%v): networks named only there are judged without their configuration", err)
		}
		return
	}
	for i, e := range entries {
		path := filepath.Join(dir, e.name)
		if i >= maxConfigs {
			d.note(dir, "more than %d entries; the rest was not read", maxConfigs)
			return
		}
		if e.mode == unix.S_IFDIR {
			if depth == 0 {
				d.confDir(path, e.name, depth+1)
			}
			continue
		}
		switch filepath.Ext(e.name) {
		case ".conf", ".conflist", ".json":
			d.confFile(path, fallback)
		}
	}
}

func (d *discovery) confFile(path, fallback string) {
	data, err := d.fs.readBounded(path, maxConfigSize)
	if err != nil {
		if !isNotThere(err) {
			d.note(path, "file: cannot be read (%v); allowed is a regular file of at most %d bytes", err, maxConfigSize)
		}
		return
	}
	networks, findings := parseConfig(data, fallback)
	for _, f := range findings {
		d.note(path, "%s", f)
	}
	for _, n := range networks {
		if n.subnetFile != "" {
			n.ranges = d.subnetFile(n.subnetFile)
		}
		d.configured(n, path)
	}
}

// subnetFile reads flannel's ranges. Without the file the capacity is unknown, which
// is normal before flanneld's first start.
func (d *discovery) subnetFile(path string) []claim.Range {
	if r, ok := d.subnets[path]; ok {
		return r
	}
	var r []claim.Range
	if data, err := d.fs.readBounded(path, maxContent); err == nil {
		r = parseSubnetEnv(data)
	}
	d.subnets[path] = r
	return r
}

// configured adds the directory of a configured network, or the configuration to it.
func (d *discovery) configured(n network, config string) {
	dataDir := n.dataDir
	if _, err := fsys.StatPath(d.fs, filepath.Join(dataDir, n.name)); err != nil && isNotThere(err) {
		for _, p := range d.places {
			if p.inside != dataDir {
				continue
			}
			if st, err := fsys.StatPath(d.fs, filepath.Join(p.dataDir, n.name)); err == nil && st.Dir() {
				dataDir = p.dataDir
			}
		}
	}
	s := d.add(dataDir, n.name, true)
	if !slices.Contains(s.Configs, config) {
		s.Configs = append(s.Configs, config)
	}
	for _, r := range n.ranges {
		if !slices.Contains(s.Ranges, r) && len(s.Ranges) < maxRanges {
			s.Ranges = append(s.Ranges, r)
		}
	}
}

// add returns the candidate for a directory; one directory is one candidate, by
// whatever path it is reached.
func (d *discovery) add(dataDir, name string, named bool) *candidate {
	dir := filepath.Join(dataDir, name)
	if s, ok := d.byDir[dir]; ok {
		return s
	}
	st, err := fsys.StatPath(d.fs, dir)
	if err == nil {
		if s, ok := d.byKey[st.Key()]; ok {
			d.byDir[dir] = s
			if s.Network != name {
				d.note(dir, "is the same directory as %q; judged once, as that", s.Dir)
			}
			return s
		}
	}
	s := &candidate{Store: claim.Store{Dir: dir, DataDir: dataDir, Network: name}, named: named}
	d.stores = append(d.stores, s)
	d.byDir[dir] = s
	if err == nil {
		d.byKey[st.Key()] = s
	}
	return s
}

// dataDir adds every sub-directory. A data directory that does not exist holds
// nothing; one that cannot be read is a store of its own with a Problem and without a
// network name, so that nobody takes the silence for emptiness (I5).
func (d *discovery) dataDir(dir string, seen map[fsys.Key]bool) {
	fd, err := d.fs.openDir(dir, false)
	if err != nil {
		if !isNotThere(err) {
			d.unreadable(dir, err)
		} else if _, lerr := fsys.LstatPath(d.fs, dir); lerr == nil {
			d.note(dir, "data directory is no directory or a dangling link; nothing can be listed there")
		} else {
			d.whole = append(d.whole, dir)
		}
		return
	}
	defer d.fs.Close(fd)
	if key, err := d.fs.fdKey(fd); err == nil {
		if seen[key] {
			d.whole = append(d.whole, dir)
			return
		}
		seen[key] = true
	}
	var names []string
	err = d.fs.readDir(fd, func(name []byte, typ byte) {
		mode := modeOfType(typ)
		n := string(name)
		if mode == 0 {
			if st, ok, err := d.fs.lstatAt(fd, n); err == nil && ok {
				mode = st.Mode & unix.S_IFMT
			}
		}
		switch mode {
		case unix.S_IFDIR:
			names = append(names, n)
		case unix.S_IFLNK:
			if _, ok := d.byDir[filepath.Join(dir, n)]; !ok && isPlain(n) {
				d.note(filepath.Join(dir, n), "is a symbolic link that no configuration names as a network; not followed")
			}
		}
	})
	if err != nil {
		d.unreadable(dir, err)
	} else {
		d.whole = append(d.whole, dir)
	}
	slices.Sort(names)
	for _, n := range names {
		if !isPlain(n) {
			// It could not be named in a document and found again.
			d.note(dir, "sub-directory %q has control characters or broken UTF-8 in its name; not looked at", clip(n))
			continue
		}
		d.add(dir, n, false)
	}
}

func (d *discovery) unreadable(dir string, err error) {
	if _, ok := d.byDir[dir]; ok {
		return
	}
	s := &candidate{named: true, Store: claim.Store{
		Dir: dir, DataDir: dir, Problem: fmt.Sprintf("data directory cannot be listed: %v", err),
	}}
	d.stores = append(d.stores, s)
	d.byDir[dir] = s
}

// printable is for paths in notes that come from names with control characters.
func printable(s string) string {
	if isPlain(s) {
		return s
	}
	return strings.ToValidUTF8(fmt.Sprintf("%q", clip(s)), "?")
}
