//go:build unix && !linux

package guard

import "syscall"

// adopt does nothing: a process here does not get the children that its own
// leave behind. They are killed when the command itself has ended.
func adopt() {}

// strays knows of none here: nothing says who started what left the group.
func strays(int) []int { return nil }

// attributes gives the command a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
