package main

const (
	storeFile = "internal/sys/hostlocal/store.go"
	scanFile  = "internal/sys/hostlocal/scan.go"
)

// ipamMutations are those of our allocator's store.
func ipamMutations() []mutation {
	return []mutation{
		one("stamp", "of two reservations the cache entry has the older stamp", sceneFile, "(old == nil || s.younger(r.Stamp, old))", "(old == nil || !s.younger(r.Stamp, old))").by("verdict", "TestStampCoversTheCacheEntry").blind(),
		one("I11", "a directory is trusted whatever happened", storeFile, "	tx.Distrust = tx.x.head.distrust\n	return tx, nil\n", "	return tx, nil\n"),
		one("I11", "a directory of which names are gone is trusted", scanFile, "x.head.distrust = max(x.head.distrust, sinceBoot)", "_ = x.head.distrust").by("sys/hostlocal", "TestDistrust|TestAnewDistrusts").blind(),
		one("I11", "a lost last_reserved_ip is nothing", storeFile, "tx.x.head.distrust, tx.dirty = max(s.mono(), sinceBoot+1), true", "tx.dirty = true").by("sys/hostlocal", "TestDistrust").blind(),
		one("I11", "a directory that is emptied again is not distrusted for longer", storeFile, "tx.x.head.distrust, tx.dirty = max(s.mono(), sinceBoot+1), true", "if tx.x.head.distrust <= sinceBoot {\n			tx.x.head.distrust, tx.dirty = max(s.mono(), sinceBoot+1), true\n		}").by("sim", "TestRegressions").blind(),
		one("I11", "the first look of a boot is like any other", storeFile, `case tx.x.head.distrust == 0 && (s.cfg.Boot == "" || tx.x.head.boot != s.cfg.Boot):`, "case false:").by("sys/hostlocal", "TestDistrust").blind(),
		one("I11", "a new directory is like any other", storeFile, "	case s.Fresh:\n", "	case false:\n").by("sys/hostlocal", "TestDistrust").blind(),
		one("index", "the index counts though others wrote", scanFile, "return err == nil && st.Mtime == x.head.mtime", "return err == nil && st.Mtime != 0").by("sys/hostlocal", "TestForeignWithinOneTick|TestIndexLies|TestOwners").blind(),
		one("draft", "a draft is not fsynced", storeFile, "		err = s.fs.Fsync(d.fd)\n", "		err = nil\n"),
		one("draft", "an acknowledged name is not fsynced", storeFile, "err := s.fs.Fsync(s.dirfd)", "err := error(nil)"),
		one("draft", "a name that is taken is given again, where there is no O_TMPFILE", storeFile, "err = s.fs.moveNoReplace(s.dirfd, d.temp, s.dirfd, name)", "err = s.fs.Renameat2(s.dirfd, d.temp, s.dirfd, name, 0)").by("sys/hostlocal", "TestStoreExclusive").blind(),
		one("L17", "what is taken over keeps its old stamp", storeFile, "err = s.stamp(&Draft{fd: fd, content: content}, netns)", "_ = content"),
		one("L18", "DEL removes nothing and says that it did", storeFile, "err = s.fs.unlinkIfThere(s.dirfd, name)", "return nil"),
	}
}
