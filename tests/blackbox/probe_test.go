package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A probed upstream answers probes as a test says, and calls well.
type probed struct {
	*harness.Upstream
	probes atomic.Int64
	answer atomic.Pointer[func(n int64, x *harness.Exchange)] // to the probe n
}

func newProbed(t *testing.T, answer func(n int64, x *harness.Exchange)) *probed {
	t.Helper()
	p := new(probed)
	p.answer.Store(&answer)
	p.Upstream = harness.NewUpstream(t, func(x *harness.Exchange) {
		if x.Target != "/health" {
			harness.Answer(x)
			return
		}
		(*p.answer.Load())(p.probes.Add(1), x)
	})
	return p
}

// says makes the answer to the probes to come that of a handler.
func (p *probed) says(handle func(*harness.Exchange)) {
	answer := func(_ int64, x *harness.Exchange) { handle(x) }
	p.answer.Store(&answer)
}

func (p *probed) wait(t *testing.T, n int64) {
	t.Helper()
	goal := p.probes.Load() + n
	harness.Eventually(t, harness.Patience, "the upstream is probed", func() bool { return p.probes.Load() >= goal })
}

// probes is a health block that asks for /health often.
func probes(lines ...string) string {
	return "health {\n\t\turi /health\n\t\tinterval 50ms\n\t\t" + strings.Join(lines, "\n\t\t") + "\n\t}"
}

const ejected, back = "endpoint is ejected", "endpoint is back"

// T3: probes that fail now and then, or one that is slow, eject nobody; a run
// of them does, and a run of good ones brings the endpoint back, soon and
// without a restart.
func TestT3_ProbesDoNotFlap(t *testing.T) {
	t.Parallel()
	flapping := newProbed(t, func(n int64, x *harness.Exchange) {
		if n%2 == 0 {
			status(503)(x)
		} else {
			status(200)(x)
		}
	})
	slow := newProbed(t, func(n int64, x *harness.Exchange) {
		if n == 3 {
			<-x.Gone()
			return
		}
		status(200)(x)
	})
	other := newProbed(t, func(_ int64, x *harness.Exchange) { status(204)(x) })
	down := newProbed(t, func(_ int64, x *harness.Exchange) { status(200)(x) })
	g := harness.Start(t, harness.Config{Flexinfer: model("flapping", to(flapping.Upstream, other.Upstream), "routing round-robin") +
		model("slow", to(slow.Upstream, other.Upstream)) + model("down", to(down.Upstream, other.Upstream), "routing round-robin") + probes("timeout 200ms")})
	flapping.wait(t, 16)
	slow.wait(t, 6)
	if e := g.Logs().Entries(ejected); len(e) != 0 {
		t.Fatalf("probes that fail now and then ejected an endpoint: %v", e)
	}

	down.says(func(x *harness.Exchange) { x.Close() })
	harness.Eventually(t, harness.Patience, "the run of failed probes ejects", func() bool { return !isHealthy(t, g, "down", down.Upstream) })
	for range 10 {
		if got := upstreamOf(t, g.Chat(t, chatOf("down", "hi"))); got != other.Addr {
			t.Errorf("a call went to %s, which fails its probes", got)
		}
	}
	down.says(status(200))
	harness.Eventually(t, 2*time.Second, "good probes bring the endpoint back", func() bool { return isHealthy(t, g, "down", down.Upstream) })
	if n := len(g.Logs().Entries(ejected)); n != 1 {
		t.Errorf("%d endpoints were ejected, want 1", n)
	}
	if e := g.Logs().Entries(back); len(e) != 1 || e[0].Text("by") != "probe" {
		t.Errorf("what came back is %v", e)
	}
}

// T3: all endpoints fail their probes at once: calls are tried all the same,
// and all are back once they are well.
func TestT3_AllFailTheirProbes(t *testing.T) {
	t.Parallel()
	ups := make([]*probed, 3)
	line := "to"
	for i := range ups {
		ups[i] = newProbed(t, func(_ int64, x *harness.Exchange) { status(500)(x) })
		line += " " + ups[i].Addr
	}
	healthy := func(g *harness.Gateway) (n int) {
		for _, u := range ups {
			if isHealthy(t, g, "m", u.Upstream) {
				n++
			}
		}
		return n
	}
	g := harness.Start(t, harness.Config{Flexinfer: model("m", line, probes())})
	harness.Eventually(t, harness.Patience, "all are ejected", func() bool { return healthy(g) == 0 })
	for range 20 {
		begun := time.Now()
		g.Chat(t, chat("hi"))
		if took := time.Since(begun); took > time.Second {
			t.Errorf("a call took %s", took)
		}
	}
	for _, u := range ups {
		u.says(status(200))
	}
	harness.Eventually(t, 2*time.Second, "all are back", func() bool { return healthy(g) == len(ups) })
}

