// Package fsys is the one interface over the file calls that stores make: the
// kernel's own table, by descriptor and errno. Beneath it stands the kernel (OS), or a
// disk in memory whose power can fail (package memfs), so that a simulator can end a
// process at any single file call, or the machine.
//
// Scope: the calls that hostlocal, journal, state and cnicache need; on top of them
// File for streams, ReadDir, Stat, MkdirAll.
//
// Non-scope: policy. What is opened with which flags, what is compared, and what an
// errno means stays with the callers.
//
// # For users
//
//	fs := fsys.Or(cfg.FS)                                  // nil means the kernel
//	fd, err := fs.Openat(unix.AT_FDCWD, path, flags, mode) // err is a bare unix.Errno
//	st, err := fs.Fstat(fd)                                // a value: nothing escapes
//
// Every Config, Options or Quarantine with an FS field takes one; two parts that work on
// the same files must have the same one.
package fsys
