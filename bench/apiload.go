package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// apiPart runs bench/api, which needs the rooms of the tests, with the etcd of Debian and with one
// of today: where the API server reads depends on it.
func apiPart(ctx context.Context, s settings, out io.Writer) error {
	dir, err := binaries(ctx, "etcd")
	if err != nil {
		return err
	}
	for _, etcd := range []string{"", filepath.Join(dir, "etcd")} {
		fmt.Fprintf(out, "\napi: etcd %s\n", map[bool]string{true: "of Debian", false: "of hack/testbin/etcd"}[etcd == ""])
		cmd := exec.CommandContext(ctx, "go", "test", "./bench/api", "-run", "TestAgents$", "-count=1", "-v", "-timeout", "30m",
			"-agents", fmt.Sprint(s.limits.agents), "-pods", fmt.Sprint(s.limits.podsEach), "-for", "2m", "-every", "60s,2.4s", "-etcd", etcd)
		cmd.Env = append(os.Environ(), "REQUIRE=kube")
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("bench/api: %w", err)
		}
	}
	return nil
}