// T3: a probe that a reload cuts off counts for nothing, and what probes found
// out outlives it.
func TestT3_ReloadsDuringProbes(t *testing.T) {
	t.Parallel()
	var cut atomic.Int64
	hang := func(x *harness.Exchange) {
		select {
		case <-x.Gone():
			cut.Add(1)
		case <-time.After(150 * time.Millisecond):
			status(200)(x)
		}
	}
	well := newProbed(t, func(_ int64, x *harness.Exchange) { hang(x) })
	down := newProbed(t, func(_ int64, x *harness.Exchange) { status(500)(x) })
	cfg := harness.Config{Flexinfer: model("m", to(well.Upstream, down.Upstream), probes("fails 1", "timeout 5s"))}
	g := harness.Start(t, cfg)
	harness.Eventually(t, harness.Patience, "the endpoint that is down is ejected", func() bool { return !isHealthy(t, g, "m", down.Upstream) })
	for i := range 10 {
		well.wait(t, 1)
		other := cfg
		other.Flexinfer += fmt.Sprintf("retries %d", i)
		g.Reload(t, other)
		if !isHealthy(t, g, "m", well.Upstream) || isHealthy(t, g, "m", down.Upstream) {
			t.Fatalf("reload %d changed what is known of the endpoints", i)
		}
	}
	if cut.Load() == 0 {
		t.Error("no probe was cut off")
	}
	well.wait(t, 2)
	if !isHealthy(t, g, "m", well.Upstream) {
		t.Error("the probes that were cut off ejected the endpoint")
	}
}

// T3: an engine that is so busy that it answers probes late is not taken for
// dead before their time is up, nor asked again before it has answered; and if
// its time is up, its calls go on.
func TestT3_BusyEngineAnswersProbesLate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		timeout string
		stays   bool
	}{{"3s", true}, {"100ms", false}} {
		t.Run(tt.timeout, func(t *testing.T) {
			t.Parallel()
			var asked, most atomic.Int64
			gate := harness.NewGate(t)
			up := harness.NewUpstream(t, func(x *harness.Exchange) {
				if x.Target != "/health" {
					x.StartStream("text/event-stream")
					x.Chunk("data: first\n\n")
					if gate.Wait(x) {
						x.Chunk("data: last\n\n")
						x.EndStream()
					}
					return
				}
				most.Store(max(most.Load(), asked.Add(1)))
				select {
				case <-x.Gone():
					asked.Add(-1)
				case <-time.After(300 * time.Millisecond):
					asked.Add(-1)
					status(200)(x)
				}
			})
			g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), probes("timeout "+tt.timeout))})
			var calls sync.WaitGroup
			for range 4 {
				calls.Go(func() {
					res, err := g.TryFresh(t.Context(), http.MethodPost, "/v1/chat/completions", streaming)
					if err != nil || string(res.Body) != "data: first\n\ndata: last\n\n" {
						t.Errorf("a call to a busy engine: %v %v", res, err)
					}
				})
			}
			harness.Eventually(t, harness.Patience, "the calls are under way", func() bool { return gate.Held() == 4 })
			if tt.stays {
				if harness.Within(800*time.Millisecond, func() bool { return !isHealthy(t, g, "m", up) }) {
					t.Error("the engine is ejected")
				}
			} else {
				harness.Eventually(t, harness.Patience, "the engine is ejected", func() bool { return !isHealthy(t, g, "m", up) })
			}
			gate.Open()
			calls.Wait()
			if n := most.Load(); tt.stays && n != 1 {
				t.Errorf("the engine had %d probes at once", n)
			}
			g.WaitIdle(t)
		})
	}
}

// L5: an endpoint that is back has an empty cache and nothing in flight. It is
// not flooded for that: its part grows by the second.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	a, b := newProbed(t, nil), newProbed(t, nil)
	for _, u := range []*probed{a, b} {
		u.says(status(200))
		u.Handle(func(x *harness.Exchange) {
			if x.Target == "/health" {
				u.probes.Add(1)
				(*u.answer.Load())(0, x)
				return
			}
			gate.Then(harness.Answer)(x)
		})
	}
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(a.Upstream, b.Upstream), "routing least-loaded", probes("passes 1", "fails 1"))})
	a.says(status(500))
	harness.Eventually(t, harness.Patience, "the endpoint is out", func() bool { return !isHealthy(t, g, "m", a.Upstream) })
	a.says(status(200))
	harness.Eventually(t, harness.Patience, "the endpoint is back", func() bool { return isHealthy(t, g, "m", a.Upstream) })

	begun := time.Now()
	const burst = 40
	var calls sync.WaitGroup
	for range burst {
		calls.Go(func() { _, _ = g.TryFresh(t.Context(), http.MethodPost, "/v1/chat/completions", chat("hi")) })
	}
	harness.Eventually(t, harness.Patience, "the calls have arrived", func() bool { return gate.Held() == burst })
	// In its first second it takes one call at once, in the next two, and so on.
	most := 1 << int(time.Since(begun).Seconds()+1)
	if n := a.Inflight(); n < 1 || n > most {
		t.Errorf("the endpoint that is just back has %d of %d calls, want at most %d", n, burst, most)
	}
	// It has its part in the end.
	harness.Eventually(t, harness.Patience, "the endpoint takes its part", func() bool {
		calls.Go(func() { _, _ = g.TryFresh(t.Context(), http.MethodPost, "/v1/chat/completions", chat("hi")) })
		<-time.After(20 * time.Millisecond) // a steady stream of calls
		return a.Inflight() > 2
	})
	gate.Open()
	calls.Wait()
}
