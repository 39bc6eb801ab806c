package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// apiServer is a scripted API server with one node, n1.
type apiServer struct {
	kubeconfig string
	boot       string

	mu     sync.Mutex
	mode   string
	pods   []map[string]any
	listed int
}

// api-server MODE [UID[/PHASE][=ADDR] ...] makes the API server behave like this from now on,
// with these Pods. The modes: ok; down (503); forbidden (list of Pods); wrong-node.
func (w *world) apiServer(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 20, "api-server MODE [UID[/PHASE][=ADDR] ...]")
	if w.api == nil {
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		ts.Check(err)
		w.api = &apiServer{kubeconfig: filepath.Join(w.dir, "kubeconfig"), boot: strings.TrimSpace(string(boot))}
		srv := httptest.NewServer(w.api)
		ts.Defer(srv.Close)
		w.write(ts, w.api.kubeconfig, "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: '"+srv.URL+
			"'}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x}]\n")
	}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.api.mode, w.api.pods = args[0], nil
	for _, a := range args[1:] {
		a, addr, _ := strings.Cut(a, "=")
		uid, phase, ended := strings.Cut(a, "/")
		if !ended {
			phase = "Running"
		}
		if uid == "bystander" {
			uid = "uid-" + w.id("bystander")[:8]
		}
		status := map[string]any{"phase": phase}
		if addr != "" {
			status["podIPs"] = []map[string]any{{"ip": addr}}
		}
		w.api.pods = append(w.api.pods, map[string]any{
			"metadata": map[string]any{"namespace": "shop", "name": uid, "uid": uid}, "spec": map[string]any{"nodeName": "n1"}, "status": status,
		})
	}
}

// api-asked N: so many times the Pods were asked for since the last time.
func (w *world) apiAsked(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "api-asked N")
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	if strconv.Itoa(w.api.listed) != args[0] {
		ts.Fatalf("asked %d times, want %s", w.api.listed, args[0])
	}
	w.api.listed = 0
}

// apiQuiet: api-quiet VERB [args ...] wants that a command does not ask the API server; at most once if
// this machine has namespaces of other tests, which are judged too when nobody uses them.
func (w *world) apiQuiet(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 20, "api-quiet VERB [args ...]")
	w.holdfast(ts, args)
	most := 0
	if mounts, err := os.ReadFile("/proc/1/mountinfo"); err != nil || strings.Contains(string(mounts), " /run/netns/") {
		most = 1
	}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	if w.api.listed > most {
		ts.Fatalf("asked %d times, want at most %d", w.api.listed, most)
	}
	w.api.listed = 0
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// What is asked first, for how new the list is to be.
	revision := r.URL.Path == "/api/v1/namespaces/default/pods"
	pods := r.URL.Path == "/api/v1/pods"
	if revision {
		s.listed++
	}
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}
	var doc map[string]any
	switch {
	case s.mode == "down":
		refuse(http.StatusServiceUnavailable, "ServiceUnavailable")
		return
	case s.mode == "forbidden" && (pods || revision):
		refuse(http.StatusForbidden, "Forbidden")
		return
	case revision:
		doc = map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "7"}}
	case pods:
		doc = map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "7"}, "items": s.pods}
	default:
		boot := s.boot
		if s.mode == "wrong-node" {
			boot = "0a1b2c3d-1111-2222-3333-444455556666"
		}
		doc = map[string]any{
			"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": "n1"}, "status": map[string]any{"nodeInfo": map[string]any{"bootID": boot}},
		}
	}
	_ = json.NewEncoder(w).Encode(doc)
}
