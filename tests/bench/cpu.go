package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc/<pid>/stat: USER_HZ, which is 100 on
// every Linux.
const tick = 10 * time.Millisecond

// cpuTime returns the user and system time that a process and its children
// have taken so far.
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the command's name in parentheses, may hold spaces.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const utime, stime = 14 - 3, 15 - 3
	if len(fields) <= stime {
		return 0, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	var total time.Duration
	for _, i := range []int{utime, stime} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		total += time.Duration(n) * tick
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return total, nil // a kernel that does not tell
	}
	for child := range strings.FieldsSeq(string(children)) {
		n, err := strconv.Atoi(child)
		if err != nil {
			return 0, fmt.Errorf("children of %d: %w", pid, err)
		}
		t, err := cpuTime(n)
		if err != nil {
			return 0, err
		}
		total += t
	}
	return total, nil
}
