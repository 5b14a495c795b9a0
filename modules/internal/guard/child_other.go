//go:build unix && !linux

package guard

import "syscall"

// adopt does nothing: a process here does not get the children that its own
// leave behind. They are killed when the command itself has ended.
func adopt() {}

// attributes gives the command a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
