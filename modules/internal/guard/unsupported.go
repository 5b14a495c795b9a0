//go:build !unix

// Package guard starts processes that never outlive this one, on Unix.
package guard

import (
	"errors"
	"os"
	"time"
)

// Supported says whether this system can do it.
const Supported = false

// A Command says what to run.
type Command struct {
	Args, Env      []string
	Dir            string
	Stdout, Stderr *os.File
}

// A Process is a running command; here there is none.
type Process struct{}

// Start returns an error.
func Start(Command) (*Process, error) { return nil, errors.ErrUnsupported }

// PID returns 0.
func (*Process) PID() int { return 0 }

// Exited returns nil.
func (*Process) Exited() <-chan struct{} { return nil }

// Reason returns nil.
func (*Process) Reason() error { return nil }

// Gone returns nil.
func (*Process) Gone() <-chan struct{} { return nil }

// Stop does nothing.
func (*Process) Stop(time.Duration) {}
