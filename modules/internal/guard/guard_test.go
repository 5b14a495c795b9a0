//go:build unix

package guard

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const roleVariable = "GUARD_TEST_ROLE"

// TestMain has this binary be what its tests run.
func TestMain(m *testing.M) {
	role, arg, _ := strings.Cut(os.Getenv(roleVariable), " ")
	switch role {
	case "":
		os.Exit(m.Run())
	case "exit":
		code, _ := strconv.Atoi(arg)
		os.Exit(code)
	case "wait": // for any signal
		say("waits", os.Getpid())
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		say("waits", os.Getpid())
	case "gentle":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		say("waits", os.Getpid())
		<-c
		say("leaves", os.Getpid())
		os.Exit(3)
	case "parent": // of another, in the same group
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), roleVariable+"="+arg)
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			panic(err)
		}
		say("waits", os.Getpid())
	case "abandon": // another
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), roleVariable+"="+arg)
		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			panic(err)
		}
		os.Exit(0)
	case "daemon": // in a session of its own
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), roleVariable+"="+arg)
		child.Stdout = os.Stdout
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		say("waits", os.Getpid())
	case "gateway": // starts one that is guarded
		if _, err := Start(command(arg)); err != nil {
			panic(err)
		}
	case "environment":
		dir, _ := os.Getwd()
		fmt.Println(os.Args[1:], os.Getenv("NAME"), dir)
		os.Exit(0)
	}
	for {
		time.Sleep(time.Hour)
	}
}

func say(what string, pid int) { fmt.Println(what, pid) }

func command(role string) Command {
	return Command{
		Args: []string{os.Args[0]}, Env: append(os.Environ(), roleVariable+"="+role),
		Stdout: os.Stdout, Stderr: os.Stderr,
	}
}

// started is a guarded process and what it writes.
type started struct {
	*Process
	out *bufio.Reader
}

func start1(t *testing.T, c Command) *started {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout = w
	p, err := Start(c)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(0)
		r.Close()
	})
	return &started{p, bufio.NewReader(r)}
}

// pids reads the numbers of n processes that say what.
func (s *started) pids(t *testing.T, what string, n int) []int {
	t.Helper()
	return pidsIn(t, s.out, what, n)
}

func pidsIn(t *testing.T, out *bufio.Reader, what string, n int) (pids []int) {
	t.Helper()
	for range n {
		line, err := out.ReadString('\n')
		word, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, numberErr := strconv.Atoi(number)
		if err != nil || numberErr != nil || word != what {
			t.Fatalf("it says %q, %v; want %s <number>", line, err, what)
		}
		pids = append(pids, pid)
	}
	return pids
}

// runs reports whether there is such a process that is no zombie.
func runs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		_, procErr := os.Stat("/proc/self")
		return procErr != nil // a system without /proc
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func wantGone(t *testing.T, pids ...int) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, pid := range pids {
			if runs(pid) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d of the processes %v run", left, pids)
		}
	}
}

func wantReason(t *testing.T, p *Process, want string) {
	t.Helper()
	select {
	case <-p.Exited():
	case <-time.After(10 * time.Second):
		t.Fatal("it runs")
	}
	if got := p.Reason().Error(); got != want {
		t.Errorf("it ended by %q, want %q", got, want)
	}
}

func TestEnds(t *testing.T) {
	for role, want := range map[string]string{"exit 0": "exit status 0", "exit 7": "exit status 7"} {
		p := start1(t, command(role))
		wantReason(t, p.Process, want)
		<-p.Gone()
	}
}

func TestDoesNotStart(t *testing.T) {
	c := command("wait")
	c.Args = []string{"no-such-program-at-all"}
	if _, err := Start(c); err == nil || !strings.Contains(err.Error(), "executable file not found") {
		t.Errorf("no such program: %v", err)
	}
	c.Args = []string{t.TempDir()}
	if _, err := Start(c); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a directory: %v", err)
	}
	c = command("wait")
	c.Dir = "/no/such/directory"
	if _, err := Start(c); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no such directory: %v", err)
	}
}

func TestArgumentsEnvironmentDirectory(t *testing.T) {
	dir := t.TempDir()
	c := command("environment")
	c.Args = append(c.Args, "a b", "$HOME;", "")
	c.Env = append(c.Env, "NAME=first", "NAME=it's")
	c.Dir = dir
	p := start1(t, c)
	line, _ := p.out.ReadString('\n')
	if want := fmt.Sprintf("[a b $HOME; ] it's %s\n", dir); line != want {
		t.Errorf("got %q, want %q", line, want)
	}
}

func TestStopAsksFirst(t *testing.T) {
	p := start1(t, command("gentle"))
	pids := p.pids(t, "waits", 1)
	if p.PID() != pids[0] {
		t.Errorf("it is %d, not %d", pids[0], p.PID())
	}
	p.Stop(time.Minute)
	p.pids(t, "leaves", 1)
	wantReason(t, p.Process, "exit status 3")
	if runs(pids[0]) {
		t.Error("it runs after Stop")
	}
}

func TestStopKillsWhatDoesNotListen(t *testing.T) {
	p := start1(t, command("stubborn"))
	pids := p.pids(t, "waits", 1)
	begun := time.Now()
	p.Stop(100 * time.Millisecond)
	if took := time.Since(begun); took < 100*time.Millisecond {
		t.Errorf("it was killed after %s", took)
	}
	if runs(pids[0]) {
		t.Error("it runs after Stop")
	}
	p.Stop(time.Hour) // once more does nothing
}

// The parent ends at once; what it has started has its time to end as well.
func TestStopReachesGrandchildren(t *testing.T) {
	p := start1(t, command("parent gentle"))
	pids := p.pids(t, "waits", 2)
	p.Stop(time.Minute)
	p.pids(t, "leaves", 1)
	wantReason(t, p.Process, "signal: terminated")
	wantGone(t, pids...)

	p = start1(t, command("parent stubborn"))
	pids = p.pids(t, "waits", 2)
	p.Stop(50 * time.Millisecond)
	wantGone(t, pids...)
}

func TestWhatIsLeftBehindIsStopped(t *testing.T) {
	p := start1(t, command("abandon stubborn"))
	pids := p.pids(t, "waits", 1)
	wantReason(t, p.Process, "exit status 0")
	p.Stop(50 * time.Millisecond)
	wantGone(t, pids...)
}

// kill9 starts a process that guards one, and kills it once that one runs.
func kill9(t *testing.T, role string, n int, kill func(gateway int, pids []int)) {
	t.Helper()
	gateway := exec.Command(os.Args[0])
	gateway.Env = append(os.Environ(), roleVariable+"=gateway "+role)
	out, err := gateway.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	pids := pidsIn(t, bufio.NewReader(out), "waits", n)
	for _, pid := range pids {
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	}
	kill(gateway.Process.Pid, pids)
	_ = gateway.Wait()
	wantGone(t, pids...)
}

func TestNothingOutlivesTheGateway(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT} {
		kill9(t, "stubborn", 1, func(gateway int, _ []int) { _ = syscall.Kill(gateway, signal) })
		kill9(t, "parent stubborn", 2, func(gateway int, _ []int) { _ = syscall.Kill(gateway, signal) })
	}
}

// Somebody kills the guard: what it guards goes with it, and the gateway
// notices.
func TestGuardIsKilled(t *testing.T) {
	p := start1(t, command("parent stubborn"))
	pids := p.pids(t, "waits", 2)
	if err := syscall.Kill(p.guard.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantReason(t, p.Process, "the process that guards it was killed")
	<-p.Gone()
	wantGone(t, pids...)
}
