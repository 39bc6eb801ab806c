package main

import (
	"io"
	"slices"

	current "github.com/containernetworking/cni/pkg/types/100"
)

// printResult writes a result as types.PrintResult does, to the byte (a test holds it to that).
// One with addresses alone, in a version of today, is written without encoding/json: three
// passes of reflection are a twentieth of an ADD.
func printResult(w io.Writer, result *current.Result, version string) error {
	onInterface := func(ip *current.IPConfig) bool { return ip.Interface != nil }
	if version != "1.0.0" && version != "1.1.0" || len(result.IPs) == 0 || len(result.Routes) > 0 || !result.DNS.IsEmpty() ||
		len(result.Interfaces) > 0 || slices.ContainsFunc(result.IPs, onInterface) {
		r, err := result.GetAsVersion(version)
		if err != nil {
			return err
		}
		return r.PrintTo(w)
	}
	b := []byte("{\n    \"cniVersion\": \"" + version + "\",\n    \"ips\": [")
	for i, ip := range result.IPs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, "\n        {\n            \"address\": \""+ip.Address.String()+"\""...)
		if len(ip.Gateway) > 0 {
			b = append(b, ",\n            \"gateway\": \""+ip.Gateway.String()+"\""...)
		}
		b = append(b, "\n        }"...)
	}
	_, err := w.Write(append(b, "\n    ]\n}"...))
	return err
}
