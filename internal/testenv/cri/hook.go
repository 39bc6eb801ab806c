package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// spec is where the OCI spec lies that every container of a hooked runtime begins with.
func (p paths) spec() string { return filepath.Join(p.dir, "spec.json") }

// installHook writes the spec that the configuration of a hooked runtime names: the
// default one, with a hook for Pods that share the machine's PID namespace. Their PID 1
// would be the machine's, which is in the machine's network namespace; on a real node it
// is in the node's. runc lets nobody mount over /proc, but a hook that runs in the new
// container's mounts may.
func (r *Runtime) installHook(ctx context.Context) error {
	var err error
	if r.init, err = r.startStandIn(); err != nil {
		return err
	}
	hook := filepath.Join(r.p.dir, "init-hook")
	if err := os.WriteFile(hook, fmt.Appendf(nil, hookScript, r.init.cmd.Process.Pid), 0o755); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "ctr", "oci", "spec").Output()
	if err != nil {
		return fmt.Errorf("ctr oci spec: %w", err)
	}
	var spec map[string]any
	if err := json.Unmarshal(out, &spec); err != nil {
		return err
	}
	spec["hooks"] = map[string]any{"createContainer": []any{map[string]any{"path": hook, "args": []string{hook}, "timeout": 30}}}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(r.p.spec(), text, 0o644)
}

// hookScript gets the container's state on standard input, and runs in the container's
// namespaces before the root directory is changed, so with the machine's /proc. A
// container with a PID namespace of its own has its own PID 1.
const hookScript = `#!/bin/sh
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
state=$(cat)
[ "$(readlink /proc/self/ns/pid)" = "$(readlink /proc/%[1]d/ns/pid)" ] || exit 0
bundle=${state#*\"bundle\":\"}
bundle=${bundle%%%%\"*}
mount --bind /proc/%[1]d "$bundle/rootfs/proc/1"
`
