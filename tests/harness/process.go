package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Process is a process under test and what it wrote.
type Process struct {
	cmd  *exec.Cmd
	logs *Logs
	done chan struct{} // closed when it has ended
	code int           // once it has
}

// startProcess runs the gateway's binary. It is ended with the test.
func startProcess(tb testing.TB, env []string, args ...string) *Process {
	tb.Helper()
	p := &Process{
		cmd:  exec.Command(Binary(tb), args...),
		logs: new(Logs),
		done: make(chan struct{}),
	}
	home := tb.TempDir()
	p.cmd.Dir = home
	p.cmd.Env = environ(home, env)
	read, write := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = write, write
	if err := p.cmd.Start(); err != nil {
		tb.Fatalf("starting %v: %v", args, err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { p.logs.follow(read) })
	go func() {
		_ = p.cmd.Wait()
		_ = write.Close()
		reading.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.done)
	}()
	tb.Cleanup(func() {
		p.Stop()
		p.logs.check(tb)
	})
	return p
}

// Descriptors returns how many files and sockets the process has open.
func (p *Process) Descriptors(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		tb.Fatal(err)
	}
	return len(entries)
}

// RSS returns the resident memory of the process in bytes.
func (p *Process) RSS(tb testing.TB) int64 {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		tb.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		tb.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// CPU returns how much time of a processor the process has used.
func (p *Process) CPU(tb testing.TB) time.Duration {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		tb.Fatal(err)
	}
	// The name, in brackets, may hold spaces; of the fields after it the 12th
	// and 13th are the ticks, which are hundredths of a second.
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Signal sends a signal to the process.
func (p *Process) Signal(tb testing.TB, s syscall.Signal) {
	tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		tb.Fatalf("sending %s: %v", s, err)
	}
}

// Stop ends the process: gently, then by force.
func (p *Process) Stop() {
	if p.Ended() {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return
	case <-time.After(5 * time.Second):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Kill ends the process at once.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ExitCode waits for the end of the process and returns its exit code.
func (p *Process) ExitCode(tb testing.TB, within time.Duration) int {
	tb.Helper()
	select {
	case <-p.done:
		return p.code
	case <-time.After(within):
		tb.Fatalf("the process still runs after %s", within)
		return 0
	}
}

// Logs are the lines that a process wrote.
type Logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *Logs) follow(r io.Reader) {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadString('\n')
		if line != "" {
			l.mu.Lock()
			l.lines = append(l.lines, strings.TrimSuffix(line, "\n"))
			l.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// Lines returns what was written so far.
func (l *Logs) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}

// An Entry is a line of a log in JSON.
type Entry map[string]any

// Text returns a field that is text, or "".
func (e Entry) Text(name string) string {
	s, _ := e[name].(string)
	return s
}

// Entries returns the lines that are JSON and have this message.
func (l *Logs) Entries(message string) []Entry {
	var found []Entry
	for _, line := range l.Lines() {
		var e Entry
		if json.Unmarshal([]byte(line), &e) == nil && e.Text("msg") == message {
			found = append(found, e)
		}
	}
	return found
}

// Wait returns the first entry with this message that ok accepts.
func (l *Logs) Wait(tb testing.TB, message string, ok func(Entry) bool) (found Entry) {
	tb.Helper()
	Eventually(tb, Patience, "a log entry "+message, func() bool {
		for _, e := range l.Entries(message) {
			if ok(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// check fails the test if the process panicked or raced, and shows the end of
// the log of a test that failed.
func (l *Logs) check(tb testing.TB) {
	tb.Helper()
	lines := l.Lines()
	for i, line := range lines {
		if strings.Contains(line, "DATA RACE") || strings.Contains(line, "panic:") || strings.Contains(line, "panic serving") {
			tb.Errorf("the process wrote:\n%s", excerpt(lines[i:min(i+60, len(lines))]))
			return
		}
	}
	if tb.Failed() {
		tb.Logf("the process wrote at the end:\n%s", excerpt(lines[max(0, len(lines)-30):]))
	}
}

// excerpt joins lines, long ones cut.
func excerpt(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line[:min(len(line), 2000)] + "\n")
	}
	return b.String()
}
