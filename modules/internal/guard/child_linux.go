package guard

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt makes this process the parent of what its children leave behind, so
// that it knows when all are gone.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// strays returns the processes that have come from this one and are not in the
// group. They left it by setsid, for example; orphans are this one's children.
func strays(group int) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	type process struct{ pid, group int }
	children := make(map[int][]process) // of each
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		p, parent, state := process{pid: pid}, 0, ""
		rest := stat[bytes.LastIndexByte(stat, ')')+1:] // the name may hold anything
		if _, err := fmt.Sscan(string(rest), &state, &parent, &p.group); err == nil && state != "Z" {
			children[parent] = append(children[parent], p)
		}
	}
	for parents := []int{os.Getpid()}; len(parents) > 0; parents = parents[1:] {
		for _, p := range children[parents[0]] {
			parents = append(parents, p.pid)
			if p.group != group {
				pids = append(pids, p.pid)
			}
		}
	}
	return pids
}

// attributes gives the command a group of its own, and has it killed when the
// thread that starts it is gone.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
