package blackbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Pick and count are one step: of a burst each of four idle upstreams gets its
// share, every time.
func TestL3_BurstSpreadsEvenly(t *testing.T) {
	t.Parallel()
	tests := []struct {
		routing, body string
		rounds        int
	}{
		{"least-loaded", chat("the same"), 50},
		{"soft-k-choice {\n\t\tk 1\n\t}", chat("the same"), 15},
		{"prefix", bare("m"), 15}, // without a key
	}
	for _, tt := range tests {
		t.Run(tt.routing, func(t *testing.T) {
			t.Parallel()
			const burst, share = 40, 10
			var gate atomic.Pointer[harness.Gate]
			ups := harness.NewUpstreams(t, 4, func(x *harness.Exchange) { gate.Load().Then(harness.Answer)(x) })
			g := serve(t, tt.routing, ups...)
			for round := range tt.rounds {
				held := harness.NewGate(t)
				gate.Store(held)
				var barrier, done sync.WaitGroup
				barrier.Add(1)
				for range burst {
					done.Go(func() {
						barrier.Wait()
						_, _ = g.Try(t.Context(), http.MethodPost, "/v1/completions", tt.body)
					})
				}
				barrier.Done()
				harness.Eventually(t, harness.Patience, "all requests of a burst have arrived", func() bool { return held.Held() == burst })
				for i, u := range ups {
					if n := u.Inflight(); n > share+1 || n < share-1 {
						t.Errorf("round %d: upstream %d has %d of %d requests", round, i, n, burst)
					}
				}
				held.Open()
				done.Wait()
			}
			g.WaitIdle(t)
		})
	}
}

// exits are the ways in which a request can end, each of which gives back what
// the request held.
func exits(t *testing.T, g *harness.Gateway, up *leaky) map[string]func(ctx context.Context) error {
	t.Helper()
	body := `{"model":"m","stream":true,"padding":"` + strings.Repeat("x", 1000) + `"}`
	// raw sends bytes and tears the connection down, if held once an upstream
	// has the request.
	var id atomic.Int64
	raw := func(bytes string, held bool) func(context.Context) error {
		return func(ctx context.Context) error {
			me := fmt.Sprint("/hold/", id.Add(1))
			bytes := strings.Replace(bytes, "/hold", me, 1)
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", g.Addr)
			if err != nil {
				return err
			}
			tcp := conn.(*net.TCPConn)
			defer func() {
				_ = tcp.SetLinger(0)
				_ = tcp.Close()
			}()
			if _, err := conn.Write([]byte(bytes)); err != nil {
				return err
			}
			if held && !harness.Within(harness.Patience, func() bool { _, ok := up.held.Load(me); return ok }) {
				return errors.New("the request did not reach an upstream")
			}
			return nil
		}
	}
	head := func(path string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, len(body))
	}
	status := func(want int, path, body string) func(context.Context) error {
		return func(ctx context.Context) error {
			res, err := g.Try(ctx, http.MethodPost, path, body)
			if err == nil && res.Status != want {
				err = fmt.Errorf("the answer is %s, want %d", res, want)
			}
			return err
		}
	}
	broken := func(path string) func(context.Context) error {
		return func(ctx context.Context) error {
			if res, err := g.Try(ctx, http.MethodPost, path, body); err == nil && res.Status < 500 {
				return fmt.Errorf("the answer is %s", res)
			}
			return nil
		}
	}
	// cancel gives up when the upstream holds the request, or after the first
	// bytes of the answer.
	cancel := func(client *http.Client, path string) func(context.Context) error {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			req, err := g.NewRequest(ctx, http.MethodPost, path, body)
			if err != nil {
				return err
			}
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }()
			_, err = res.Body.Read(make([]byte, 16))
			return err
		}
	}
	h2 := &http.Client{Transport: h2cTransport(t)}
	return map[string]func(context.Context) error{
		"done":                     status(200, "/v1/answer", body),
		"abort during the upload":  raw(head("/v1/hold")+body[:500], false),
		"abort before the body":    raw(head("/v1/hold"), false),
		"abort before the headers": raw(head("/v1/hold")+body, true),
		"abort in the stream":      cancel(g.Client, "/v1/stream"),
		"reset of an h2 stream":    cancel(h2, "/v1/stream"),
		"bad JSON":                 status(400, "/v1/answer", "{"),
		"unknown model":            status(404, "/v1/answer", bare("nobody")),
		"too large":                status(413, "/v1/answer", `{"model":"m","x":"`+strings.Repeat("x", 100_000)+`"}`),
		"dial refused":             status(502, "/v1/answer", bare("dead")),
		"retried":                  status(200, "/v1/answer", bare("half-dead")),
		"5xx":                      status(500, "/v1/500", body),
		"reset before the headers": broken("/v1/reset"),
		"reset in the answer":      broken("/v1/break"),
		"not HTTP":                 broken("/v1/garbage"),
		"panic of another handler": broken("/v1/panic"),
		"HEAD":                     func(ctx context.Context) error { _, err := g.Try(ctx, "HEAD", "/model/m/x", ""); return err },
		"an upgrade that is denied": func(ctx context.Context) error {
			_, err := g.Try(ctx, "GET", "/model/m/ws", "", "Connection", "Upgrade", "Upgrade", "websocket")
			return err
		},
	}
}

