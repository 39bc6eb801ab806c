// Package boot reads the clocks and the boot ID.
//
// Scope: one reading of the node's clocks (claim.Instant), and the boot ID as PID 1 sees
// it.
//
// Non-scope: which boots are over, and their history (package state).
//
// An instant of another time namespace than PID 1's would prove any grace at once, so
// there is no boot ID there: such instants compare with none.
//
// The boot ID has two sources: <proc>/1/root/proc/sys/kernel/random/boot_id and, if
// PID 1's root is refused to us, <proc>/sys/kernel/random/boot_id. Containers such
// as systemd-nspawn, LXC and kind mount a file over it, so the two can differ (case
// F23). If one run recorded the one and a later run the other, a boot would look
// replaced that is still on, and its live sandboxes would look dead. So the second
// source counts only where it must agree with the first: nothing is mounted over it
// in PID 1's mounts, and what we read is the kernel's own file.
package boot
