package blackbox

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

func TestHealthAndReadiness(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "to "+harness.FreeAddr(t))})
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ok"} {
		res := g.Get(t, path)
		if res.Status != http.StatusOK || strings.TrimSpace(string(res.Body)) != want {
			t.Errorf("%s: %s", path, res)
		}
		if res := g.Do(t, "HEAD", path, ""); res.Status != http.StatusOK || len(res.Body) != 0 {
			t.Errorf("HEAD %s: %s", path, res)
		}
	}
	if res := g.Get(t, "/metrics"); res.Status != http.StatusOK || !strings.Contains(string(res.Body), "flexinfer_proxy_") {
		t.Errorf("/metrics: %s", res)
	}
}

// From SIGTERM on the gateway says that it drains, and still serves as long as
// shutdown_delay lasts. Streams end by themselves, and the exit code is 0.
func TestDraining(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		if !strings.Contains(string(x.Body), "stream") {
			harness.Answer(x)
			return
		}
		firstAndLast(x, gate)
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)), Global: "shutdown_delay 1s\ngrace_period 20s"})
	res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	stream := bufio.NewReader(res.Body)
	if line, err := stream.ReadString('\n'); line != "data: first\n" {
		t.Fatalf("the stream begins with %q, %v", line, err)
	}

	g.Signal(t, syscall.SIGTERM)
	harness.Eventually(t, time.Second, "/readyz says that the gateway drains", func() bool {
		res := g.Get(t, "/readyz")
		return res.Status == http.StatusServiceUnavailable && strings.TrimSpace(string(res.Body)) == "draining"
	})
	if res := g.Get(t, "/healthz"); res.Status != http.StatusOK {
		t.Errorf("/healthz while draining: %s", res)
	}
	g.Chat(t, chat("one more"))

	// Only once the listener is closed does the stream go on.
	harness.Eventually(t, harness.Patience, "the listener is closed", func() bool {
		_, err := g.TryFresh(t.Context(), http.MethodGet, "/healthz", "")
		return err != nil
	})
	gate.Open()
	var rest strings.Builder
	if _, err := stream.WriteTo(&rest); err != nil || !strings.HasSuffix(rest.String(), "data: last\n\n") {
		t.Errorf("the stream ended with %q, %v", rest.String(), err)
	}
	if code := g.ExitCode(t, 10*time.Second); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
}

// The access log tells how a request was routed, and nothing of its prompt.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	const marker = "xyzzy-the-prompt"
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.Respond(http.StatusOK, "application/json", `{"choices":[{"message":{"content":"`+marker+`"}}],`+
			`"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":64}}}`)
	})
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", "to "+harness.FreeAddr(t)+" "+up.Addr, "routing prefix", "alias other"), AccessLog: true, Debug: true,
	})
	body := `{"model":"other","session_id":"` + marker + `","messages":[{"role":"system","content":"` + marker + `"},{"role":"user","content":"` + marker + `"}]}`
	e := g.Explain(t, "/v1/chat/completions", body)
	g.Chat(t, body)
	logged := func(status float64) harness.Entry {
		t.Helper()
		return g.Logs().Wait(t, "handled request", func(e harness.Entry) bool { return e["status"] == status })
	}
	entry := logged(200)
	for field, want := range map[string]any{
		"model": "m", "strategy": "prefix", "key_source": "canonical", "key_hash": e.KeyHash, "target": up.Addr,
		"prompt_bytes": float64(len(body)), "prompt_tokens": 100.0, "completion_tokens": 7.0, "cached_tokens": 64.0,
	} {
		if got := entry[field]; got != want {
			t.Errorf("the access log says that %s is %v, want %v", field, got, want)
		}
	}
	if n, _ := entry["attempts"].(float64); n < 1 || n > 2 {
		t.Errorf("the access log says that attempts is %v", entry["attempts"])
	}
	if s := entry.Text("session_hash"); len(s) != 16 || s == entry.Text("key_hash") {
		t.Errorf("the access log says that session_hash is %q", s)
	}
	if ms, ok := entry["ttft_ms"].(float64); !ok || ms < 0 || ms > 20_000 {
		t.Errorf("the access log says that ttft_ms is %v", entry["ttft_ms"])
	}

	// A refused request is logged too, without what is not known.
	g.Post(t, "/v1/chat/completions", strings.Replace(body, "other", "nobody", 1))
	entry = logged(404)
	for _, field := range []string{"target", "strategy", "key_hash", "prompt_tokens"} {
		if got, ok := entry[field]; ok && got != "" {
			t.Errorf("the access log says of a refused request that %s is %v", field, got)
		}
	}
	if got := entry["prompt_bytes"]; got != float64(len(body)+1) {
		t.Errorf("the access log says of a refused request that prompt_bytes is %v", got)
	}
	for _, line := range g.Logs().Lines() {
		if strings.Contains(line, marker) {
			t.Errorf("the log tells of a prompt: %.400s", line)
		}
	}
}

// Placeholders are there for header_down, for handlers that follow, and on
// refused requests, empty where there is nothing to tell.
func TestPlaceholders(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	names := []string{"model", "strategy", "key_source", "outcome", "target", "ttft_ms"}
	var fields, headers strings.Builder
	for _, name := range names {
		fmt.Fprintf(&fields, "log_append p-%s {http.flexinfer.%[1]s}\n", name)
		if name != "ttft_ms" {
			fmt.Fprintf(&headers, "\theader_down X-P-%s {http.flexinfer.%[1]s}\n", name)
		}
	}
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", to(up), "routing prefix", "alias other"), AccessLog: true,
		Site: "route /told/* {\n\turi strip_prefix /told\n\tflexinfer_call session-affinity\n\trespond \"{http.flexinfer.model} {http.flexinfer.strategy} [{http.flexinfer.target}]\"\n}\n" +
			fields.String() + "flexinfer {\n" + headers.String() + "}",
	})
	res := g.Chat(t, chatOf("other", "hi"), "X-Flexinfer-Cache-Key", "k")
	want := map[string]string{"model": "m", "strategy": "prefix", "key_source": "explicit-header", "outcome": "pod", "target": up.Addr}
	for name, value := range want {
		if got := res.Header.Get("X-P-" + name); got != value {
			t.Errorf("{http.flexinfer.%s} is %q in header_down, want %q", name, got, value)
		}
	}
	entry := g.Logs().Wait(t, "handled request", func(e harness.Entry) bool { return e["status"] == 200.0 })
	for name, value := range want {
		if got := entry["p-"+name]; got != value {
			t.Errorf("{http.flexinfer.%s} is %v in the log, want %q", name, got, value)
		}
	}
	if got, ok := entry["p-ttft_ms"]; !ok || got == "" {
		t.Errorf("{http.flexinfer.ttft_ms} is %v", got)
	}

	g.Post(t, "/v1/chat/completions", chatOf("nobody", "hi"))
	entry = g.Logs().Wait(t, "handled request", func(e harness.Entry) bool { return e["status"] == 404.0 })
	for _, name := range names {
		if got, ok := entry["p-"+name]; !ok || got != "" {
			t.Errorf("{http.flexinfer.%s} of a refused request is %v (there: %t), want it empty", name, got, ok)
		}
	}

	res = g.Post(t, "/told/v1/chat/completions", chatOf("other", "hi"))
	if got := string(res.Body); got != "m session-affinity []" {
		t.Errorf("a handler after flexinfer_call says %q", got)
	}
}
