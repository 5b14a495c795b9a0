//go:build unix

package activators

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// init makes this binary an engine if its tests run it as one: what it is to do
// is in a variable, its address an argument.
func init() {
	role, ok := os.LookupEnv("TEST_ENGINE")
	if !ok {
		return
	}
	switch role {
	case "fails":
		fmt.Fprintln(os.Stderr, "loading the model")
		fmt.Fprintf(os.Stderr, "out of memory\n\n")
		os.Exit(3)
	case "background":
		os.Exit(0)
	case "noise":
		for i := range 4 {
			_, _ = os.Stdout.Write(bytes.Repeat([]byte{'a' + byte(i)}, 1<<20))
			_, _ = os.Stderr.Write(bytes.Repeat([]byte("loading\r"), 1<<15))
		}
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	case "slow": // to end
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		go func() {
			<-c
			time.Sleep(300 * time.Millisecond)
			os.Exit(0)
		}()
	case "child": // and the child is the engine
		child := exec.Command(os.Args[0], os.Args[1:]...)
		child.Env = append(os.Environ(), "TEST_ENGINE=stubborn")
		if err := child.Start(); err != nil {
			panic(err)
		}
		for {
			time.Sleep(time.Hour)
		}
	}
	http.HandleFunc("/pid", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, os.Getpid()) })
	http.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) {
		fmt.Fprintln(os.Stderr, "a bad prompt")
		os.Exit(9)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[1], nil))
	os.Exit(1)
}

// engineOn returns a module that starts an engine on a free port.
func engineOn(t *testing.T, address, role string) *Exec {
	t.Helper()
	return &Exec{
		Command: []string{os.Args[0], address},
		Env:     map[string]string{"TEST_ENGINE": role},
		Grace:   caddy.Duration(100 * time.Millisecond),
		Watch:   Watch{Ready: &Request{URL: "http://" + address + "/health"}},
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// eventually waits for a state.
func eventually(t *testing.T, w routing.Watcher, phase routing.Phase, message string) {
	t.Helper()
	for limit := time.After(20 * time.Second); ; {
		s, changed := w.State()
		if s.Phase == phase && strings.Contains(s.Message, message) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("it is %s: %q; want %s: %q", s.Phase, s.Message, phase, message)
		}
	}
}

// pid asks the engine for the number of its process.
func pid(t *testing.T, address string) int {
	t.Helper()
	res, err := http.Get("http://" + address + "/pid")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	n, err := strconv.Atoi(string(body))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func wantGone(t *testing.T, pid int) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); runs(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("process %d runs", pid)
		}
	}
}

// wake has the engine started and returns the number of its process.
func wake(t *testing.T, x *Exec, address string) int {
	t.Helper()
	eventually(t, x, routing.Asleep, "refused")
	activate(t, x)
	eventually(t, x, routing.Serving, "")
	n := pid(t, address)
	t.Cleanup(func() { _ = syscall.Kill(n, syscall.SIGKILL) })
	return n
}

func TestStartsAProcess(t *testing.T) {
	for _, role := range []string{"", "noise", "child"} {
		address := freeAddress(t)
		x := load(t, engineOn(t, address, role))
		n := wake(t, x, address)
		activate(t, x)
		if again := pid(t, address); again != n {
			t.Errorf("%s: there are two: %d and %d", role, n, again)
		}
		unload(t, x)
		wantGone(t, n)
	}
}

func TestEngineRunsAlready(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-answer
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	x := load(t, engineOn(t, l.Addr().String(), ""))
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := x.Activate(ctx, "m"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before it is known whether it runs: %v", err)
	}
	close(answer)
	activate(t, x)
	eventually(t, x, routing.Serving, "")
	x.engine.set(func() {
		if x.engine.process != nil {
			t.Error("it is started a second time")
		}
	})
}

func TestIdleProcessIsStopped(t *testing.T) {
	for _, role := range []string{"", "stubborn", "slow"} {
		address := freeAddress(t)
		x := engineOn(t, address, role)
		x.Grace = caddy.Duration(time.Second)
		x.IdleTimeout = new(caddy.Duration(300 * time.Millisecond))
		load(t, x)
		done := x.Use("m", false)
		n := wake(t, x, address)
		done()
		for s, changed := x.State(); s.Phase == routing.Serving || s.Message == "it is idle"; s, changed = x.State() {
			<-changed
		}

		// A call comes while it stops.
		done = x.Use("m", false)
		activate(t, x)
		if runs(n) {
			t.Errorf("%s: it is started before the other has ended", role)
		}
		eventually(t, x, routing.Serving, "")
		again := pid(t, address)
		done()
		eventually(t, x, routing.Asleep, "")
		wantGone(t, again)
		unload(t, x)
	}
}

