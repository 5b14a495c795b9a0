package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A process is a part of the control plane. What it writes is in a file.
type process struct {
	cmd  *exec.Cmd
	name string
	log  string
	done chan struct{} // closed when it has ended
}

func startProcess(dir, path string, args ...string) (*process, error) {
	p := &process{
		cmd:  exec.Command(path, args...),
		name: filepath.Base(path),
		done: make(chan struct{}),
	}
	p.log = filepath.Join(dir, p.name+".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// It must not outlive the tests, however they end.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// await waits until the process does what it is there for.
func (p *process) await(what string, ok func() bool) error {
	if harness.Within(startup, func() bool { return p.ended() || ok() }) && !p.ended() {
		return nil
	}
	return errors.New("not so within " + startup.String() + ": " + p.name + " " + what + "\n" + p.tail())
}

// tail returns the end of what the process wrote.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "")
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the process: gently, then by force.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.kill()
	}
}

// kill ends the process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) pause(tb testing.TB) (resume func()) {
	tb.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		tb.Fatal(err)
	}
	resume = func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }
	tb.Cleanup(resume)
	return resume
}