// leaky does to a request what its path says. It notes which ones it holds.
type leaky struct{ held sync.Map }

func (l *leaky) answer(x *harness.Exchange) {
	switch path := strings.TrimPrefix(x.Target, "/v1"); {
	case strings.HasPrefix(path, "/hold"):
		gone := x.Gone()
		l.held.Store(path, true)
		<-gone
	case strings.HasSuffix(path, "/stream"):
		x.StartStream("text/event-stream")
		x.Chunk("data: {}\n\n")
		<-x.Gone()
	case strings.HasSuffix(path, "/panic"):
		x.Respond(299, "text/plain", "")
	case strings.HasSuffix(path, "/500"):
		x.Respond(http.StatusInternalServerError, "text/plain", "no")
	case strings.HasSuffix(path, "/reset"):
		x.Reset()
	case strings.HasSuffix(path, "/break"):
		x.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		x.Reset()
	case strings.HasSuffix(path, "/garbage"):
		x.Write("SSH-2.0-OpenSSH\r\n\r\n")
		x.Close()
	default:
		harness.Answer(x)
	}
}

func TestL1_SlotsAreGivenBackOnEveryExit(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"least-loaded", "prefix", "session-affinity"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			up := new(leaky)
			ups := harness.NewUpstreams(t, 3, up.answer)
			g := harness.Start(t, harness.Config{
				Flexinfer: model("m", to(ups...), "routing "+routing, "health {\n\t\teject_after 10000\n\t}") +
					model("dead", "to "+harness.FreeAddr(t), "routing "+routing) +
					model("half-dead", "to "+harness.FreeAddr(t)+" "+ups[0].Addr, "routing "+routing) + "max_body 64KiB",
				Global: "servers {\n\tprotocols h1 h2c\n}",
				// abort panics, as a handler does that has a bug.
				Site: "flexinfer {\n\t@broken status 299\n\thandle_response @broken {\n\t\tabort\n\t}\n}",
			})
			for name, exit := range exits(t, g, up) {
				t.Run(name, func(t *testing.T) {
					inParallel(t, 10, 50, func(ctx context.Context, _ int) error { return exit(ctx) })
					g.WaitIdle(t)
				})
			}
			spreadEvenly(t, g, ups, "/v1/answer", 900, 250, 350)
			g.WaitIdle(t)
		})
	}
}

// A reload keeps the counts of calls under way: what comes after it goes where
// there is room.
func TestL7_CountsCarryOverReloads(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	ups := harness.NewUpstreams(t, 2, gate.Then(harness.Answer))
	cfg := harness.Config{Flexinfer: model("m", to(ups...), "routing least-loaded") + model("first", to(ups[0]))}
	g := harness.Start(t, cfg)
	var done sync.WaitGroup
	hold := func(model string, u *harness.Upstream, n int) {
		before := u.Inflight()
		for range n {
			done.Go(func() {
				if res, err := g.Try(t.Context(), http.MethodPost, "/v1/completions", bare(model)); err != nil || res.Status != http.StatusOK {
					t.Errorf("a call over a reload: %v %v", res, err)
				}
			})
		}
		harness.Eventually(t, harness.Patience, "the calls are held", func() bool { return u.Inflight() == before+n })
	}
	hold("first", ups[0], 3)
	for range 3 {
		g.Reload(t, cfg)
		g.Reload(t, harness.Config{Flexinfer: cfg.Flexinfer + "retries 1"})
	}
	if got := g.Inflight(t); got[ups[0].Addr] != 3 || got[ups[1].Addr] != 0 {
		t.Errorf("after the reloads the calls in flight are %v", got)
	}
	hold("m", ups[1], 3)
	g.Reload(t, cfg)
	gate.Open()
	done.Wait()
	g.WaitIdle(t)
}

// A call that really runs longer than the ledger's ttl stays counted.
func TestLongCallStaysCounted(t *testing.T) {
	t.Parallel()
	const ttl = 400 * time.Millisecond
	gate := harness.NewGate(t)
	up := harness.NewUpstream(t, gate.Then(harness.Answer))
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + fmt.Sprintf("ledger {\n\tbucket 100ms\n\tttl %s\n}\nreservation_ttl 100ms", ttl)})
	done := make(chan *harness.Response, 1)
	go func() {
		res, _ := g.Try(t.Context(), http.MethodPost, "/v1/completions", bare("m"))
		done <- res
	}()
	harness.Eventually(t, harness.Patience, "the call is held", func() bool { return up.Inflight() == 1 })
	if harness.Within(5*ttl, func() bool { return g.Inflight(t)[up.Addr] != 1 }) {
		t.Errorf("the call in flight is counted as %v", g.Inflight(t))
	}
	if e := g.Logs().Entries("dropped in-flight calls that were never released"); len(e) != 0 {
		t.Errorf("the ledger took a call that runs for a leak: %v", e)
	}
	gate.Open()
	if res := harness.Receive(t, done, "the answer"); res == nil || res.Status != http.StatusOK {
		t.Errorf("the answer is %v", res)
	}
	g.WaitIdle(t)
}

// h2cTransport speaks HTTP/2 without TLS.
func h2cTransport(t *testing.T) *http.Transport {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}
