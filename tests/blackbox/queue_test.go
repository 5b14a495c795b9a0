package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// paced are upstreams that answer one request for each step of the test.
type paced struct {
	ups   []*harness.Upstream
	steps chan struct{}
	mu    sync.Mutex
	order []string // of the requests, by their bodies
}

func newPaced(t *testing.T, n int) *paced {
	p := &paced{steps: make(chan struct{})}
	p.ups = harness.NewUpstreams(t, n, func(x *harness.Exchange) {
		p.mu.Lock()
		p.order = append(p.order, string(x.Body))
		p.mu.Unlock()
		select {
		case <-p.steps:
			harness.Answer(x)
		case <-x.Gone():
		case <-t.Context().Done():
		}
	})
	return p
}

// arrived returns the bodies of the requests in the order in which they came.
func (p *paced) arrived() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.order)
}

// step has n requests answered.
func (p *paced) step(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case p.steps <- struct{}{}:
		case <-time.After(harness.Patience):
			t.Fatal("there is no request to be answered")
		}
	}
}

// calls are requests under way, whose answers come later.
type calls struct {
	t   *testing.T
	g   *harness.Gateway
	all sync.WaitGroup
	mu  sync.Mutex
	got map[int]*harness.Response
}

func newCalls(t *testing.T, g *harness.Gateway) *calls {
	return &calls{t: t, g: g, got: make(map[int]*harness.Response)}
}

// begin makes call i, whose body is its number.
func (c *calls) begin(ctx context.Context, i int, headers ...string) {
	c.all.Go(func() {
		res, err := c.g.Try(ctx, http.MethodPost, "/v1/chat/completions", chat(strconv.Itoa(i)), headers...)
		if err != nil && ctx.Err() == nil {
			c.t.Errorf("call %d: %v", i, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got[i] = res
	})
}

// wait returns the answers of all calls.
func (c *calls) wait() map[int]*harness.Response {
	c.all.Wait()
	return c.got
}

// queued waits until n calls wait for the model m.
func queued(t *testing.T, g *harness.Gateway, n int) {
	t.Helper()
	harness.Eventually(t, harness.Patience, fmt.Sprintf("%d calls wait", n), func() bool {
		for _, m := range g.Models(t) {
			if m.Name == "m" {
				return m.Queued == n
			}
		}
		return false
	})
}

// capped returns a model whose upstreams take so many calls each.
func capped(most int, ups ...*harness.Upstream) string {
	return model("m", to(ups...)+fmt.Sprintf(" {\n\t\tmax_inflight %d\n\t}", most), "routing round-robin")
}

// Q3, L1: no upstream gets more calls at once than it may, the rest wait and
// go in their order, and no count is left.
func TestQ3_MaxInflight(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"round-robin", "least-loaded", "session-affinity", "prefix", "soft-k-choice", "power-of-two", "default"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			p := newPaced(t, 2)
			g := harness.Start(t, harness.Config{Flexinfer: model("m", to(p.ups...)+" {\n\t\tmax_inflight 2\n\t}", "routing "+strategy)})
			c := newCalls(t, g)
			for i := range 4 {
				c.begin(t.Context(), i)
			}
			harness.Eventually(t, harness.Patience, "4 calls are under way", func() bool { return len(p.arrived()) == 4 })
			var want []string
			for i := 4; i < 12; i++ {
				c.begin(t.Context(), i)
				queued(t, g, i-3)
				want = append(want, chat(strconv.Itoa(i)))
			}
			for i := range 8 {
				p.step(t, 1)
				harness.Eventually(t, harness.Patience, "the next call goes", func() bool { return len(p.arrived()) == 5+i })
			}
			p.step(t, 4)
			for i, res := range c.wait() {
				if res.Status != http.StatusOK {
					t.Errorf("call %d: %s", i, res)
				}
			}
			if got := p.arrived()[4:]; !slices.Equal(got, want) {
				t.Errorf("the calls that waited went as %v", got)
			}
			for _, u := range p.ups {
				if n := u.MaxInflight(); n > 2 {
					t.Errorf("an upstream had %d calls at once", n)
				}
			}
			m := g.Metrics(t)
			for name, want := range map[string]float64{
				"flexinfer_proxy_queued_requests_total":       8,
				"flexinfer_proxy_queue_wait_duration_seconds": 8,
				"flexinfer_proxy_queue_rejected_total":        0,
			} {
				if n := m.Value(name, "model", "m"); n != want {
					t.Errorf("%s is %v, want %v", name, n, want)
				}
			}
			g.WaitIdle(t)
		})
	}
}

