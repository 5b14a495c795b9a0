package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// weighted starts a gateway over upstreams with weights.
func weighted(t *testing.T, routing string, us []*harness.Upstream, weights ...int) *harness.Gateway {
	t.Helper()
	lines := []string{"routing " + routing}
	for i, u := range us {
		lines = append(lines, fmt.Sprintf("to %s {\n\t\tweight %d\n\t}", u.Addr, weights[i]))
	}
	return harness.Start(t, harness.Config{Flexinfer: model("m", lines...)})
}

func TestRoundRobinByWeight(t *testing.T) {
	t.Parallel()
	tests := []struct {
		routing string
		weights []int
		want    []int // of 60 requests
	}{
		{"round-robin", []int{1, 1, 1}, []int{20, 20, 20}},
		{"round-robin", []int{3, 1, 2}, []int{30, 10, 20}},
		{"default", []int{1, 1}, []int{30, 30}}, // a model without a service
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.routing, tt.weights), func(t *testing.T) {
			t.Parallel()
			ups := harness.NewUpstreams(t, len(tt.weights), nil)
			g := weighted(t, tt.routing, ups, tt.weights...)
			for range 60 {
				g.Chat(t, chat("the same"))
			}
			if got := served(ups); !slices.Equal(got, tt.want) {
				t.Errorf("the upstreams got %v of 60 requests, want %v", got, tt.want)
			}
		})
	}
}

// The ring gives a heavy endpoint more keys.
func TestRingByWeight(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 2, nil)
	g := weighted(t, "session-affinity", ups, 3, 1)
	inParallel(t, 3, 400, func(ctx context.Context, i int) error {
		_, err := g.Try(ctx, http.MethodPost, "/v1/completions", bare("m"), "X-Session-ID", fmt.Sprint(i))
		return err
	})
	if got := served(ups); got[0] < 240 || got[0] > 360 {
		t.Errorf("the upstreams got %v of 400 sessions, want about 300 and 100", got)
	}
}

// With one call held on an upstream, the strategies that look at loads go to
// the other ones.
func TestStrategiesThatLookAtLoads(t *testing.T) {
	t.Parallel()
	tests := []struct {
		routing   string
		upstreams int
		held      int // on the first upstream
		body      string
		want      func(busy int) bool // of 30 requests
		saying    string
	}{
		{"least-loaded", 3, 1, chat("x"), func(busy int) bool { return busy == 0 }, "none"},
		{"power-of-two", 2, 1, chat("x"), func(busy int) bool { return busy == 0 }, "none"},
		{"soft-k-choice {\n\t\tk 1\n\t}", 3, 1, chat("x"), func(busy int) bool { return busy == 0 }, "none"},
		{"soft-k-choice", 3, 1, chat("x"), func(busy int) bool { return busy == 0 }, "none: two are idle"},
		{"soft-k-choice", 2, 3, chat("x"), func(busy int) bool { return busy < 20 }, "less than the idle one"},
		{"prefix", 3, 1, bare("m"), func(busy int) bool { return busy == 0 }, "none: without a key it is least-loaded"},
		{"session-affinity", 2, 1, bare("m"), func(busy int) bool { return busy == 0 }, "none: without a key it is the lighter of two"},
		{"session-affinity {\n\t\tkeyless least-loaded\n\t}", 3, 1, bare("m"), func(busy int) bool { return busy == 0 }, "none"},
		{"round-robin", 3, 1, chat("x"), func(busy int) bool { return busy == 10 }, "its turn"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.routing, tt.upstreams), func(t *testing.T) {
			t.Parallel()
			gate := harness.NewGate(t)
			ups := harness.NewUpstreams(t, tt.upstreams, gate.Then(harness.Answer))
			g := harness.Start(t, harness.Config{Flexinfer: model("m", to(ups...), "routing "+tt.routing) +
				// The same endpoint under another model: load is the endpoint's.
				model("holder", to(ups[0]))})
			for range tt.held {
				go func() { _, _ = g.Try(t.Context(), http.MethodPost, "/v1/completions", bare("holder")) }()
			}
			harness.Eventually(t, harness.Patience, "the calls are held", func() bool { return ups[0].Inflight() == tt.held })
			for _, u := range ups {
				u.Handle(harness.Answer)
			}
			for range 30 {
				g.Post(t, "/v1/completions", tt.body)
			}
			if busy := ups[0].Served() - tt.held; !tt.want(busy) {
				t.Errorf("the busy upstream got %d of 30 requests, want %s", busy, tt.saying)
			}
			gate.Open()
			g.WaitIdle(t)
		})
	}
}

func TestAffinityStaysUnderEveryKey(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"prefix", "session-affinity"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			ups := harness.NewUpstreams(t, 5, nil)
			g := serve(t, routing, ups...)
			first := make(map[int]string)
			for round := range 5 {
				for session := range 100 {
					res := g.Post(t, "/v1/completions", bare("m"), "X-Session-ID", fmt.Sprint(session))
					up := upstreamOf(t, res)
					if round == 0 {
						first[session] = up
					} else if up != first[session] {
						t.Fatalf("session %d went to %s, then to %s", session, first[session], up)
					}
				}
			}
			for i, n := range served(ups) {
				if n == 0 {
					t.Errorf("upstream %d got no session", i)
				}
			}
		})
	}
}

// Calls without a key go to the service if the model has one: by default under
// prefix, and where the operator says so.
func TestKeylessService(t *testing.T) {
	t.Parallel()
	tests := []struct {
		routing string
		service bool
	}{
		{"prefix", true},
		{"prefix {\n\t\tkeyless service\n\t}", true},
		{"prefix {\n\t\tkeyless least-loaded\n\t}", false},
		{"session-affinity", false},
		{"session-affinity {\n\t\tkeyless service\n\t}", true},
	}
	for _, tt := range tests {
		t.Run(tt.routing, func(t *testing.T) {
			t.Parallel()
			service := harness.NewUpstream(t, named("service"))
			ups := harness.NewUpstreams(t, 2, nil)
			g := harness.Start(t, harness.Config{Flexinfer: model("m", to(ups...), "service "+service.Addr, "routing "+tt.routing)})
			for range 10 {
				res := g.Post(t, "/v1/completions", bare("m"), harness.Debug...)
				if got := upstreamOf(t, res) == "service"; got != tt.service {
					t.Fatalf("it went to the service: %t, want %t", got, tt.service)
				}
				route := res.Route()
				if tt.service && (route["outcome"] != "service-fallback" || route["target"] != "service-dns" || route["key_source"] != "none") {
					t.Errorf("X-Flexinfer-Route is %v", route)
				}
				// With a key the service is out of it.
				res = g.Post(t, "/v1/completions", bare("m"), "X-Session-ID", "1")
				if upstreamOf(t, res) == "service" {
					t.Error("a call with a key went to the service")
				}
			}
			m := g.Metrics(t)
			if got := m.Value("flexinfer_proxy_routing_decisions_total", "outcome", "service-fallback", "key_source", "none") > 0; got != tt.service {
				t.Errorf("the metrics tell of a service-fallback: %t, want %t", got, tt.service)
			}
			if got := m.Value("flexinfer_proxy_routing_target_hits_total", "target", "service-dns") > 0; got != tt.service {
				t.Errorf("the metrics tell of the target service-dns: %t, want %t", got, tt.service)
			}
		})
	}
}
