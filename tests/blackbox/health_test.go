package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// isHealthy reports whether the metrics say that an endpoint gets its part of a
// model's calls.
func isHealthy(t *testing.T, g *harness.Gateway, model string, u *harness.Upstream) bool {
	t.Helper()
	s := g.Metrics(t).Series("flexinfer_proxy_upstream_healthy", "model", model, "target", u.Addr)
	if len(s) != 1 {
		t.Fatalf("upstream_healthy of %s for %s has %d series", u.Addr, model, len(s))
	}
	return s[0].Value == 1
}

// status returns a handler that answers with a status and nothing more.
func status(code int) func(*harness.Exchange) {
	return func(x *harness.Exchange) { x.Respond(code, "application/json", `{"error":"no"}`) }
}

// health returns a block under which every run of failures ejects.
func health(lines ...string) string {
	return "health {\n\t\tmax_ejected 100%\n\t\t" + strings.Join(lines, "\n\t\t") + "\n\t}"
}

// T2: neither an error of the client's making nor a busy signal nor a client
// that leaves ejects an endpoint, or keeps calls away from it for long.
func TestT2_WhatIsNoFailureEjectsNobody(t *testing.T) {
	t.Parallel()
	const times = 50
	statuses := []int{400, 401, 404, 413, 422, 429, 503}
	ups := make(map[string]*harness.Upstream)
	var models string
	for _, code := range statuses {
		name := fmt.Sprint(code)
		ups[name] = harness.NewUpstream(t, func(x *harness.Exchange) {
			x.Write(fmt.Sprintf("HTTP/1.1 %d No\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n", code))
		})
		models += model(name, to(ups[name]))
	}
	left := harness.NewUpstream(t, func(x *harness.Exchange) { <-x.Gone() })
	g := harness.Start(t, harness.Config{Flexinfer: models + model("left", to(left)) + health("eject_after 3")})
	for _, code := range statuses {
		name := fmt.Sprint(code)
		for i := range times {
			if res := g.Post(t, "/v1/chat/completions", chatOf(name, "hi")); res.Status != code {
				t.Fatalf("call %d: %s, want %d", i, res, code)
			}
		}
		if !isHealthy(t, g, name, ups[name]) {
			t.Errorf("%d answers with %d ejected the upstream", times, code)
		}
		if n := ups[name].Served(); n != times {
			t.Errorf("the upstream that answers %d got %d of %d calls", code, n, times)
		}
		ups[name].Handle(harness.Answer)
		g.Chat(t, chatOf(name, "well again"))
	}

	// Clients that leave once the upstream has the call, and those whose own
	// time is up.
	inParallel(t, 10, 2*times, func(ctx context.Context, i int) error {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if i < times {
			var leave context.CancelFunc
			ctx, leave = context.WithCancel(context.WithoutCancel(ctx))
			before := left.Served()
			go func() {
				defer leave()
				harness.Within(harness.Patience, func() bool { return left.Served() > before })
			}()
		}
		if res, err := g.TryFresh(ctx, http.MethodPost, "/v1/chat/completions", chatOf("left", "hi")); err == nil {
			return fmt.Errorf("a call that was left got %s", res)
		}
		return nil
	})
	g.WaitIdle(t)
	if !isHealthy(t, g, "left", left) {
		t.Error("clients that left ejected the upstream")
	}
	if n := g.Metrics(t).Value("flexinfer_proxy_requests_total", "model", "left", "status", "client_closed"); n < times {
		t.Errorf("%v of %d calls count as client_closed", n, 2*times)
	}
	left.Handle(harness.Answer)
	g.Chat(t, chatOf("left", "still there?"))
}

