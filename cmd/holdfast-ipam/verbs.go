package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

// openThere opens the store if its directory exists; nil and no error when it does not:
// nothing is made where nothing is to be added.
func (r *request) openThere() (*hostlocal.Store, error) {
	if _, err := os.Stat(r.dir()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return r.open()
}

// cmdDel releases whatever the attachment has in this network, in and out of the
// configured ranges, and says what it could not.
func cmdDel(args *cmdArgs) error {
	r, err := parse(args)
	if err != nil {
		return err
	}
	store, err := r.openThere()
	if err != nil || store == nil {
		return err
	}
	defer r.close(store)
	tx, err := store.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.End()
	own, legacy, err := tx.Owned(args.ContainerID, args.IfName)
	if err != nil {
		return err
	}
	// An error is never "absent": what is missing of one for each range set may be in what could
	// not be read.
	if len(own)+len(legacy) < len(r.conf.Ranges) {
		err = tx.Unread
	}
	// Those of host-local before 0.7, which wrote no interface. host-local looks for them
	// when it finds no others, once for each range set.
	if len(own) == 0 || len(r.conf.Ranges) > 1 {
		own = append(own, legacy...)
	}
	for _, h := range own {
		err = errors.Join(err, tx.Remove(h))
	}
	// Not fsynced: the power that takes the unlink back ends the boot, and what comes back is one
	// dead reservation more among those of everything that ran, with the same stamp that says so.
	return err
}

// cmdCheck compares what is reserved with what the previous result says: each address of
// it that lies in our ranges is reserved for this attachment, and nothing else is.
func cmdCheck(args *cmdArgs) error {
	r, err := parse(args)
	if err != nil {
		return err
	}
	notFound := fmt.Errorf("host-local: Failed to find address added by container %v", args.ContainerID)
	store, err := r.openThere()
	if err != nil {
		return err
	}
	if store == nil {
		return notFound
	}
	defer r.close(store)
	tx, err := store.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.End()
	own, legacy, err := tx.Owned(args.ContainerID, args.IfName)
	if err != nil {
		return err
	}
	if own = append(own, legacy...); len(own) == 0 {
		return cmp.Or(tx.Unread, notFound)
	}
	prev, err := previous(args.StdinData)
	if err != nil || prev == nil {
		return err
	}
	var has, want []netip.Addr
	for _, h := range own {
		has = append(has, h.Addr)
	}
	for _, ip := range prev.IPs {
		want = append(want, addrOf(ip.Address.IP))
	}
	for _, addr := range has {
		if !slices.Contains(want, addr) {
			return fmt.Errorf("%s is reserved for container %s, and the previous result does not have it", addr, args.ContainerID)
		}
	}
	for _, addr := range want {
		for i := range r.conf.Ranges {
			if r.conf.Ranges[i].Contains(addr.AsSlice()) && !slices.Contains(has, addr) {
				return fmt.Errorf("the previous result has %s, and it is not reserved for container %s", addr, args.ContainerID)
			}
		}
	}
	return nil
}

// previous is prevResult, nil if there is none.
func previous(stdin []byte) (*current.Result, error) {
	var conf types.PluginConf
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return nil, err
	}
	if conf.RawPrevResult == nil {
		return nil, nil
	}
	if err := cniversion.ParsePrevResult(&conf); err != nil {
		return nil, fmt.Errorf("could not parse prevResult: %w", err)
	}
	return current.NewResultFromResult(conf.PrevResult)
}

// cmdStatus says whether an ADD would find an address. A range that is full is healed
// first, as an ADD would do.
func cmdStatus(args *cmdArgs) error {
	r, err := parse(args)
	if err != nil {
		return err
	}
	unavailable := func(err error) error {
		return types.NewError(types.ErrPluginNotAvailable, "holdfast-ipam: "+err.Error(), "")
	}
	store, err := r.open()
	if err != nil {
		return unavailable(err)
	}
	defer r.close(store)
	// Whole and durable is what a reservation must become; so is this.
	d, err := store.Draft("status", "eth0", 0)
	if err != nil {
		return unavailable(err)
	}
	store.Discard(d)
	ctx := context.Background()
	full, err := r.exhausted(ctx, store)
	if err == nil && full != nil {
		healed := r.heal(ctx, full)
		full, err = r.exhausted(ctx, store)
		if err == nil && full != nil {
			err = fmt.Errorf("range %d: %w; %s", full.set, full, healed)
		}
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// exhausted returns the first range set without a free address, nil if all have one.
func (r *request) exhausted(ctx context.Context, store *hostlocal.Store) (*fullError, error) {
	full, err := r.full(ctx, store)
	if err == nil && full != nil {
		store.Anew() // not on the word of an index alone
		full, err = r.full(ctx, store)
	}
	return full, err
}

// full is one turn of exhausted. Where names were lost, an address that the kernel holds is
// not free (I11).
func (r *request) full(ctx context.Context, store *hostlocal.Store) (*fullError, error) {
	view := &kernelView{}
	tx, err := store.Begin(ctx)
	if err == nil && tx.Distrust != 0 {
		tx.End()
		view = lookAtKernel(ctx, r.clock.Now)
		tx, err = store.Begin(ctx)
	}
	if err != nil {
		return nil, err
	}
	defer tx.End()
	for i := range r.conf.Ranges {
		set := &r.conf.Ranges[i]
		if free, held := anyFree(tx, view, set); !free {
			return &fullError{set: i, ranges: set.String(), reserved: tx.Reserved(), held: held}, nil
		}
	}
	return nil, nil
}

// parseResolvConf reads the file as host-local does.
func parseResolvConf(path string) (*types.DNS, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var dns types.DNS
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.ContainsAny(line[:1], "#;") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, fields[1])
		case "domain":
			dns.Domain = fields[1]
		case "search":
			dns.Search = append(dns.Search, fields[1:]...)
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return &dns, lines.Err()
}