// A burst never gets an upstream beyond what it may have.
func TestQ3_Burst(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, nil)
	g := harness.Start(t, harness.Config{Flexinfer: capped(3, ups...) + "queue {\n\tmax_size 500\n}"})
	inParallel(t, 60, 1500, func(ctx context.Context, i int) error {
		res, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", chat(strconv.Itoa(i)))
		if err != nil || res.Status != http.StatusOK {
			return fmt.Errorf("%v %w", res, err)
		}
		return nil
	})
	for i, u := range ups {
		if n := u.MaxInflight(); n > 3 {
			t.Errorf("upstream %d had %d calls at once", i, n)
		}
		if n := u.Served(); n < 300 {
			t.Errorf("upstream %d served %d of 1500", i, n)
		}
	}
	g.WaitIdle(t)
}

// B9 (d), Q1: a full queue refuses at once, without waiting for the body, and a
// wait has an end. Who leaves makes room, and was never sent.
func TestQueueRefuses(t *testing.T) {
	t.Parallel()
	p := newPaced(t, 1)
	g := harness.Start(t, harness.Config{Flexinfer: capped(1, p.ups...) + "queue {\n\tmax_size 2\n\ttimeout 3s\n\tcold_start_timeout 1s\n}"})
	c := newCalls(t, g)
	c.begin(t.Context(), 0)
	harness.Eventually(t, harness.Patience, "the first is under way", func() bool { return len(p.arrived()) == 1 })
	ctx, leave := context.WithCancel(t.Context())
	c.begin(ctx, 1)
	queued(t, g, 1)
	c.begin(t.Context(), 2)
	queued(t, g, 2)

	res := g.Post(t, "/v1/chat/completions", chat("3"))
	if ref := res.Refusal(t); res.Status != http.StatusServiceUnavailable || ref.Error.Code != "queue_full" || res.Header.Get("Retry-After") == "" {
		t.Errorf("a call too many: %s, Retry-After %q", res, res.Header.Get("Retry-After"))
	}
	conn := g.Dial(t)
	conn.Send(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Model-ID: m\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	if res := conn.Response(t); res.Status != http.StatusServiceUnavailable {
		t.Errorf("a call that asks first: %s", res)
	}

	leave()
	queued(t, g, 1)
	harness.Eventually(t, harness.Patience, "the wait ends", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.got[2] != nil
	})
	p.step(t, 1)
	got := c.wait()
	if res := got[2]; res.Status != http.StatusGatewayTimeout || res.Refusal(t).Error.Code != "timeout" {
		t.Errorf("a call that waited for too long: %s", res)
	}
	if got[0].Status != http.StatusOK || len(p.arrived()) != 1 {
		t.Errorf("the first: %s; %d were sent", got[0], len(p.arrived()))
	}
	if n := g.Metrics(t).Value("flexinfer_proxy_queue_rejected_total", "model", "m"); n != 2 {
		t.Errorf("queue_rejected_total is %v", n)
	}
	g.WaitIdle(t)
}

// Q4: calls that wait when the configuration changes go on as the new one says.
func TestQ4_WaitingCallsSeeReloads(t *testing.T) {
	t.Parallel()
	p := newPaced(t, 1)
	other := harness.NewUpstream(t, named("other"))
	const bound = "queue {\n\tmax_size 3\n}\n"
	cfg := harness.Config{Flexinfer: capped(1, p.ups...) + bound}
	g := harness.Start(t, cfg)
	begin := func() *calls {
		c := newCalls(t, g)
		c.begin(t.Context(), 0)
		harness.Eventually(t, harness.Patience, "one is under way", func() bool { return p.ups[0].Inflight() == 1 })
		for i := 1; i < 4; i++ {
			c.begin(t.Context(), i)
			queued(t, g, i)
		}
		return c
	}
	check := func(c *calls, status int, by string) {
		t.Helper()
		p.step(t, 1)
		for i, res := range c.wait() {
			want, upstream := status, by
			if i == 0 {
				want, upstream = http.StatusOK, ""
			}
			if res.Status != want {
				t.Errorf("call %d: %s, want %d", i, res, want)
			} else if upstream != "" && upstreamOf(t, res) != upstream {
				t.Errorf("call %d was served by %s", i, upstreamOf(t, res))
			}
			if want == http.StatusServiceUnavailable && res.Header.Get("Retry-After") == "" {
				t.Errorf("call %d is not told when to come again", i)
			}
		}
		g.WaitIdle(t)
	}

	// One that leaves the model alone: the bound counts on.
	c := begin()
	cfg.Flexinfer += "max_body 1MiB\n"
	g.Reload(t, cfg)
	if res := g.Post(t, "/v1/chat/completions", chat("too many")); res.Status != http.StatusServiceUnavailable {
		t.Errorf("one too many after a reload: %s", res)
	}
	queued(t, g, 3)
	// Another upstream.
	cfg.Flexinfer = capped(1, other) + bound
	g.Reload(t, cfg)
	check(c, http.StatusOK, "other")

	// The model goes.
	cfg.Flexinfer = capped(1, p.ups...) + bound
	g.Reload(t, cfg)
	c = begin()
	cfg.Flexinfer = model("n", to(other))
	g.Reload(t, cfg)
	check(c, http.StatusServiceUnavailable, "")
}

