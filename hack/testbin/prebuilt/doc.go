// Package prebuilt builds pinned foreign programs (containerd, the CNI plugins,
// Kubernetes, the pause program) into a cache outside the clone.
//
// Scope: which programs there are, the cache's key and place, building what is
// missing, once, however many runs ask for it at the same time.
//
// Non-scope: running them (internal/testenv), Debian packages (hack/apt.sh). A cache
// is never pruned: its directories are keyed by all that goes into them and may be
// removed by hand at any time that nothing runs from them.
package prebuilt
