package blackbox

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// flood is a body that never ends. It counts what was taken of it.
type flood struct{ taken atomic.Int64 }

func (f *flood) Read(p []byte) (int, error) {
	f.taken.Add(int64(len(p)))
	return len(p), nil
}

// Z6: over HTTP/2 and 3 too a client whose request is refused is stopped.
func TestZ6_RefusedUploadsAreStopped(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "max_body 64KiB", TLS: true})
	for _, protocol := range harness.Protocols {
		client, _ := g.NewProtocolClient(t, protocol)
		for name, tt := range map[string]struct {
			model  string
			length int64
			status int
		}{"unknown": {"nobody", -1, 404}, "too large": {"m", 1 << 40, 413}, "too large, of unknown length": {"m", -1, 413}} {
			body := new(flood)
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/chat/completions", body)
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = tt.length
			req.Header.Set("X-Model-ID", tt.model)
			begun := time.Now()
			res, err := harness.DoWith(client, req)
			if err != nil || res.Status != tt.status {
				t.Errorf("%s, %s: %v %v, want %d", protocol, name, res, err, tt.status)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("%s, %s: it took %s", protocol, name, took)
			}
			before := body.taken.Load()
			if harness.Within(150*time.Millisecond, func() bool { return body.taken.Load() > before+1<<20 }) {
				t.Errorf("%s, %s: the client goes on sending after the refusal, %d bytes", protocol, name, body.taken.Load())
			}
			cancel()
		}
	}
	if up.Served() != 0 {
		t.Error("a refused request reached the upstream")
	}
	g.WaitIdle(t)
}

// No retry starts for a client that has left, in whichever phase of an attempt
// it did; and that says nothing about the endpoint.
func TestNoRetryForWhoHasLeft(t *testing.T) {
	t.Parallel()
	const calls = 8 // every other one goes to the slow one first
	hole, up := harness.Blackhole(t), harness.NewUpstream(t, nil)
	slow := harness.NewUpstream(t, func(x *harness.Exchange) {
		<-time.After(300 * time.Millisecond) // the client has left by then
		status(503)(x)
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("dials", "to "+hole+" "+up.Addr, "routing round-robin") +
		model("waits", to(slow, up), "routing round-robin") + "timeouts {\n\tdial 500ms\n}\n" + health("eject_after 1")})
	for _, name := range []string{"dials", "waits"} {
		up.Forget()
		answered := 0
		for range calls {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if res, err := g.TryFresh(ctx, http.MethodPost, "/v1/chat/completions", bare(name)); err == nil && res.Status == http.StatusOK {
				answered++
			}
			cancel()
		}
		<-time.After(600 * time.Millisecond) // a retry would have begun
		if n := up.Served(); n > calls/2 || answered == 0 {
			t.Errorf("%s: the other upstream got %d of %d calls, %d clients had an answer", name, n, calls, answered)
		}
		m := g.Metrics(t)
		if n := m.Value("flexinfer_proxy_upstream_retries_total", "model", name); n != 0 {
			t.Errorf("%s: %v retries", name, n)
		}
		for _, s := range m.Series("flexinfer_proxy_upstream_healthy", "model", name) {
			if s.Value != 1 {
				t.Errorf("%s: clients that left ejected an endpoint: %s", name, s)
			}
		}
	}
	g.WaitIdle(t)
}
