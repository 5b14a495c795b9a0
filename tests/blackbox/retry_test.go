package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A busy endpoint's call goes to another, and the client sees none of it.
func TestRetryOnStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 503} {
		busy := harness.NewUpstream(t, func(x *harness.Exchange) { x.Respond(status, "application/json", `{"error":"busy"}`) })
		up := harness.NewUpstream(t, nil)
		g := serve(t, "round-robin", busy, up)
		for i := range 4 {
			body := chat(fmt.Sprint(strings.Repeat("x", i*100_000), i))
			res := g.Chat(t, body)
			if got := upstreamOf(t, res); got != up.Addr {
				t.Errorf("the answer is of %s", got)
			}
			if got := up.Last(t); got.Sum != sum(body) {
				t.Errorf("the other upstream got other %d bytes of %d", got.Length, len(body))
			}
		}
		if n := g.Metrics(t).Value("flexinfer_proxy_upstream_retries_total", "model", "m", "reason", fmt.Sprint("http_", status)); n < 1 {
			t.Errorf("upstream_retries_total is %v", n)
		}
		g.WaitIdle(t)
	}
}

// When tries end the last upstream's own answer passes through whole, and an
// earlier one where the later tries give none.
func TestLastRealAnswerPasses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(`{"error":"busy"}`, 10_000)
	busy := func(name string) func(x *harness.Exchange) {
		return func(x *harness.Exchange) {
			x.Write(fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 7\r\nX-From: %s\r\nContent-Length: %d\r\n\r\n%s", name, len(long), long))
		}
	}
	a, b := harness.NewUpstream(t, busy("a")), harness.NewUpstream(t, busy("b"))
	check := func(res *harness.Response, from ...string) {
		t.Helper()
		if res.Status != http.StatusServiceUnavailable || string(res.Body) != long || res.Header.Get("Retry-After") != "7" {
			t.Errorf("the client got %s with %v", res, res.Header)
		}
		if got := res.Header.Get("X-From"); !strings.Contains(strings.Join(from, " "), got) {
			t.Errorf("the answer is that of %q, want one of %v", got, from)
		}
	}
	g := serve(t, "round-robin", a, b)
	check(g.Post(t, "/v1/chat/completions", chat("hi")), "a", "b")
	if a.Served()+b.Served() != 2 {
		t.Errorf("the upstreams got %d and %d requests, want one each", a.Served(), b.Served())
	}
	g.WaitIdle(t)

	// The endpoint that is left cannot be reached.
	g = harness.Start(t, harness.Config{Flexinfer: model("m", to(a), "to "+harness.FreeAddr(t), "routing round-robin")})
	for range 2 {
		check(g.Post(t, "/v1/chat/completions", chat("hi")), "a")
	}
	g.WaitIdle(t)

	// There is no other: nothing is repeated.
	a.Forget()
	g = serve(t, "round-robin", a)
	check(g.Post(t, "/v1/chat/completions", chat("hi")), "a")
	if n := a.Served(); n != 1 {
		t.Errorf("the one busy upstream got %d requests", n)
	}
	g.WaitIdle(t)
}

// An engine that dies of a prompt does not take the next one with it: a lost
// connection repeats nothing that may have begun, unless it is asked for.
func TestPoisonPromptIsNotReplayed(t *testing.T) {
	t.Parallel()
	deaths := map[string]func(x *harness.Exchange){
		"reset":           func(x *harness.Exchange) { <-time.After(150 * time.Millisecond); x.Reset() },
		"closed":          func(x *harness.Exchange) { <-time.After(150 * time.Millisecond); x.Close() },
		"closed at once":  func(x *harness.Exchange) { x.Close() }, // on a new connection
		"half a head":     func(x *harness.Exchange) { x.Write("HTTP/1.1 200 OK\r\nContent-"); x.Close() },
		"no HTTP at all":  func(x *harness.Exchange) { x.Write("boo\r\n\r\n"); x.Close() },
		"answer cut off":  func(x *harness.Exchange) { x.Write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"); x.Close() },
		"answer of a 500": func(x *harness.Exchange) { x.Respond(500, "text/plain", "died") },
	}
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ups := harness.NewUpstreams(t, 3, die)
			g := serve(t, "round-robin", ups...)
			res, err := g.Try(t.Context(), http.MethodPost, "/v1/chat/completions", chat("poison"))
			if err == nil && res.Status < 500 {
				t.Errorf("the client got %s", res)
			}
			if n := served(ups); n[0]+n[1]+n[2] != 1 {
				t.Errorf("the prompt went to %v", n)
			}
			g.WaitIdle(t)
		})
	}

	ups := harness.NewUpstreams(t, 3, deaths["reset"])
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(ups...), "routing round-robin") + "retries 2 {\n\ton reset\n}"})
	if res := g.Post(t, "/v1/chat/completions", chat("poison")); res.Status != http.StatusBadGateway {
		t.Errorf("the client got %s", res)
	}
	if n := served(ups); n[0] != 1 || n[1] != 1 || n[2] != 1 {
		t.Errorf("with retries on reset the prompt went to %v, want each once", n)
	}
	g.WaitIdle(t)
}

