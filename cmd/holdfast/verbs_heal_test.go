package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/wire"
)

// stampAttr and the text of stampOn are written here anew, by docs/format/stamp.md.
const stampAttr = "user.holdfast.stamp"

// plantStamped NET ADDR OWNER AGE [boot=ID] [netns=POD|INODE] writes a reservation as
// holdfast-ipam did that long ago. "gone" is a namespace that never was.
func (w *world) plantStamped(ts *testscript.TestScript, args []string) {
	arity(ts, args, 4, 6, "plant-stamped NET ADDR OWNER AGE [boot=ID] [netns=POD|gone]")
	w.plant(ts, args[:3])
	age, err := time.ParseDuration(args[3])
	ts.Check(err)
	now, err := boot.Now("/proc")
	ts.Check(err)
	ns := uint64(0)
	for _, a := range args[4:] {
		switch k, v, _ := strings.Cut(a, "="); {
		case k == "boot":
			now.Boot = v
		case k == "netns" && v == "gone":
			ns = 1<<40 + 1
		case k == "netns":
			ns = w.podOf(ts, v).ns.ID
		default:
			ts.Fatalf("unknown key %q", k)
		}
	}
	path := filepath.Join(w.store(args[0]), args[1])
	content, err := os.ReadFile(path)
	ts.Check(err)
	sum := sha256.Sum256(content)
	id, err := hex.DecodeString(strings.ReplaceAll(now.Boot, "-", ""))
	ts.Check(err)
	stamp := append([]byte("2"), id...)
	stamp = binary.LittleEndian.AppendUint64(stamp, uint64((now.Mono - age).Nanoseconds()))
	stamp = append(binary.LittleEndian.AppendUint64(stamp, ns), sum[:16]...)
	ts.Check(unix.Setxattr(path, stampAttr, stamp, 0))
	last := filepath.Join(w.store(args[0]), "last_reserved_ip.0")
	ts.Check(os.WriteFile(last, []byte(args[1]), 0o600))
	ts.Check(unix.Setxattr(last, stampAttr, []byte("2"), 0))
}

// healRequest FILE NET [spare=OWNER] [valid=OWNER/IFNAME,...] writes what holdfast-ipam sends.
func (w *world) healRequest(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 4, "heal-request FILE NET [spare=OWNER] [valid=OWNER/IFNAME,...]")
	q := wire.HealRequest{APIVersion: wire.APIVersion, Kind: wire.KindHealRequest, DataDir: filepath.Join(w.dir, "data"), Network: args[1]}
	for _, a := range args[2:] {
		switch k, v, _ := strings.Cut(a, "="); k {
		case "spare":
			q.Spare = w.id(v)
		case "valid":
			valid := []wire.Attachment{}
			for o := range strings.SplitSeq(v, ",") {
				if owner, ifName, ok := strings.Cut(o, "/"); ok {
					valid = append(valid, wire.Attachment{ContainerID: w.id(owner), IfName: ifName})
				}
			}
			q.Valid = &valid
		default:
			ts.Fatalf("unknown key %q", strconv.Quote(k))
		}
	}
	var b bytes.Buffer
	ts.Check(wire.Write(&b, q))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o600))
}
