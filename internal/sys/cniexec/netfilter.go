package cniexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// lockWait is how long, in seconds, iptables waits for the xtables lock.
const lockWait = 5

// The plugins' nftables masquerade (v1.6 and later) lives here.
const (
	nftFamily = "inet"
	nftTable  = "cni_plugins_masquerade"
	nftChain  = "masq_checks"
)

// masquerade removes what bridge and ptp set up for ipMasq, as the plugins'
// ip.TeardownIPMasqForNetworks does: in iptables and in nftables, whichever are
// here, since the backend may have changed after the ADD. Rules are found by chain
// name or comment, both made of network name and container ID, so it does not matter
// whose the address is by now.
func (r *Runner) masquerade(ctx context.Context, call Call) error {
	var errs []error
	tools := 0
	for _, fam := range families(call.nets) {
		ipt, err := r.iptables(fam.proto)
		if errors.Is(err, ErrMissing) && call.backend != "iptables" {
			continue
		}
		tools++
		if err == nil {
			err = masqIPTables(ctx, ipt, call, fam.nets)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	nft, err := r.lookPath("nft")
	if err == nil || call.backend == "nftables" {
		tools++
		if err == nil {
			err = r.masqNFTables(ctx, nft, call)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if tools == 0 {
		return fmt.Errorf("iptables and nft %w in %s", ErrMissing, quote(r.cfg.Path))
	}
	return errors.Join(errs...)
}

type family struct {
	proto iptables.Protocol
	nets  []netip.Prefix
}

// families sorts addresses by the tool that has their rules.
func families(nets []netip.Prefix) []family {
	var v4, v6 []netip.Prefix
	for _, n := range nets {
		if n.Addr().Is4() {
			v4 = append(v4, n)
		} else {
			v6 = append(v6, n)
		}
	}
	var out []family
	if len(v4) > 0 {
		out = append(out, family{iptables.ProtocolIPv4, v4})
	}
	if len(v6) > 0 {
		out = append(out, family{iptables.ProtocolIPv6, v6})
	}
	return out
}

func masqIPTables(ctx context.Context, ipt *iptables.IPTables, call Call, nets []netip.Prefix) error {
	a := call.Attachment
	chain, comment := utils.FormatChainName(a.Network, a.ContainerID), utils.FormatComment(a.Network, a.ContainerID)
	steps := make([]func() error, 0, 2*len(nets)+2)
	for _, n := range nets {
		// Plugins before v0.7 jumped from the whole subnet.
		for _, src := range []string{n.Addr().String(), n.String()} {
			steps = append(steps, func() error {
				return ipt.Delete("nat", "POSTROUTING", "-s", src, "-j", chain, "-m", "comment", "--comment", comment)
			})
		}
	}
	steps = append(steps,
		func() error { return ipt.ClearChain("nat", chain) }, // creates it where it is missing
		func() error { return ipt.DeleteChain("nat", chain) },
	)
	exists, err := ipt.ChainExists("nat", chain)
	if err == nil && !exists {
		return nil
	}
	for _, step := range steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var ipte *iptables.Error
		if err := step(); err != nil && !(errors.As(err, &ipte) && ipte.IsNotExist()) {
			return fmt.Errorf("chain %s: %w", chain, err)
		}
	}
	if exists, err := ipt.ChainExists("nat", chain); err != nil {
		return fmt.Errorf("chain %s: cannot be seen whether it is gone: %w", chain, err)
	} else if exists {
		return fmt.Errorf("chain %s: %w", chain, ErrStill)
	}
	return nil
}

// masqNFTables deletes the rules whose comment begins with the hash of the
// attachment.
func (r *Runner) masqNFTables(ctx context.Context, nft string, call Call) error {
	prefix := nftComment(call)
	handles, err := r.nftRules(ctx, nft, prefix)
	if err != nil {
		return err
	}
	for _, h := range handles {
		_, stderr, err := r.exec(ctx, command{path: nft, env: []string{"PATH=" + r.cfg.Path},
			args: []string{"delete", "rule", nftFamily, nftTable, nftChain, "handle", strconv.FormatUint(h, 10)}})
		if err != nil {
			return fmt.Errorf("nft delete rule: %w: %s", err, clean(string(stderr)))
		}
	}
	if len(handles) == 0 {
		return nil
	}
	if handles, err = r.nftRules(ctx, nft, prefix); err == nil && len(handles) > 0 {
		err = fmt.Errorf("nftables masquerade rules: %w", ErrStill)
	}
	return err
}

// nftComment is the start of the comment on the rules of an attachment. The
// interface counts here, which it does not for iptables.
func nftComment(call Call) string {
	a := call.Attachment
	return utils.MustFormatHashWithPrefix(16, "", a.Network) + "-" + utils.MustFormatHashWithPrefix(16, "", a.IfName+":"+a.ContainerID)
}

// nftRules lists the handles of the rules whose comment begins with prefix. Without
// our table there are none.
func (r *Runner) nftRules(ctx context.Context, nft, prefix string) ([]uint64, error) {
	list := func(args ...string) (nftList, error) {
		out, stderr, err := r.exec(ctx, command{path: nft, env: []string{"PATH=" + r.cfg.Path}, args: args, max: maxList})
		if err != nil {
			return nftList{}, fmt.Errorf("nft list: %w: %s", err, clean(string(stderr)))
		}
		return parseNFT(out)
	}
	chains, err := list("-j", "list", "chains", nftFamily)
	if err != nil {
		return nil, err
	}
	if !chains.hasChain() {
		return nil, nil
	}
	rules, err := list("-j", "-a", "list", "chain", nftFamily, nftTable, nftChain)
	if err != nil {
		return nil, err
	}
	return rules.handles(prefix), nil
}

// parseNFT reads a listing of nft -j. One without a list of objects is an error: nft
// writes its version there at least, and taken for an empty one it would say that every
// rule is gone.
func parseNFT(out []byte) (nftList, error) {
	var l nftList
	if err := json.Unmarshal(out, &l); err != nil {
		return nftList{}, fmt.Errorf("nft list: %s", clean(err.Error()))
	}
	if l.Objects == nil {
		return nftList{}, errors.New("nft list: the output is no listing")
	}
	return l, nil
}

// hasChain reports whether the chain of the plugins' masquerade is listed.
func (l nftList) hasChain() bool {
	for _, o := range l.Objects {
		if o.Chain != nil && o.Chain.Table == nftTable && o.Chain.Name == nftChain {
			return true
		}
	}
	return false
}

// handles returns those of the rules whose comment begins with prefix.
func (l nftList) handles(prefix string) []uint64 {
	var out []uint64
	for _, o := range l.Objects {
		if o.Rule != nil && o.Rule.Handle != 0 && strings.HasPrefix(o.Rule.Comment, prefix) {
			out = append(out, o.Rule.Handle)
		}
	}
	return out
}

type nftList struct {
	Objects []struct {
		Chain *struct {
			Table string `json:"table"`
			Name  string `json:"name"`
		} `json:"chain"`
		Rule *struct {
			Handle  uint64 `json:"handle"`
			Comment string `json:"comment"`
		} `json:"rule"`
	} `json:"nftables"`
}

// verify looks whether what a plugin's DEL should remove is gone. It convicts on
// what it sees and says nothing of what it cannot see.
func (r *Runner) verify(call Call) error {
	a := call.Attachment
	switch call.Plugin {
	case "portmap":
		chain := utils.MustFormatChainNameWithPrefix(a.Network, a.ContainerID, "DN-")
		for _, proto := range []iptables.Protocol{iptables.ProtocolIPv4, iptables.ProtocolIPv6} {
			ipt, err := r.iptables(proto)
			if err != nil {
				continue
			}
			if exists, err := ipt.ChainExists("nat", chain); err == nil && exists {
				return fmt.Errorf("chain %s: %w", chain, ErrStill)
			}
		}
	case "firewall":
		if call.backend == "firewalld" {
			return nil
		}
		for _, fam := range families(call.nets) {
			ipt, err := r.iptables(fam.proto)
			if err != nil {
				continue
			}
			for _, n := range fam.nets {
				src := netip.PrefixFrom(n.Addr(), n.Addr().BitLen()).String()
				if exists, err := ipt.Exists("filter", "CNI-FORWARD", "-s", src, "-j", "ACCEPT"); err == nil && exists {
					return fmt.Errorf("rule for %s in CNI-FORWARD: %w", src, ErrStill)
				}
			}
		}
	case "bandwidth":
		dev := ifbName(call)
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return nil
		}
		defer h.Close()
		if l, err := h.LinkByName(dev); err == nil && l.Type() == "ifb" {
			return fmt.Errorf("device %s: %w", dev, ErrStill)
		}
	}
	return nil
}

// ifbName is the device that bandwidth makes for an attachment.
func ifbName(call Call) string {
	return utils.MustFormatHashWithPrefix(15, "bwp", call.Attachment.Network+call.Attachment.ContainerID)
}

func (r *Runner) iptables(proto iptables.Protocol) (*iptables.IPTables, error) {
	name := "iptables"
	if proto == iptables.ProtocolIPv6 {
		name = "ip6tables"
	}
	path, err := r.lookPath(name)
	if err != nil {
		return nil, err
	}
	return iptables.New(iptables.IPFamily(proto), iptables.Timeout(lockWait), iptables.Path(path))
}

// lookPath searches Config.Path, not our own PATH.
func (r *Runner) lookPath(name string) (string, error) {
	for _, dir := range filepath.SplitList(r.cfg.Path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s %w in %s", name, ErrMissing, quote(r.cfg.Path))
}
