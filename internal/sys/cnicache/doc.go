// Package cnicache is the room of libcni's result cache: <cacheDir>/results/*, one
// file per attachment, written after an ADD and removed after a DEL.
//
// Scope: listing it (Inventory.List), reading one entry again, removing the entry
// that was judged and no other (I7), putting it back for an undo (I3).
//
// Non-scope: running plugins from it (package cniexec); what any of it means for
// an address (package verdict). The cache is a source of reasons and of labels. It
// is no witness: libcni writes it after the last plugin, without a rename and
// without an fsync, and runtimes remove it whatever the plugins said. So neither a
// missing entry nor a broken one is evidence that anything is dead (cases L6, L11).
//
// Whoever can write the cache directory can write anything into it: names,
// contents and file types are hostile here. Only regular files are read, without
// following links, at most 1 MiB of each.
package cnicache
