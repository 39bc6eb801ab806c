// Package hostlocal owns the on-disk format of the host-local IPAM plugin: one
// directory <dataDir>/<network> with a file per reserved address, named by the
// address and holding "ID\r\nIFNAME", beside `lock` and `last_reserved_ip.N`.
//
// Scope: finding those directories (from CNI configuration files, from data
// directories, from the places that distributions are known to use), listing what
// is reserved in them, and moving single reservations into a quarantine and back
// under host-local's own lock. The format was read from the plugins v1.10.0
// (backend/disk, backend/allocator); files of older releases hold the ID alone.
//
// Non-scope: whether a reservation is in use (package verdict), when to release and
// the journal (package sweep, package journal), allocating addresses.
//
// # Safety
//
//   - Only regular files are opened, by openat on the directory, O_NOFOLLOW and
//     O_NONBLOCK, and at most 4096 bytes are read. A FIFO, device, symlink or
//     directory is reported and never opened where the kernel tells the type.
//   - A directory that could not be listed whole has Store.Problem, and every
//     resource of it has Problem too, so that nothing in it can be judged absent.
//   - A move is done for the incarnation that was judged or not at all (I7), under
//     the lock that host-local takes, held for a few milliseconds (I12).
//
// # Races that are not covered
//
//   - A program that writes into the directory without host-local's lock can change
//     a file between our check and our rename (microseconds). After a rename the
//     inode is compared again and a wrong one is put back; after an unlink (another
//     file system) it cannot be.
//   - getdents may miss an entry that is renamed while the directory is read. What
//     was missed is not judged in this pass.
//   - System calls on a dead network file system do not return, and a context
//     cannot interrupt them.
//   - The check that the quarantine lies outside the data directories walks up the
//     parents; a bind mount of a directory deep inside one, mounted elsewhere, is
//     not seen.
package hostlocal
