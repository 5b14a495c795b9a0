//go:build unix

// Package guard starts processes that never outlive this one, however it ends.
//
// Between the two stands a third, the guard: this very program, run anew under
// another name. It starts the command in a process group of its own and waits. A
// pipe from here tells it when this process is gone, even by kill -9: it then
// kills the whole group. That holds on every Unix, and for all that the command
// starts, unless that leaves the group, as by setsid. On Linux, with /proc, the
// guard finds what has left the group as well. A parent-death signal does
// less: it is tied to the thread that forked and reaches no grandchild. On Linux
// the command has one from the guard's main thread, in case somebody kills the
// guard.
package guard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Supported says whether this system can do it.
const Supported = true

// A Command says what to run.
type Command struct {
	Args []string // the program, looked up in PATH, and its arguments
	Env  []string // the whole environment, the last of a name counting
	Dir  string   // the working directory; empty is this process's

	// Where output goes; the command's input is empty. Start does not close
	// them.
	Stdout, Stderr *os.File
}

// A Process is a running command with all that it has started.
type Process struct {
	guard  *os.Process
	pid    int
	hold   *os.File // the guard sees it close
	exited chan struct{}
	reason error // set before exited is closed
	gone   chan struct{}

	stopping sync.Once
}

// Start runs a command and returns once it runs. The error says why it does
// not.
func Start(c Command) (*Process, error) {
	holdEnd, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer holdEnd.Close()
	reports, reportEnd, err := os.Pipe()
	if err != nil {
		hold.Close()
		return nil, err
	}
	defer reportEnd.Close()
	self, err := executable()
	if err == nil {
		cmd := &exec.Cmd{
			Path: self, Args: append([]string{guardName}, c.Args...), Env: c.Env, Dir: c.Dir,
			Stdin: holdEnd, Stdout: c.Stdout, Stderr: c.Stderr, ExtraFiles: []*os.File{reportEnd},
			SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
		}
		if err = cmd.Start(); err == nil {
			reportEnd.Close()
			return follow(cmd.Process, hold, reports)
		}
	}
	hold.Close()
	reports.Close()
	return nil, err
}

// executable returns a path of this program that leads to it even after it was
// replaced by a newer one.
func executable() (string, error) {
	const self = "/proc/self/exe"
	if runtime.GOOS == "linux" {
		if _, err := os.Stat(self); err == nil {
			return self, nil
		}
	}
	return os.Executable()
}

// follow waits for the guard's first word, and for the others in the
// background.
func follow(guard *os.Process, hold, reports *os.File) (*Process, error) {
	p := &Process{guard: guard, hold: hold, exited: make(chan struct{}), gone: make(chan struct{})}
	lines := bufio.NewReader(reports)
	first, err := lines.ReadString('\n')
	first = strings.TrimSpace(first)
	if number, ok := strings.CutPrefix(first, reportStarted); ok {
		p.pid, _ = strconv.Atoi(number)
		go func() {
			last, _ := lines.ReadString('\n')
			p.exit(strings.TrimSpace(last))
			_, _ = io.Copy(io.Discard, lines) // to the guard's end
			p.reap(reports)
		}()
		return p, nil
	}
	p.reap(reports)
	if first == "" {
		return nil, fmt.Errorf("the process that guards it ended: %w", err)
	}
	return nil, errors.New(first)
}

// exit records how the command ended.
func (p *Process) exit(report string) {
	if report == "" {
		report = "the process that guards it was killed"
	}
	p.reason = errors.New(report)
	close(p.exited)
}

// reap ends what is left when the guard has gone.
func (p *Process) reap(reports *os.File) {
	state, err := p.guard.Wait()
	if p.pid > 0 && (err != nil || !state.Exited()) { // somebody killed it
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	}
	p.hold.Close()
	reports.Close()
	close(p.gone)
}

// PID returns the number of the command's process, which is that of its group.
func (p *Process) PID() int { return p.pid }

// Exited returns a channel that is closed when the command itself has ended.
// Others that it started may still run.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Reason says how the command ended, once it has, such as: exit status 1.
func (p *Process) Reason() error {
	<-p.exited
	return p.reason
}

// Gone returns a channel that is closed when nothing of the group runs.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// killed is how long what was killed may take to be gone.
const killed = 5 * time.Second

// Stop asks all in the group to end and kills those that have not after grace,
// once. It returns when they are gone, or could not be killed in 5 s, as they
// may be deep in a driver.
func (p *Process) Stop(grace time.Duration) {
	p.stopping.Do(func() {
		_, _ = p.hold.Write([]byte{0}) // TERM
		if p.wait(grace) {
			return
		}
		p.hold.Close() // KILL
		p.wait(killed)
	})
}

// wait reports whether all are gone in time.
func (p *Process) wait(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.gone:
		return true
	case <-timer.C:
		return false
	}
}
