package kubelet

import (
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	// DefaultTimeout is the kubelet's own default of runtimeRequestTimeout.
	DefaultTimeout = 2 * time.Minute
	// longest bounds what is believed, so that twice of it is still a time.
	longest = 24 * time.Hour
)

// Grace is the least time between two sightings by which no ADD of a kubelet with this
// runtimeRequestTimeout is in flight any more: it waits twice the time-out for
// RunPodSandbox, and at least 5 min are waited anyhow.
func Grace(timeout time.Duration) time.Duration {
	return max(5*time.Minute, 2*min(timeout, longest)+time.Minute)
}

// flags are the ones of a kubelet that matter here; the last of a kind counts, as with pflag.
type flags struct {
	config, configDir, timeout string
}

// flagsOf reads a process's arguments. ok is false if it is no kubelet. k3s hands on what its
// --kubelet-arg says.
func flagsOf(args []string) (f flags, ok bool) {
	if len(args) == 0 {
		return f, false
	}
	name := args[0][strings.LastIndexByte(args[0], '/')+1:]
	switch {
	case name == "kubelet":
		f.read(args[1:])
		return f, true
	case name == "k3s" || name == "k3s-server" || name == "k3s-agent":
		var own []string
		for _, v := range values(args[1:], "kubelet-arg") {
			own = append(own, "--"+strings.TrimLeft(v, "-"))
		}
		f.read(own)
		return f, true
	}
	return f, false
}

func (f *flags) read(args []string) {
	last := func(name string) string {
		if v := values(args, name); len(v) > 0 {
			return v[len(v)-1]
		}
		return ""
	}
	f.config, f.configDir, f.timeout = last("config"), last("config-dir"), last("runtime-request-timeout")
}

// values are those of a flag, "--name=value" or "--name value".
func values(args []string, name string) (out []string) {
	for i := 0; i < len(args); i++ {
		flag := strings.TrimPrefix(strings.TrimPrefix(args[i], "-"), "-")
		if flag == args[i] {
			continue
		}
		n, v, given := strings.Cut(flag, "=")
		if strings.ReplaceAll(n, "_", "-") != name {
			continue
		}
		if !given {
			if i+1 == len(args) {
				break
			}
			i++
			v = args[i]
		}
		out = append(out, v)
	}
	return out
}

// timeoutOf reads a KubeletConfiguration, whole or a drop-in. 0: it says nothing of it.
func timeoutOf(text []byte) (time.Duration, error) {
	var c struct {
		RuntimeRequestTimeout string `json:"runtimeRequestTimeout"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return 0, fmt.Errorf("no KubeletConfiguration: %w", err)
	}
	if c.RuntimeRequestTimeout == "" {
		return 0, nil
	}
	return duration(c.RuntimeRequestTimeout)
}

// duration is a time-out as the kubelet reads it: none is the default.
func duration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("runtimeRequestTimeout is no time: %.40q", s)
	}
	if d <= 0 {
		return DefaultTimeout, nil
	}
	return min(d, longest), nil
}