// T2: what is no failure is no success either: it does not break a run of
// failures, and does not bring back what is on trial.
func TestT2_WhatIsNoFailureIsNoSuccess(t *testing.T) {
	t.Parallel()
	neutral := []int{400, 404, 422, 429}
	var code atomic.Int64
	ups := harness.NewUpstreams(t, len(neutral), func(x *harness.Exchange) { status(int(code.Load()))(x) })
	var models string
	for i, n := range neutral {
		models += model(fmt.Sprint(n), to(ups[i]))
	}
	g := harness.Start(t, harness.Config{Flexinfer: models + health("eject_after 5", "eject_for 200ms")})
	for i, n := range neutral {
		name := fmt.Sprint(n)
		send := func(codes ...int) {
			t.Helper()
			for _, c := range codes {
				code.Store(int64(c))
				if res := g.Post(t, "/v1/chat/completions", chatOf(name, "hi")); res.Status != c {
					t.Fatalf("the answer is %s, want %d", res, c)
				}
			}
		}
		send(500, n, 500, n, 500, n, 500, 200) // a success does
		send(500, n, 500, n, 500, n, 500, n)
		if !isHealthy(t, g, name, ups[i]) {
			t.Fatal("four failures ejected the upstream, which takes five")
		}
		send(500)
		if isHealthy(t, g, name, ups[i]) {
			t.Fatalf("five failures with answers of %d among them did not eject the upstream", n)
		}
		<-time.After(300 * time.Millisecond) // from then on it is on trial
		send(n, n)
		if isHealthy(t, g, name, ups[i]) {
			t.Errorf("a trial that was answered %d brought the upstream back", n)
		}
		send(200)
		if !isHealthy(t, g, name, ups[i]) {
			t.Error("a call that succeeded did not bring the upstream back")
		}
	}
}

