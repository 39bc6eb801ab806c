// Demo shows Holdfast at work in half a minute, on this machine and beside everything
// that runs on it.
//
// It makes a network namespace that plays the node, adds six "Pods" to it with the
// real bridge and host-local plugins through libcni, loses the DEL of three of them in
// three ways, and runs `holdfast audit`, `explain`, `gc --wait` and `undo` over it.
// Then it checks that the three living Pods kept their addresses and the right
// reservations went, and takes everything away.
//
// It needs root. It needs no packages, no container runtime and no iproute2: the
// plugins are built from their module and interfaces are read over netlink.
//
// Everything lies under one temporary directory and in namespaces of its own; its
// network has a random name, and holdfast is told to look at that network alone
// (--network), so nothing else on the machine is ever judged. The addresses come from
// 10.127.0.0/16; two demos at once meet in one case of 256, and then keep the
// addresses, since they are in use.
//
// The program runs itself in three roles: the stage, which builds, starts the node and
// cleans up even after a crash of it; the node, in its own network namespace; and
// pause, the process of a Pod.
package main
