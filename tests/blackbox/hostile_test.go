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

// allHealthy fails the test if an endpoint is thought ill of.
func allHealthy(t *testing.T, g *harness.Gateway, why string) {
	t.Helper()
	if all := string(g.AdminGet(t, "/flexinfer/models").Body); strings.Contains(all, `"healthy":false`) {
		t.Errorf("%s: %s", why, all)
	}
}

// T2: what cannot be sent for the sake of the client's own bytes is no
// endpoint's failure, and no other is tried.
func TestT2_RequestsThatCannotBeSent(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, nil)
	g := serve(t, "round-robin", ups...)
	body := chat("hi")
	for _, name := range []string{"a b", "\xc3\xa4"} {
		for range 8 {
			conn := g.Dial(t)
			conn.Send(t, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nTrailer: %s\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", name, len(body), body))
			if res := conn.Response(t); res.Status != http.StatusOK && res.Status != http.StatusBadRequest {
				t.Fatalf("a trailer called %q: %s", name, res)
			}
		}
	}
	allHealthy(t, g, "after trailers with bad names")
	if n := g.Metrics(t).Value("flexinfer_proxy_upstream_retries_total", "model", "m"); n != 0 {
		t.Errorf("%v retries", n)
	}
	g.WaitIdle(t)

	// HTTP/2 has no upgrades.
	h2c := newH2CUpstream(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) }))
	g = harness.Start(t, harness.Config{Flexinfer: model("m", "to h2c://"+h2c)})
	for range 8 {
		res := g.Post(t, "/v1/chat/completions", body, "Connection", "Upgrade", "Upgrade", "foo")
		if res.Status >= 500 {
			t.Fatalf("an upgrade towards h2c: %s", res)
		}
	}
	allHealthy(t, g, "after upgrades")
	if res := g.Post(t, "/v1/chat/completions", body); res.Status != http.StatusOK {
		t.Errorf("afterwards: %s", res)
	}
	g.WaitIdle(t)
}

// newH2CUpstream serves HTTP/2 without TLS and returns its address.
func newH2CUpstream(t *testing.T, h http.Handler) string {
	t.Helper()
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	addr := harness.FreeAddr(t)
	srv := &http.Server{Addr: addr, Protocols: p, Handler: h, ReadHeaderTimeout: harness.Patience}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.ListenAndServe()
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	harness.Listening(t, addr)
	return addr
}

// S9: the limits are those of what flows, whatever its type is called.
func TestS9_StreamsOfOtherTypes(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"audio/mpeg", "text/plain", "application/json"} {
		t.Run(contentType, func(t *testing.T) {
			t.Parallel()
			up := harness.NewUpstream(t, func(x *harness.Exchange) {
				x.StartStream(contentType)
				for range 15 {
					x.Chunk("data: {}\n\n")
					<-time.After(100 * time.Millisecond)
				}
				x.EndStream()
			})
			g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "timeouts {\n\tfirst_byte 700ms\n\tgap 500ms\n}"})
			if res := g.Post(t, "/v1/audio/speech", streaming); len(res.Body) != 150 {
				t.Errorf("%d bytes came: %s", len(res.Body), res)
			}
		})
	}
}

// S9: a stream that nobody announced is watched as well.
func TestS9_StreamsNobodyAskedFor(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.StartStream("text/event-stream")
		x.Chunk("data: {}\n\n")
		<-x.Gone()
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "timeouts {\n\tgap 400ms\n}"})
	form := "--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--B\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--B--\r\n"
	for path, request := range map[string][2]string{
		"/v1/audio/transcriptions":                 {form, "multipart/form-data; boundary=B"},
		"/v1/chat/completions":                     {`{"model":"m","stream":"true"}`, "application/json"},
		"/model/m/v1/responses/resp_1?stream=true": {"", ""},
	} {
		method := http.MethodPost
		if request[0] == "" {
			method = http.MethodGet
		}
		if res, err := g.Try(t.Context(), method, path, request[0], "Content-Type", request[1]); err == nil {
			t.Errorf("%s ended cleanly: %s", path, res)
		}
	}
	g.WaitIdle(t)
}

