// Package links is the room of two things that a sandbox leaves in the kernel: the
// mounts that keep its network namespace, and the host-side ends of its veths.
//
// Scope: listing the mounts as resources (Inventory.List) and the veths as a list
// of their own (Inventory.Veths), removing exactly one of either.
//
// Non-scope: which of them is dead, and who is inside a namespace (package proc
// tells, package verdict judges). No veth is a resource of its own: the kernel
// removes it with its peer's namespace, so what the caller removes is the namespace
// or, where that is gone, an end that a CNI result names.
//
// A mount that lies below another, where no path leads to it, is a Note of the listing;
// a removal takes it along where the plain file that is to be seen is the one that it is
// mounted on, and is an error otherwise.
//
// Both are read from PID 1's point of view. Where this process is in another mount
// namespace, the work is done by a thread that enters PID 1's and ends; where it is
// in another network namespace, by a socket opened there. A view that cannot be had
// is an error, never an empty list (I5, I13).
package links
