// Package memfs is a disk in memory whose power can fail, for tests and the simulator.
//
//	d := memfs.New(memfs.Options{Now: ns})   // one disk, "/" mounted; Mount adds devices
//	p := d.Process()                         // an fsys.FS: one process, own descriptors and flocks
//	p.SetHook(func(c memfs.Call) error {...})// before each call of p; an error is the call's result
//	p.KillAt(k)                              // SIGKILL in place of its k-th call from now on
//	p.Kill()                                 // now; p.Alive(), p.Calls()
//	d.Crash(rng)                             // power loss: kills all, keeps what may survive
//	d.Sync()                                 // as the kernel does every some seconds: all is durable
//	d.ReadFile, List, Walk, Lstat            // an oracle's look, without a process
//	d.WriteFile, Remove, MkdirAll, Symlink, Mkfifo // a foreign hand, never fsynced
//	d.Mount, SetReadOnly, SetFree, Deny      // devices, remount, disk full, EACCES or EIO at a path
//
// Call Sync once what the disk begins with is in place, mount points above all. What a
// reboot empties (/run) is a Mount, taken away and mounted again after Crash. A process that
// was killed goes on as Go code: who runs it sees ErrKilled or Alive and stops believing it.
// Fsync that fails (a hook with EIO) leaves what it was for undurable, and a later one that
// does not fail makes it durable: harsher kernels drop it.
//
// Scope: what fsys.FS can do, with the results and errnos of ext4; the contract table in
// contract_test.go runs over it and over the kernel's file systems.
//
// Non-scope: users and modes (Deny makes a path fail), directories larger than a test's,
// blocking opens of FIFOs, access times.
//
// # What survives Crash
//
// Content: what was fsynced, always. Of the writes and truncations since, each may
// survive wholly, up to any byte, as zeros, or not at all, in any order. Mode, owner, time
// and attributes likewise, as a whole.
//
// Names: each change (create, link, unlink, rename, mkdir) is one operation, atomic also
// when it touches two directories. In each directory, and for each inode, what survives
// is a prefix of the operations; across directories there is no order. Fsync of a directory
// makes its operations durable with those before them. Fsync of a file makes no name
// durable, that of a directory not its own name in its parent.
//
// Files without a name are gone. Numbers of inodes are used again at once, as on ext4.
package memfs