// X2: when the process stops, calls that wait are refused, so that clients go
// elsewhere, and those under way end.
func TestX2_WaitingCallsAreRefusedAtTheEnd(t *testing.T) {
	t.Parallel()
	p := newPaced(t, 1)
	g := harness.Start(t, harness.Config{Flexinfer: capped(1, p.ups...), Global: "grace_period 20s\n"})
	c := newCalls(t, g)
	c.begin(t.Context(), 0)
	harness.Eventually(t, harness.Patience, "one is under way", func() bool { return p.ups[0].Inflight() == 1 })
	c.begin(t.Context(), 1)
	queued(t, g, 1)
	g.Signal(t, syscall.SIGTERM)
	harness.Eventually(t, harness.Patience, "the waiting call is answered", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.got[1] != nil
	})
	p.step(t, 1)
	got := c.wait()
	if res := got[1]; res.Status != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("the call that waited: %s", res)
	}
	if got[0].Status != http.StatusOK {
		t.Errorf("the call under way: %s", got[0])
	}
}

// A call that fails goes before those that wait, to an endpoint that it was not
// at, as soon as that has room.
func TestRetriesWaitToo(t *testing.T) {
	t.Parallel()
	p := newPaced(t, 1)
	refusing := harness.NewUpstream(t, func(x *harness.Exchange) { x.Respond(503, "application/json", "{}") })
	g := harness.Start(t, harness.Config{Flexinfer: capped(1, p.ups[0], refusing)})
	c := newCalls(t, g)
	c.begin(t.Context(), 0)
	harness.Eventually(t, harness.Patience, "one is under way", func() bool { return p.ups[0].Inflight() == 1 })
	c.begin(t.Context(), 1)
	queued(t, g, 1)
	p.step(t, 2)
	for i, res := range c.wait() {
		if res.Status != http.StatusOK {
			t.Errorf("call %d: %s", i, res)
		}
	}
	g.WaitIdle(t)
}

// A proxy composed by hand asks for an upstream again when it got none: a call
// that is refused stays refused.
func TestRefusedCallsOfAComposedSite(t *testing.T) {
	t.Parallel()
	p := newPaced(t, 1)
	g := harness.Start(t, harness.Config{
		Flexinfer: capped(1, p.ups...) + "queue {\n\tmax_size 1\n}",
		Site:      "reverse_proxy {\n\tdynamic flexinfer\n\tlb_policy flexinfer\n\ttransport flexinfer\n}",
	})
	send := func(i int, status chan<- int) {
		res, err := g.Try(t.Context(), http.MethodPost, "/v1/chat/completions", chat(strconv.Itoa(i)))
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		status <- res.Status
	}
	served := make(chan int, 2)
	go send(0, served)
	harness.Eventually(t, harness.Patience, "one is under way", func() bool { return len(p.arrived()) == 1 })
	go send(1, served)
	queued(t, g, 1)
	for i := range 3 {
		refused := make(chan int, 1)
		send(2+i, refused)
		if status := <-refused; status != http.StatusServiceUnavailable {
			t.Errorf("a call too many: %d", status)
		}
	}
	p.step(t, 2)
	for range 2 {
		if status := <-served; status != http.StatusOK {
			t.Errorf("a call that waits: %d", status)
		}
	}
	if n := len(p.arrived()); n != 2 {
		t.Errorf("%d calls were sent", n)
	}
}

// A retry that has to wait for its endpoint does not hold up calls that could go
// to another.
func TestRetriesHoldNobodyUp(t *testing.T) {
	t.Parallel()
	p := newPaced(t, 1)
	var refused atomic.Int64
	other := harness.NewUpstream(t, func(x *harness.Exchange) {
		switch body := string(x.Body); {
		case strings.Contains(body, "refuse me"):
			refused.Add(1)
			x.Respond(503, "application/json", "{}")
			return
		case body == chat("0"):
			x.Respond(503, "application/json", "{}")
			return
		}
		harness.Answer(x)
	})
	g := harness.Start(t, harness.Config{Flexinfer: capped(1, p.ups[0], other)})
	c := newCalls(t, g)
	c.begin(t.Context(), 0)
	harness.Eventually(t, harness.Patience, "one is under way", func() bool { return len(p.arrived()) == 1 })
	done := make(chan *harness.Response, 1)
	go func() {
		res, err := g.Try(t.Context(), http.MethodPost, "/v1/chat/completions", chat("refuse me"))
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	harness.Eventually(t, harness.Patience, "the retry waits", func() bool { return refused.Load() == 1 })
	queued(t, g, 1)
	for i := range 5 {
		if res := g.Post(t, "/v1/chat/completions", chat("another "+strconv.Itoa(i))); res.Status != http.StatusOK {
			t.Errorf("a call that could go: %s", res)
		}
	}
	p.step(t, 2)
	if res := <-done; res == nil || res.Status != http.StatusOK {
		t.Errorf("the retry: %v", res)
	}
	c.wait()
	g.WaitIdle(t)
}