// An engine may close a connection that was idle at the very moment at which a
// request goes out on it. No client ever sees that.
func TestKeepAliveRaceIsNotSeen(t *testing.T) {
	t.Parallel()
	// Each connection serves one request and is lost in the next.
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		if x.Nth > 1 {
			x.Reset()
			return
		}
		harness.Answer(x)
	})
	g := serve(t, "round-robin", up)
	for i := range 30 {
		for _, size := range []int{10, 10_000, 300_000} {
			body := chat(strings.Repeat("x", size))
			if res := g.Post(t, "/v1/chat/completions", body); res.Status != http.StatusOK {
				t.Fatalf("request %d of %d bytes: %s", i, size, res)
			}
			if got := up.Last(t); got.Sum != sum(body) {
				t.Fatalf("the upstream got other %d bytes of %d", got.Length, len(body))
			}
		}
	}
	m := g.Metrics(t)
	if got := m.Value("flexinfer_proxy_upstream_retries_total", "model", "m"); got == 0 {
		t.Error("nothing was repeated: the race did not happen")
	}
	g.WaitIdle(t)
}

// A connection that the engine says it closes soon is not used after that.
func TestKeepAliveOfTheEngine(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.Write("HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\n{}")
	})
	g := serve(t, "round-robin", up)
	g.Chat(t, chat("one"))
	g.Chat(t, chat("two"))
	if n := up.Connections(); n != 1 {
		t.Errorf("two calls took %d connections", n)
	}
	<-time.After(900 * time.Millisecond) // longer than half of what the engine says, and shorter than all of it
	g.Chat(t, chat("three"))
	if n := up.Connections(); n != 2 {
		t.Errorf("after the pause there are %d connections, want a second one", n)
	}
}

// T4: an outage is not multiplied: distinct upstreams, three attempts at most,
// and a budget for all calls together.
func TestT4_OutageIsNotMultiplied(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, func(x *harness.Exchange) { x.Respond(503, "text/plain", "busy") })
	g := serve(t, "least-loaded", ups...)
	const calls = 200
	inParallel(t, 50, calls, func(ctx context.Context, i int) error {
		res, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", chat(fmt.Sprint(i)))
		if err != nil {
			return err
		}
		if res.Status != http.StatusServiceUnavailable {
			return fmt.Errorf("got %s", res)
		}
		return nil
	})
	n := served(ups)
	if total := n[0] + n[1] + n[2]; total > calls+calls/5+10 {
		t.Errorf("%d calls made %d attempts", calls, total)
	}
	g.WaitIdle(t)
}

// S12: an upstream that refuses an upload answers before it has read it, and
// closes. The client gets that answer.
func TestS12_EarlyAnswerToAnUpload(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("too much ", 6000)
	up := harness.NewRawUpstream(t, func(conn *harness.RawConn) {
		conn.ReadHead()
		conn.Write(fmt.Sprintf("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(long), long))
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "to "+up)})
	body := chat(strings.Repeat("x", 8<<20))
	for i := range 20 {
		if res := g.Post(t, "/v1/chat/completions", body); res.Status != http.StatusRequestEntityTooLarge || string(res.Body) != long {
			t.Fatalf("request %d: the client got %s", i, res)
		}
	}
	g.WaitIdle(t)
}
