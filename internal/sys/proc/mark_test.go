package proc

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Linux 6.3 to 6.5 with vm.memfd_noexec=2 refuse a mark that could be executed, and then
// nothing could be seen.
func TestMarkIsNotExecutable(t *testing.T) {
	plain, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	known := err == nil // a kernel before 6.3 has nothing to refuse
	if known {
		unix.Close(plain)
	}
	fd, err := makeMark()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		t.Fatal(err)
	}
	if sealed := seals&unix.F_SEAL_EXEC != 0; sealed != known {
		t.Errorf("seals %#x: not executable: %v, and the kernel knows how: %v", seals, sealed, known)
	}
}
