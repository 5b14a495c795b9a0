package blackbox

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A reload that fails late leaves nothing running, and the configuration
// before it serves on.
func TestX4_FailedReloadsLeaveNothingRunning(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		if x.Target == "/v1/models" {
			x.Respond(http.StatusOK, "application/json", `{"data":[{"id":"listed"}]}`)
			return
		}
		harness.Answer(x)
	})
	taken := harness.NewUpstream(t, nil) // its port cannot be listened on
	good := harness.Config{
		Flexinfer: model("m", to(up), "routing prefix") + model("n", to(up), "routing session-affinity"),
		Extra:     fmt.Sprintf(":%d {\n\tbind 127.0.0.1\n\tflexinfer %s\n}\n", harness.FreePort(t), up.Addr),
	}
	late := good
	late.Extra += fmt.Sprintf(":%s {\n\tbind 127.0.0.1\n\tflexinfer %s\n}\n", portOf(taken.Addr), up.Addr)
	badModule := good
	badModule.Flexinfer += "routing nonsense"

	g := harness.Start(t, good)
	round := func() {
		g.Reload(t, good)
		for name, cfg := range map[string]harness.Config{"a port that is taken": late, "an unknown strategy": badModule} {
			res := g.Load(t, "text/caddyfile", g.Caddyfile(cfg))
			if res.Status < 400 {
				t.Fatalf("%s: the reload did not fail: %s", name, res)
			}
		}
		if res, err := g.TryTwice(t.Context(), http.MethodPost, "/v1/chat/completions", chat("still there?")); err != nil || res.Status != http.StatusOK {
			t.Fatalf("after failed reloads: %v %v", res, err)
		}
	}
	for range 5 {
		round()
	}
	before, open := g.Goroutines(t), g.Descriptors(t)
	for range 30 {
		round()
	}
	const noise = 15
	if !harness.Within(harness.Patience, func() bool { return g.Goroutines(t) <= before+noise }) {
		t.Errorf("30 reloads and 60 that failed took the goroutines from %d to %d", before, g.Goroutines(t))
	}
	if !harness.Within(harness.Patience, func() bool { return g.Descriptors(t) <= open+noise }) {
		t.Errorf("30 reloads and 60 that failed took the descriptors from %d to %d", open, g.Descriptors(t))
	}
	if models := g.Models(t); len(models) < 2 || models[0].Name != "m" {
		t.Errorf("after the failed reloads the admin API tells of %+v", models)
	}
	g.WaitIdle(t)
}

// Counters never go back, over reloads of every kind, and nothing that is under
// way is cut.
func TestCountersAreMonotonicOverReloads(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		switch x.Target {
		case "/v1/stream":
			x.StartStream("text/event-stream")
			x.Chunk("data: first\n\n")
			if gate.Wait(x) {
				x.Chunk("data: last\n\n")
				x.EndStream()
			}
		default:
			x.Respond(http.StatusOK, "application/json", `{"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":5}}}`)
		}
	})
	other := harness.NewUpstream(t, nil)
	base := model("m", to(up), "routing prefix")
	configs := []harness.Config{
		{Flexinfer: base},
		{Flexinfer: base + model("n", to(other))},
		{Flexinfer: model("m", to(up, other), "routing prefix")},
		{Flexinfer: model("m", to(up), "routing session-affinity") + "max_body 1MiB\nretries 0"},
		{Flexinfer: base, AccessLog: true, Debug: true},
	}
	g := harness.Start(t, configs[0])

	stream, err := g.Open(t.Context(), http.MethodPost, "/v1/stream", chat("hi"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Body.Close() }()

	var stop atomic.Bool
	var sent atomic.Int64
	var load sync.WaitGroup
	for range 3 {
		load.Go(func() {
			for !stop.Load() {
				res, err := g.TryTwice(t.Context(), http.MethodPost, "/v1/chat/completions", chat("hi"))
				if err != nil || res.Status != http.StatusOK {
					t.Errorf("a request during the reloads: %v %v", res, err)
					return
				}
				sent.Add(1)
			}
		})
	}
	before := g.Metrics(t).Counters()
	for i := range 25 {
		g.Reload(t, configs[i%len(configs)])
		after := g.Metrics(t).Counters()
		for series, v := range before {
			if now, ok := after[series]; ok && now < v {
				t.Errorf("reload %d: %s went from %v to %v", i, series, v, now)
			} else if !ok && configs[i%len(configs)].Flexinfer == configs[0].Flexinfer && !mayGo(series, other.Addr) {
				t.Errorf("reload %d: %s is gone", i, series)
			}
		}
		before = after
		// A reload upon the other would hit requests that are sent again.
		goal := sent.Load() + 20
		harness.Eventually(t, harness.Patience, "requests are served", func() bool { return sent.Load() >= goal || t.Failed() })
	}
	stop.Store(true)
	load.Wait()
	m := g.Metrics(t)
	if got, want := m.Value("flexinfer_proxy_requests_total", "model", "m", "status", "success"), float64(sent.Load()); got != want {
		t.Errorf("requests_total is %v after %v requests", got, want)
	}
	if got, want := m.Value("flexinfer_proxy_cached_prompt_tokens_total", "model", "m"), float64(5*sent.Load()); got > want {
		t.Errorf("cached_prompt_tokens_total is %v, want at most %v", got, want)
	}

	gate.Open()
	body, err := io.ReadAll(stream.Body)
	if want := "data: first\n\ndata: last\n\n"; err != nil || string(body) != want {
		t.Errorf("the stream over 25 reloads ended with %q, %v", body, err)
	}
	g.WaitIdle(t)
}

// mayGo reports whether a series belongs to what some of the configurations do
// not have.
func mayGo(series, target string) bool {
	return strings.Contains(series, `model="n"`) || strings.Contains(series, target)
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}
