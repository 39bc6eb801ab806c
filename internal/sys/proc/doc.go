// Package proc takes one snapshot of a node through its proc file system and gives
// two testimonies from it: what network namespaces there are and which addresses
// they hold (claim.WitnessKernel), and which container IDs stand whole in live
// processes (claim.WitnessProcess).
//
// Scope: /proc/PID of every process, the mounts of every mount namespace that a
// process is in, the addresses of every network namespace, and the proof that all of
// this is the whole node (claim.Vantage, I13).
//
// Non-scope: what follows from it (package verdict); links, routes and veths
// (package links). Nothing is changed on the node; for the length of a snapshot a
// descriptor of every namespace is held, and where a namespace's only mount is covered a
// private copy of the mounts is made for a moment (uncover.go).
//
// # How it settles
//
// An enumeration walks the processes, then reads the mounts. Every namespace that it
// meets is opened at once, and the descriptor kept until the snapshot ends: so it
// cannot vanish, and its inode cannot be given to a new one, while the snapshot is
// taken. After the addresses were dumped, the node is enumerated again. Every
// namespace of that second enumeration must have been dumped before it began; else
// the new ones are dumped and it is done again, until the time-out, which makes both
// testimonies silent (I5). What was seen in either of the last two enumerations is
// reported, so that a namespace which moves from a process to a mount or back in
// between is not lost. What was seen in neither is closed again (forget).
//
// A process that ends meanwhile is no error. The kernel answers EACCES as well as
// ENOENT and ESRCH for one that has just ended, so EACCES counts as a refusal only if
// the same process (not the same number) is still there afterwards. A refusal makes
// both testimonies silent, with one exception that is described at guarded.
//
// A process of the same executable, or one that is taking a snapshot (ours), is left out
// where it holds or has entered a namespace: that is no use.
//
// # What it does not see
//
//   - An address that is added, or a process that is started, after its namespace or
//     /proc was read: the grace and the live re-check (I6) are for that.
//   - A namespace that is kept by nothing but a socket made in it, a descriptor in
//     flight in a unix socket or in a thread's own table of descriptors
//     (unshare(CLONE_FILES)), or a mount in a mount namespace that no process has as
//     its main thread's. Where a link of the node's own namespace leads into it, as a
//     Pod's veth does, that is noticed and makes both testimonies silent (peers.go). It
//     stays unseen where its links lead elsewhere: into another Pod's or a router's
//     namespace, or down to a device of the node (macvlan, ipvlan, a moved NIC), of
//     which the node's side says nothing; and where the proc file system is not of the
//     initial PID namespace.
//   - A namespace that nothing shows but mounts in mount namespaces of other user
//     namespaces, where no path leads to it, since a cover lies above (the kernel keeps
//     covers locked there) or a file system on the way does not answer: it is left out,
//     and the vantage names it with a process (foreign.go).
//   - Addresses that the kernel does not have: gVisor, vfio, vhost-user (case F20).
package proc