// One that starts for longer than it may be idle is not stopped while calls wait
// for it, which do not count as under way.
func TestWaitingCallsKeepTheProcess(t *testing.T) {
	x := engineOn(t, freeAddress(t), "")
	x.Command[1] = freeAddress(t) // where nobody looks
	x.IdleTimeout = new(caddy.Duration(time.Millisecond))
	load(t, x)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	if err := x.Activate(ctx, "m"); err != nil {
		t.Fatal(err)
	}
	var p *process
	x.engine.set(func() {
		if p = x.engine.process; p == nil {
			t.Fatal("it does not run")
		}
		if left, ok := x.engine.idleLeft(x.plan); ok {
			t.Errorf("it is to be stopped in %s", left)
		}
	})
	leave()
	select {
	case <-p.over:
	case <-time.After(20 * time.Second):
		t.Error("it runs when nobody waits")
	}
}

func TestReloadKeepsTheProcess(t *testing.T) {
	address := freeAddress(t)
	one := load(t, engineOn(t, address, ""))
	n := wake(t, one, address)
	for range 20 {
		two := load(t, engineOn(t, address, ""))
		wantState(t, two, routing.Serving, "")
		unload(t, one)
		one = two
	}
	other := engineOn(t, address, "") // with other options
	other.Ready.URL += "?really"
	other.IdleTimeout = new(caddy.Duration(time.Hour))
	other.Interval = caddy.Duration(time.Minute)
	load(t, other)
	unload(t, one)
	if again := pid(t, address); again != n {
		t.Error("it was started again")
	}
	unload(t, other)
	wantGone(t, n)
}

// With another command a call under way is not cut, and calls that come wait for
// the new process.
func TestReloadWithAnotherCommand(t *testing.T) {
	address := freeAddress(t)
	one := load(t, engineOn(t, address, ""))
	n := wake(t, one, address)
	done := one.Use("m", false)

	two := engineOn(t, address, "slow")
	failed := load(t, engineOn(t, address, "noise"))
	unload(t, failed)
	load(t, two)
	eventually(t, two, routing.Asleep, "another process")
	unload(t, one)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := two.Activate(ctx, "m"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with the other under way: %v", err)
	}
	if again := pid(t, address); again != n {
		t.Error("it has ended with a call under way")
	}
	done()
	activate(t, two)
	eventually(t, two, routing.Serving, "")
	if again := pid(t, address); again == n || runs(n) {
		t.Error("the other runs")
	}
}

func TestCallsEndBeforeTheProcess(t *testing.T) {
	address := freeAddress(t)
	x := load(t, engineOn(t, address, ""))
	n := wake(t, x, address)
	done := x.Use("m", false)
	unload(t, x)
	if again := pid(t, address); again != n {
		t.Error("it has ended with a call under way")
	}
	if err := x.Activate(t.Context(), "m"); err != nil {
		t.Errorf("a call of the configuration before: %v", err)
	}
	done()
	wantGone(t, n)
	x.engine.set(func() { x.engine.awake = false })
	if err := x.Activate(t.Context(), "m"); err == nil {
		t.Error("one that has left is started")
	}
}

// Calls that only wait for a process do not keep it.
func TestReloadWhileItStarts(t *testing.T) {
	address := freeAddress(t)
	one := engineOn(t, address, "")
	one.Command[1] = freeAddress(t) // where nobody looks
	load(t, one)
	eventually(t, one, routing.Asleep, "refused")
	defer one.Use("m", false)()
	activate(t, one)
	eventually(t, one, routing.Asleep, "")
	one.engine.mu.Lock()
	p := one.engine.process
	one.engine.mu.Unlock()
	unload(t, one)
	select {
	case <-p.over:
	case <-time.After(20 * time.Second):
		t.Error("it runs")
	}
}

func TestManyUseItAtOnce(t *testing.T) {
	address := freeAddress(t)
	x := engineOn(t, address, "")
	x.IdleTimeout = new(caddy.Duration(20 * time.Millisecond))
	load(t, x)
	eventually(t, x, routing.Asleep, "refused")
	ends := make(chan int)
	for range 8 {
		go func() {
			served := 0
			for range 50 {
				done := x.Use("m", false)
				s, changed := x.State()
				if s.Phase == routing.Serving {
					served++
				} else if err := x.Activate(context.Background(), "m"); err != nil {
					t.Error(err)
				} else {
					select {
					case <-changed:
					case <-time.After(20 * time.Second):
						t.Error("nothing changes")
					}
				}
				done()
			}
			ends <- served
		}()
	}
	for range 8 {
		if <-ends == 0 {
			t.Error("no call found it awake")
		}
	}
}
