package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

const ipamPlugin = "holdfast-ipam"

// allocator tells of holdfast-ipam: who uses it, and whether it finds its healer and can stamp.
// Nothing of it stands in the way of a release.
func (x *examination) allocator() []finding {
	var used, stores []string
	for _, s := range x.au.Case.Snapshots {
		for _, st := range s.Stores {
			for _, c := range st.Configs {
				if namesIPAM(c) {
					used = append(used, c)
					stores = append(stores, st.Dir)
				}
			}
		}
	}
	slices.Sort(used)
	used = slices.Compact(used)
	if len(used) == 0 {
		return []finding{{Check: api.Check{Name: ipamPlugin, OK: true, Detail: "no configuration here uses it"}}}
	}
	out := []finding{{Check: api.Check{Name: ipamPlugin, OK: true, Detail: "used by " + strings.Join(used, ", ")}}}
	bins := orDefault(x.o.binDirs, defaultBinDirs())
	plugin := finding{Check: api.Check{
		Name: "plugin " + ipamPlugin, Detail: "not found in " + strings.Join(bins, ", "),
		Fix: "put it into the runtime's directory of CNI plugins, or name that directory with --cni-bin-dir",
	}}
	var healers []finding
	for _, dir := range bins {
		path := filepath.Join(dir, ipamPlugin)
		if !isProgram(path) {
			continue
		}
		if !plugin.OK {
			plugin.OK, plugin.Detail = true, path
		}
		healer := filepath.Join(dir, "holdfast")
		f := finding{Check: api.Check{
			Name: "healer of " + path, OK: isProgram(healer), Detail: healer,
			Fix: "put holdfast beside the plugin, or name it in ipam.heal.binary; without it a full network is healed by an agent alone",
		}}
		if !f.OK {
			f.Detail = "no program at " + healer
		}
		healers = append(healers, f)
	}
	out = append(append(out, plugin), healers...)
	slices.Sort(stores)
	for _, dir := range slices.Compact(stores) {
		f := finding{Check: api.Check{
			Name: "stamps in " + dir, OK: true, Detail: "extended attributes are supported",
			Fix: "keep the data directory on a file system with user extended attributes (ext4, xfs, btrfs; tmpfs since Linux 6.6); without stamps a leaked address waits for its grace",
		}}
		// A read tells as much as a write, and doctor writes nothing.
		_, err := unix.Getxattr(dir, hostlocal.StampAttr, nil)
		switch err {
		case nil, unix.ENODATA:
		case unix.ENOENT:
			f.Detail = "the directory is not there yet"
		default:
			f.OK, f.Detail = false, err.Error()
		}
		out = append(out, f)
	}
	return out
}

func isProgram(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0
}

// namesIPAM reports whether a configuration file has our plugin as an IPAM, of a plugin of its
// own or of one that is delegated to.
func namesIPAM(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	var doc any
	if err != nil || !bytes.Contains(b, []byte(ipamPlugin)) || json.Unmarshal(b, &doc) != nil {
		return false
	}
	return hasIPAM(doc)
}

func hasIPAM(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, hasIPAM)
	case map[string]any:
		for k, e := range v {
			if ipam, ok := e.(map[string]any); ok && strings.EqualFold(k, "ipam") && fmt.Sprint(ipam["type"]) == ipamPlugin {
				return true
			}
			if hasIPAM(e) {
				return true
			}
		}
	}
	return false
}