// A held answer is the client's, whole, however long the attempt after it took.
func TestHeldAnswerIsWhole(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("b", 300_000)
	busy := harness.NewUpstream(t, func(x *harness.Exchange) { x.Respond(503, "application/json", long) })
	hang := harness.NewUpstream(t, func(x *harness.Exchange) { <-x.Gone() })
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(busy, hang), "routing round-robin") + "timeouts {\n\tfirst_byte 300ms\n}"})
	held := 0
	for range 2 { // each of the two comes first once
		res, err := g.Try(t.Context(), http.MethodPost, "/v1/chat/completions", streaming)
		switch {
		case err != nil:
			t.Error(err)
		case res.Status == http.StatusServiceUnavailable && string(res.Body) == long:
			held++
		case res.Status != http.StatusGatewayTimeout:
			t.Errorf("the answer is %s", res)
		}
	}
	if held == 0 {
		t.Error("no answer was held")
	}
	g.WaitIdle(t)
}

// All idle connections to an endpoint may be dead at once, as behind a
// balancer that was switched: no client sees that.
func TestManyDeadConnectionsAreNotSeen(t *testing.T) {
	t.Parallel()
	const conns = 10
	var fresh atomic.Int64
	gate := make(chan struct{})
	up := harness.NewRawUpstream(t, func(c *harness.RawConn) {
		buf := make([]byte, 1<<16)
		if _, err := c.Read(buf); err != nil {
			return
		}
		if fresh.Add(1) <= conns {
			<-gate
		}
		c.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = c.Read(buf) // the next request on it is lost
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "to "+up)})
	inParallel(t, conns, conns, func(ctx context.Context, i int) error {
		if i == conns-1 {
			go func() {
				harness.Within(harness.Patience, func() bool { return fresh.Load() == conns })
				close(gate)
			}()
		}
		_, err := g.TryFresh(ctx, http.MethodPost, "/v1/chat/completions", chat("x"))
		return err
	})
	for i := range 5 {
		if res := g.Post(t, "/v1/chat/completions", chat("x")); res.Status != http.StatusOK {
			t.Errorf("request %d: %s", i, res)
		}
	}
	g.WaitIdle(t)
}

// Z1: nor can heads that come before the answer be forged, nor are an engine's
// own trailers lost.
func TestZ1_InformationalHeadsAndTrailers(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.Write("HTTP/1.1 103 Early Hints\r\nX-Flexinfer-Prompt-Tokens: 666\r\nX-Request-Id: forged\r\nLink: </a>\r\n\r\n")
		x.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n")
		x.Chunk(`{"choices":[]}`)
		x.End()
		x.Write("0\r\nX-T: v\r\n\r\n")
	})
	g := serve(t, "prefix", up)
	conn := g.Dial(t)
	body := chat("hi")
	conn.Send(t, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	var early []string
	for {
		line := conn.Line(t)
		if line == "\r\n" {
			break
		}
		early = append(early, strings.TrimSpace(line))
	}
	head := strings.Join(early, "\n")
	if !strings.Contains(head, "103") || !strings.Contains(head, "Link") || strings.Contains(head, "666") || strings.Contains(head, "forged") {
		t.Errorf("the early head is %q", head)
	}
	res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	buf := make([]byte, 100)
	for err == nil {
		_, err = res.Body.Read(buf)
	}
	if got := res.Trailer.Get("X-T"); got != "v" {
		t.Errorf("the trailer is %q", got)
	}
}

// A 503 is no failure, unless the configuration says that it is.
func TestUnhealthyStatusGoesBeforeBusy(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{false, true} {
		bad := harness.NewUpstream(t, func(x *harness.Exchange) { x.Respond(503, "text/plain", "no") })
		up := harness.NewUpstream(t, nil)
		health := "health {\n\teject_after 2\n"
		if named {
			health += "\tunhealthy_status 503\n"
		}
		g := harness.Start(t, harness.Config{Flexinfer: model("m", to(bad, up), "routing round-robin") + "retries 0\n" + health + "}"})
		ejected := harness.Within(3*time.Second, func() bool {
			g.Post(t, "/v1/chat/completions", chat("hi"))
			return g.Metrics(t).Value("flexinfer_proxy_upstream_healthy", "model", "m", "target", bad.Addr) == 0
		})
		if ejected != named {
			t.Errorf("503 named %v: ejected %v", named, ejected)
		}
	}
}
