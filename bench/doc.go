// Command bench measures holdfast on a node that it makes itself: reservations in four
// networks, network namespaces each with a process, a scripted container runtime in a
// process of its own, and the libcni cache of what lives. It needs root and nothing
// but Go and what hack/testbin builds. `make bench` runs all of it.
//
// Scope: `holdfast audit` as a whole process against the shell loop that operators use
// and against the floor (bench/floor), its growth from 10,000 to 65,536 reservations,
// how long a sweep holds host-local's lock beside upstream's host-local (I12), and what the
// agents of a cluster ask of an API server (bench/api, with the rooms of the tests). The
// figures of docs/benchmarks.md come from here.
//
// Non-scope: whether the answers are right, past a count that shows that the work
// measured is the work meant.
//
// Everything that it makes has a name of its own and is removed by that name, also on
// SIGINT and SIGTERM: a directory in $TMPDIR, mounts below it, a cgroup. Its processes
// die with it. A SIGKILL leaves the directory, the mounts and the cgroup behind.
package main
