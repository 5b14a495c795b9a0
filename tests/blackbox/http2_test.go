package blackbox

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// answerH2 answers the requests of a connection, as long as it lives.
func answerH2(c *harness.H2Conn) {
	for stream, body := c.Request(); stream != 0; stream, body = c.Request() {
		c.Respond(stream, fmt.Sprintf(`{"length":%d}`, len(body)))
	}
}

// What an HTTP/2 engine says it has not looked at goes to another one, or to
// the same again where there is no other, with the whole body: whether the
// stream is refused or the connection goes away, before the body has come or
// after.
func TestHTTP2RefusalsAreRetried(t *testing.T) {
	t.Parallel()
	// Each refuses its first request.
	refusals := map[string]func(c *harness.H2Conn){
		"REFUSED_STREAM": func(c *harness.H2Conn) {
			stream, _ := c.Request()
			c.Reset(stream, http2.ErrCodeRefusedStream)
		},
		"REFUSED_STREAM in the upload": func(c *harness.H2Conn) {
			c.Reset(c.Begun(), http2.ErrCodeRefusedStream)
		},
		"GOAWAY": func(c *harness.H2Conn) {
			_, _ = c.Request()
			_ = c.WriteGoAway(0, http2.ErrCodeNo, nil)
		},
		"GOAWAY in the upload": func(c *harness.H2Conn) {
			_ = c.Begun()
			_ = c.WriteGoAway(0, http2.ErrCodeNo, nil)
		},
	}
	var names []string
	var models string
	var refused atomic.Int64
	for name, refuse := range refusals {
		for _, other := range []bool{true, false} {
			for _, size := range []string{"small", "large"} {
				var began atomic.Int64
				lines := "to h2c://" + harness.NewH2Upstream(t, func(c *harness.H2Conn) {
					if began.Add(1) == 1 {
						refuse(c)
						refused.Add(1)
					}
					answerH2(c)
				})
				if other {
					lines += " h2c://" + harness.NewH2Upstream(t, answerH2)
				}
				name := fmt.Sprintf("%s, another upstream %v, %s", name, other, size)
				names = append(names, name)
				models += model(quote(name), lines, "routing round-robin")
			}
		}
	}
	g := harness.Start(t, harness.Config{Flexinfer: models})
	for _, name := range names {
		size := 100
		if strings.HasSuffix(name, "large") {
			size = 300_000
		}
		body := chatOf(name, strings.Repeat("x", size))
		for range 3 {
			res := g.Post(t, "/v1/chat/completions", body)
			if res.Status != http.StatusOK || string(res.Body) != fmt.Sprintf(`{"length":%d}`, len(body)) {
				t.Errorf("%s: the answer to a body of %d bytes is %s", name, len(body), res)
			}
		}
		if n := g.Metrics(t).Value("flexinfer_proxy_upstream_retries_total", "model", name); n > 1 {
			t.Errorf("%s: upstream_retries_total is %v", name, n)
		}
	}
	if n := refused.Load(); n != int64(len(names)) {
		t.Errorf("%d of %d first requests were refused", n, len(names))
	}
	g.WaitIdle(t)
}

// An engine that goes away finishes what it has begun, and gets nothing new on
// that connection.
func TestHTTP2GoAwayLetsStreamsEnd(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	goOn := make(chan struct{})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "to h2c://"+harness.NewH2Upstream(t, func(c *harness.H2Conn) {
		if connections.Add(1) > 1 {
			answerH2(c)
			return
		}
		stream, _ := c.Request()
		c.Start(stream, http.StatusOK, "text/event-stream")
		_ = c.WriteData(stream, false, []byte("data: first\n\n"))
		_ = c.WriteGoAway(stream, http2.ErrCodeNo, nil)
		select {
		case <-goOn:
		case <-t.Context().Done():
		}
		_ = c.WriteData(stream, true, []byte("data: last\n\n"))
		answerH2(c)
	}))})
	res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", streaming)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.ReadFull(res.Body, make([]byte, len("data: first\n\n"))); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		g.Chat(t, chat("meanwhile"))
	}
	close(goOn)
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "data: last\n\n" {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("there were %d connections, want 2", n)
	}
	g.WaitIdle(t)
}

// What an HTTP/2 engine has begun is not repeated, and its death in an answer
// is no clean end.
func TestHTTP2ResetsAreNotRetried(t *testing.T) {
	t.Parallel()
	deaths := map[string]struct {
		die    func(c *harness.H2Conn, stream uint32)
		begins bool
	}{
		"INTERNAL_ERROR": {func(c *harness.H2Conn, stream uint32) {
			c.Reset(stream, http2.ErrCodeInternal)
		}, false},
		"the connection is closed": {func(*harness.H2Conn, uint32) {}, false},
		"GOAWAY that includes it": {func(c *harness.H2Conn, stream uint32) {
			_ = c.WriteGoAway(stream, http2.ErrCodeNo, nil)
		}, false},
		"reset in the answer": {func(c *harness.H2Conn, stream uint32) {
			c.Start(stream, http.StatusOK, "text/event-stream")
			_ = c.WriteData(stream, false, []byte("data: first\n\n"))
			c.Reset(stream, http2.ErrCodeInternal)
		}, true},
		"REFUSED_STREAM in the answer": {func(c *harness.H2Conn, stream uint32) {
			c.Start(stream, http.StatusOK, "text/event-stream")
			_ = c.WriteData(stream, false, []byte("data: first\n\n"))
			c.Reset(stream, http2.ErrCodeRefusedStream)
		}, true},
		"closed in the answer": {func(c *harness.H2Conn, stream uint32) {
			c.Start(stream, http.StatusOK, "text/event-stream")
			_ = c.WriteData(stream, false, []byte("data: first\n\n"))
		}, true},
	}
	got := make(map[string]*atomic.Int64)
	var models string
	for name, tt := range deaths {
		n := new(atomic.Int64)
		got[name] = n
		serve := func(c *harness.H2Conn) {
			if stream, _ := c.Request(); stream != 0 {
				n.Add(1)
				<-time.After(200 * time.Millisecond) // as an engine that has begun
				tt.die(c, stream)
			}
		}
		models += model(quote(name), "to h2c://"+harness.NewH2Upstream(t, serve)+" h2c://"+harness.NewH2Upstream(t, serve))
	}
	g := harness.Start(t, harness.Config{Flexinfer: models})
	for name, tt := range deaths {
		res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":`+quote(name)+`,"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		switch {
		case tt.begins && (err == nil || res.StatusCode != http.StatusOK):
			t.Errorf("%s: the answer is %d and ended cleanly with %q", name, res.StatusCode, body)
		case !tt.begins && res.StatusCode != http.StatusBadGateway:
			t.Errorf("%s: the answer is %d %q", name, res.StatusCode, body)
		}
		if n := got[name].Load(); n != 1 {
			t.Errorf("%s: the request was sent %d times", name, n)
		}
	}
	g.WaitIdle(t)
}
