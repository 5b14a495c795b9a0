package guard

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt makes this process the parent of what its children leave behind, so
// that it knows when all are gone.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// attributes gives the command a group of its own, and has it killed when the
// thread that starts it is gone.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
