package main

import (
	"fmt"
	"os"
	"strings"
)

// memory is the resident memory of a process in bytes.
type memory struct{ now, peak int64 }

// memoryOf reads the resident memory of a process.
func memoryOf(pid int) (m memory, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		var into *int64
		switch name {
		case "VmRSS":
			into = &m.now
		case "VmHWM":
			into = &m.peak
		default:
			continue
		}
		if _, err := fmt.Sscan(value, into); err != nil {
			return m, fmt.Errorf("%s of process %d: %w", name, pid, err)
		}
		*into <<= 10
	}
	if m.now == 0 {
		return m, fmt.Errorf("process %d does not tell its resident memory", pid)
	}
	return m, nil
}