// T2: what counts is a failure of the exchange, whatever it looks like.
func TestT2_FailuresEject(t *testing.T) {
	t.Parallel()
	failures := map[string]func(*harness.Exchange){
		"500":          status(500),
		"502":          status(502),
		"504":          status(504),
		"reset":        func(x *harness.Exchange) { x.Reset() },
		"closed":       func(x *harness.Exchange) { x.Close() },
		"garbage":      func(x *harness.Exchange) { x.Write("boo\r\n\r\n"); x.Close() },
		"broken-body":  func(x *harness.Exchange) { x.Write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"); x.Close() },
		"no-byte":      func(x *harness.Exchange) { <-x.Gone() },
		"broken-event": func(x *harness.Exchange) { x.StartStream("text/event-stream"); x.Chunk("data: {}\n\n"); x.Reset() },
	}
	bad := make(map[string]*harness.Upstream)
	good := make(map[string]*harness.Upstream)
	var models string
	for name, fail := range failures {
		bad[name], good[name] = harness.NewUpstream(t, fail), harness.NewUpstream(t, nil)
		models += model(name, to(bad[name], good[name]), "routing round-robin")
	}
	g := harness.Start(t, harness.Config{Flexinfer: models + "health {\n\teject_for 1m\n}\ntimeouts {\n\tfirst_byte 200ms\n}"})
	for name := range failures {
		for range 12 {
			_, _ = g.TryFresh(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"`+name+`","stream":true}`)
		}
		if isHealthy(t, g, name, bad[name]) || bad[name].Served() != 3 {
			t.Errorf("%s: after %d failures the upstream is not ejected", name, bad[name].Served())
		}
		if !isHealthy(t, g, name, good[name]) || good[name].Served() < 9 {
			t.Errorf("%s: the other upstream got %d calls", name, good[name].Served())
		}
	}
}

var strategies = []string{"round-robin", "session-affinity", "prefix", "least-loaded", "power-of-two", "soft-k-choice"}

// T2, T4: an endpoint that fails at once is always idle. It gets a small share
// of the calls all the same, under each strategy.
func TestT4_WhatFailsFastDrawsFewCalls(t *testing.T) {
	t.Parallel()
	const calls = 90
	for name, fail := range map[string]func(*harness.Exchange){
		"500": status(500), "429": status(429), "off": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := make(map[string]string)
			ups := make(map[string][]*harness.Upstream)
			var models string
			for _, s := range strategies {
				ups[s] = harness.NewUpstreams(t, 2, func(x *harness.Exchange) {
					<-time.After(10 * time.Millisecond) // as an engine that works
					harness.Answer(x)
				})
				if bad[s] = harness.FreeAddr(t); fail != nil {
					bad[s] = harness.NewUpstream(t, fail).Addr
				}
				models += model(s, "to "+bad[s]+" "+addrs(ups[s]...), "routing "+s)
			}
			g := harness.Start(t, harness.Config{Flexinfer: models})
			for _, s := range strategies {
				inParallel(t, 5, calls, func(ctx context.Context, i int) error {
					_, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", chatOf(s, fmt.Sprint("chat ", i)))
					return err
				})
				n := g.Metrics(t).Value("flexinfer_proxy_routing_target_hits_total", "model", s, "target", bad[s])
				if n == 0 || n > calls/8 {
					t.Errorf("%s: what fails got %v attempts of %d calls, the others %v", s, n, calls, served(ups[s]))
				}
			}
			g.WaitIdle(t)
		})
	}
}

// T3: if all are ejected all are tried, at once and not after a time, and they
// are back with their first answers.
func TestT3_AllEjectedAllAreTried(t *testing.T) {
	t.Parallel()
	ups := make(map[string][]*harness.Upstream)
	var models string
	for _, s := range strategies {
		ups[s] = harness.NewUpstreams(t, 2, status(500))
		models += model(s, to(ups[s]...), "routing "+s)
	}
	g := harness.Start(t, harness.Config{Flexinfer: models + health("eject_after 1", "eject_for 1m")})
	for _, s := range strategies {
		send := func(want int) {
			t.Helper()
			for i := range 20 {
				begun := time.Now()
				if res := g.Post(t, "/v1/chat/completions", chatOf(s, fmt.Sprint(i))); res.Status != want {
					t.Fatalf("%s: call %d: %s, want %d", s, i, res, want)
				}
				if took := time.Since(begun); took > 2*time.Second {
					t.Errorf("%s: call %d took %s", s, i, took)
				}
			}
		}
		send(http.StatusInternalServerError)
		for i, u := range ups[s] {
			if isHealthy(t, g, s, u) {
				t.Errorf("%s: upstream %d is not ejected", s, i)
			}
			u.Handle(harness.Answer)
		}
		send(http.StatusOK) // long before eject_for is over
		if !isHealthy(t, g, s, ups[s][0]) && !isHealthy(t, g, s, ups[s][1]) {
			t.Errorf("%s: calls that succeed bring nobody back", s)
		}
	}
}

// T5: what is known of an endpoint persists from call to call and over reloads,
// failures that have not ejected it yet too, and one model's calls tell of it
// for all.
func TestT5_FailCountsPersist(t *testing.T) {
	t.Parallel()
	bad, up := harness.NewUpstream(t, status(500)), harness.NewUpstream(t, nil)
	cfg := harness.Config{Flexinfer: model("m", to(bad, up), "routing round-robin", "health {\n\t\teject_for 1m\n\t}") + model("alone", to(bad))}
	g := harness.Start(t, cfg)
	fail := func() {
		t.Helper()
		if res, err := g.TryTwice(t.Context(), http.MethodPost, "/v1/chat/completions", bare("alone")); err != nil || res.Status != 500 {
			t.Fatalf("%v %v", res, err)
		}
	}
	reload := func(i int) {
		other := cfg
		other.Flexinfer += fmt.Sprintf("retries %d", i)
		g.Reload(t, other)
	}
	fail()
	reload(1)
	fail()
	reload(2)
	if !isHealthy(t, g, "m", bad) {
		t.Fatal("two failures ejected the upstream, which takes three")
	}
	// The third is enough, by a model that may eject one of two.
	for range 2 {
		_, _ = g.TryTwice(t.Context(), http.MethodPost, "/v1/chat/completions", chat("hi"))
	}
	if isHealthy(t, g, "m", bad) {
		t.Fatal("a failure before each of two reloads, and one after them, did not eject the upstream")
	}
	bad.Forget()
	for i := range 3 {
		reload(i)
		if isHealthy(t, g, "m", bad) {
			t.Errorf("reload %d brought the upstream back", i)
		}
		for range 4 {
			if res, err := g.TryTwice(t.Context(), http.MethodPost, "/v1/chat/completions", chat("hi")); err != nil || res.Status != http.StatusOK {
				t.Errorf("after reload %d: %v %v", i, res, err)
			}
		}
	}
	if n := bad.Served(); n != 0 {
		t.Errorf("the upstream that is ejected got %d calls", n)
	}
}
