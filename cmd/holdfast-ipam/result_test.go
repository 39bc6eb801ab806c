package main

import (
	"bytes"
	"net"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// TestPrintResult: whatever is written here is what the CNI library writes.
func TestPrintResult(t *testing.T) {
	addr := func(cidr, gateway string) *current.IPConfig {
		ip, network, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		return &current.IPConfig{Address: net.IPNet{IP: ip, Mask: network.Mask}, Gateway: net.ParseIP(gateway)}
	}
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	v4, v6 := addr("10.1.0.7/24", "10.1.0.1"), addr("fd00::7/64", "fd00::1")
	for name, r := range map[string]current.Result{
		"one":        {IPs: []*current.IPConfig{v4}},
		"both":       {IPs: []*current.IPConfig{v4, v6}},
		"no gateway": {IPs: []*current.IPConfig{addr("10.1.0.7/24", "")}},
		"mapped":     {IPs: []*current.IPConfig{addr("::ffff:10.1.0.7/120", "::ffff:10.1.0.1")}},
		"none":       {},
		"a route":    {IPs: []*current.IPConfig{v4}, Routes: []*types.Route{{Dst: *all}}},
		"DNS":        {IPs: []*current.IPConfig{v4}, DNS: types.DNS{Domain: "<&>"}},
		"on one":     {IPs: []*current.IPConfig{{Interface: new(0), Address: v4.Address}}},
		"interface":  {IPs: []*current.IPConfig{v4}, Interfaces: []*current.Interface{{Name: "eth0"}}},
	} {
		for _, version := range []string{"1.1.0", "1.0.0", "0.4.0", "0.3.1", "0.2.0", "0.1.0", "", "9.0.0"} {
			for _, made := range []string{current.ImplementedSpecVersion, ""} {
				theirs := r
				theirs.CNIVersion = made
				ours := theirs
				var got, want bytes.Buffer
				err := printResult(&got, &ours, version)
				res, wantErr := theirs.GetAsVersion(version)
				if wantErr == nil {
					wantErr = res.PrintTo(&want)
				}
				if got.String() != want.String() || (err == nil) != (wantErr == nil) {
					t.Errorf("%s, %q: %s, %v\nwant %s, %v", name, version, got.Bytes(), err, want.Bytes(), wantErr)
				}
			}
		}
	}
}
