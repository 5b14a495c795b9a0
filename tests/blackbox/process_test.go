package blackbox

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// execModel returns the block of the model m, which is a simulated engine that
// the gateway starts.
func execModel(t *testing.T, addr string, idle string) string {
	t.Helper()
	return model("m", "to "+addr, "activate exec {",
		"\tstart "+harness.Binary(t)+" flexinfer engine --model m --listen "+addr+" --ttft 0",
		"\tready GET http://"+addr+"/health", "\tidle_timeout "+idle, "}")
}

// started waits for the nth process to be started and returns its number.
func started(t *testing.T, g *harness.Gateway, nth int) int {
	t.Helper()
	var all []harness.Entry
	harness.Eventually(t, harness.Patience, "a process is started", func() bool {
		all = g.Logs().Entries("process has started")
		return len(all) >= nth
	})
	pid, _ := all[nth-1]["pid"].(float64)
	if !running(int(pid)) {
		t.Errorf("process %v does not run", pid)
	}
	return int(pid)
}

func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	harness.Eventually(t, harness.Patience, "the process is gone", func() bool { return !running(pid) })
}

func TestProcessLivesAcrossReloads(t *testing.T) {
	t.Parallel()
	addr := harness.FreeAddr(t)
	cfg := harness.Config{Flexinfer: execModel(t, addr, "10m")}
	g := harness.Start(t, cfg)
	asleep(t, g)
	if res := g.Chat(t, chat("x")); res.Status != http.StatusOK {
		t.Fatalf("it is answered %s", res)
	}
	pid := started(t, g, 1)
	for range 20 {
		g.Reload(t, cfg)
		if res := g.Chat(t, chat("x")); res.Status != http.StatusOK {
			t.Fatalf("it is answered %s", res)
		}
	}
	if n := len(g.Logs().Entries("process has started")); n != 1 || !running(pid) {
		t.Errorf("%d processes were started", n)
	}
	if e := g.Logs().Entries("output"); len(e) == 0 || e[0].Text("model") != "m" || e[0].Text("logger") != "flexinfer.exec" {
		t.Errorf("its output in the log: %v", e)
	}

	g.Reload(t, harness.Config{Flexinfer: model("other", "to "+addr)})
	waitGone(t, pid)
}

func TestProcessIsStoppedWhenIdle(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.Config{Flexinfer: execModel(t, harness.FreeAddr(t), "1s")})
	asleep(t, g)
	for i := range 2 {
		if res := g.Chat(t, chat("x")); res.Status != http.StatusOK {
			t.Fatalf("it is answered %s", res)
		}
		waitGone(t, started(t, g, i+1))
	}
}

func TestProcessEndsWithTheGateway(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		g := harness.Start(t, harness.Config{Flexinfer: execModel(t, harness.FreeAddr(t), "10m")})
		asleep(t, g)
		if res := g.Chat(t, chat("x")); res.Status != http.StatusOK {
			t.Fatalf("it is answered %s", res)
		}
		pid := started(t, g, 1)
		g.Signal(t, signal)
		code := g.ExitCode(t, harness.Patience)
		if signal == syscall.SIGTERM && (code != 0 || running(pid)) {
			t.Errorf("the gateway ended with %d before the process was gone", code)
		}
		waitGone(t, pid)
	}
}

func TestProcessThatDoesNotStart(t *testing.T) {
	t.Parallel()
	addr := harness.FreeAddr(t)
	config := strings.Replace(execModel(t, addr, "10m"), "--ttft 0", "--no-such-flag", 1)
	g := harness.Start(t, harness.Config{Flexinfer: config})
	asleep(t, g)
	res := g.Post(t, "/v1/chat/completions", chat("x"))
	if e := res.Refusal(t); res.Status != http.StatusServiceUnavailable || e.Error.Code != "activation_failed" ||
		!strings.Contains(e.Error.Message, "the process ended with exit status") || strings.Contains(e.Error.Message, "flag") {
		t.Errorf("it is answered %s", res)
	}
	g.Logs().Wait(t, "process has ended by itself", func(e harness.Entry) bool { return strings.Contains(e.Text("stderr"), "unknown flag") })
}

// A call under way ends on the process that it began on; those that come after
// the reload wait for the new one.
func TestReloadChangesTheCommand(t *testing.T) {
	t.Parallel()
	addr := harness.FreeAddr(t)
	config := execModel(t, addr, "10m")
	g := harness.Start(t, harness.Config{Flexinfer: config})
	asleep(t, g)
	if res := g.Chat(t, chat("x")); res.Status != http.StatusOK {
		t.Fatalf("it is answered %s", res)
	}
	pid := started(t, g, 1)
	res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true,"max_tokens":200,"messages":[{"role":"user","content":"x"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()

	g.Reload(t, harness.Config{Flexinfer: strings.Replace(config, "--ttft 0", "--ttft 1ms", 1)})
	later := background(t.Context(), t, g, "later")
	body, err := io.ReadAll(res.Body)
	if err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %v after %d bytes", err, len(body))
	}
	if res := harness.Receive(t, later, "the later answer"); res == nil || res.Status != http.StatusOK {
		t.Errorf("the later call is answered %v", res)
	}
	if again := started(t, g, 2); again == pid || running(pid) {
		t.Errorf("processes %d and %d", pid, again)
	}
}

// Q4: calls that wait for a process that never gets ready are served by that of
// the new configuration.
func TestQ4_WaitingCallsSeeTheNewCommand(t *testing.T) {
	t.Parallel()
	addr := harness.FreeAddr(t)
	config := execModel(t, addr, "10m")
	g := harness.Start(t, harness.Config{Flexinfer: strings.Replace(config, "--listen "+addr, "--listen "+harness.FreeAddr(t), 1)})
	asleep(t, g)
	answer := background(t.Context(), t, g, "x")
	pid := started(t, g, 1)
	g.Reload(t, harness.Config{Flexinfer: config})
	if res := harness.Receive(t, answer, "the answer"); res == nil || res.Status != http.StatusOK {
		t.Errorf("it is answered %v", res)
	}
	waitGone(t, pid)
}
