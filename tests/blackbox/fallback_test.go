package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// The decisions are logged at the level debug, with the fields that FlexInfer's
// own proxy gives them.
func TestRoutingLogs(t *testing.T) {
	t.Parallel()
	up, service := harness.NewUpstream(t, nil), harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", to(up), "service "+service.Addr, "routing prefix"), Debug: true,
	})
	g.Post(t, "/v1/completions", bare("m"), "X-Flexinfer-Cache-Key", "k")
	g.Post(t, "/v1/completions", bare("m"))

	e := g.Logs().Wait(t, "routing to pod", func(harness.Entry) bool { return true })
	for field, want := range map[string]string{
		"level": "debug", "model": "m", "strategy": "prefix", "target": up.Addr, "key_source": "explicit-header",
	} {
		if got := e.Text(field); got != want {
			t.Errorf("routing to pod: %s is %q, want %q", field, got, want)
		}
	}
	e = g.Logs().Wait(t, "routing fallback to service", func(harness.Entry) bool { return true })
	for field, want := range map[string]string{"level": "debug", "model": "m", "strategy": "prefix", "key_source": "none"} {
		if got := e.Text(field); got != want {
			t.Errorf("routing fallback to service: %s is %q, want %q", field, got, want)
		}
	}
}

// The strategy default goes to the service, and so does a model that has
// nothing else, whatever its strategy.
func TestServiceOnly(t *testing.T) {
	t.Parallel()
	service, up := harness.NewUpstream(t, named("service")), harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("default", to(up), "service "+service.Addr) +
		model("ring", "service "+service.Addr, "routing session-affinity") +
		model("least", "service "+service.Addr, "routing least-loaded")})
	for _, name := range []string{"default", "ring", "least"} {
		res := g.Chat(t, chatOf(name, "hi"), harness.Debug...)
		if got := upstreamOf(t, res); got != "service" {
			t.Errorf("%s went to %q", name, got)
		}
		if route := res.Route(); route["outcome"] != "service-fallback" || route["target"] != "service-dns" {
			t.Errorf("%s: X-Flexinfer-Route is %v", name, route)
		}
	}
	m := g.Metrics(t)
	for _, name := range []string{"default", "ring", "least"} {
		if n := m.Value("flexinfer_proxy_routing_decisions_total", "model", name, "outcome", "service-fallback"); n != 1 {
			t.Errorf("routing_decisions_total of %s with outcome service-fallback is %v", name, n)
		}
	}
	g.WaitIdle(t)
}

// An upstream that refuses the connection costs a retry, not the request. The
// body is whole each time.
func TestRetryOnDeadUpstream(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"round-robin", "session-affinity", "prefix", "least-loaded", "power-of-two", "soft-k-choice"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			up := harness.NewUpstream(t, nil)
			g := harness.Start(t, harness.Config{Flexinfer: model("m", "to "+harness.FreeAddr(t)+" "+up.Addr, "routing "+routing)})
			attempts := make(map[string]int)
			for i := range 40 {
				res := g.Chat(t, chat(fmt.Sprint("chat ", i)), harness.Debug...)
				if got := string(up.Last(t).Body); got != chat(fmt.Sprint("chat ", i)) {
					t.Fatalf("the upstream got %q", got)
				}
				attempts[res.Route()["attempt"]]++
			}
			retries := g.Metrics(t).Value("flexinfer_proxy_upstream_retries_total", "model", "m", "reason", "conn_refused")
			if attempts["2"] == 0 || retries != float64(attempts["2"]) || attempts["1"]+attempts["2"] != 40 {
				t.Errorf("the attempts were %v, upstream_retries_total is %v", attempts, retries)
			}
			g.WaitIdle(t)
		})
	}
}

// The service is the last resort of a model whose endpoints are all down.
func TestRetryFallsBackToService(t *testing.T) {
	t.Parallel()
	service := harness.NewUpstream(t, named("service"))
	dead := harness.FreeAddr(t)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "to "+dead, "service "+service.Addr, "routing prefix")})
	res := g.Chat(t, chat("hi"), harness.Debug...)
	if route := res.Route(); upstreamOf(t, res) != "service" || route["outcome"] != "service-fallback" || route["attempt"] != "2" {
		t.Errorf("the answer is %s by %v", res, route)
	}
	g.WaitIdle(t)
}

func TestAllUpstreamsDead(t *testing.T) {
	t.Parallel()
	tests := []struct {
		dead, retries int
		attempts      float64
	}{{1, 2, 3}, {5, 2, 3}, {5, 0, 1}, {2, 1, 2}}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			t.Parallel()
			line := "to"
			for range tt.dead {
				line += " " + harness.FreeAddr(t)
			}
			g := harness.Start(t, harness.Config{Flexinfer: model("m", line, "routing least-loaded") + fmt.Sprintf("retries %d", tt.retries)})
			start := time.Now()
			res := g.Post(t, "/v1/chat/completions", chat("hi"))
			if res.Status != http.StatusBadGateway {
				t.Fatalf("the answer is %s", res)
			}
			if e := res.Refusal(t); e.Error.Type != "upstream_error" || e.Error.Code != "bad_gateway" {
				t.Errorf("the error is %+v", e.Error)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("it took %s", took)
			}
			m := g.Metrics(t)
			if n := m.Value("flexinfer_proxy_upstream_retries_total", "model", "m"); n != tt.attempts-1 {
				t.Errorf("upstream_retries_total is %v, want %v", n, tt.attempts-1)
			}
			if n := m.Value("flexinfer_proxy_routing_target_hits_total", "model", "m"); n != tt.attempts {
				t.Errorf("there were %v attempts, want %v", n, tt.attempts)
			}
			if n := m.Value("flexinfer_proxy_requests_total", "model", "m", "status", "upstream_error"); n != 1 {
				t.Errorf("requests_total{status=upstream_error} is %v", n)
			}
			g.WaitIdle(t)
		})
	}
}

// An error that an engine gives is the engine's to give: it passes whole.
func TestUpstreamErrorsPassThrough(t *testing.T) {
	t.Parallel()
	body := strings.Repeat(`{"detail":"no"}`, 3000)
	statuses := []int{400, 401, 404, 413, 422, 429, 500, 502, 503, 504}
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		var status int
		_, _ = fmt.Sscanf(x.Target, "/v1/%d", &status)
		x.Respond(status, "application/json", body)
	})
	g := serve(t, "prefix", up)
	for _, status := range statuses {
		res := g.Post(t, fmt.Sprintf("/v1/%d", status), chat("hi"))
		if res.Status != status || string(res.Body) != body {
			t.Errorf("the answer to a %d is %s", status, res)
		}
	}
	m := g.Metrics(t)
	if ok, bad := m.Value("flexinfer_proxy_requests_total", "status", "success"), m.Value("flexinfer_proxy_requests_total", "status", "upstream_error"); ok != 6 || bad != 4 {
		t.Errorf("requests_total counts %v successes and %v upstream errors, want 6 and 4", ok, bad)
	}
	g.WaitIdle(t)
}

// The body of a retry is the whole body again.
func TestRetryWithLargeBody(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "to "+harness.FreeAddr(t)+" "+harness.FreeAddr(t)+" "+up.Addr, "routing round-robin")})
	for i := range 9 {
		body := chat(strings.Repeat(fmt.Sprint(i), 3<<20))
		g.Chat(t, body)
		if got := up.Last(t); got.Sum != sum(body) {
			t.Fatalf("the upstream got other %d bytes of %d", got.Length, len(body))
		}
	}
	g.WaitIdle(t)
}
