package blackbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// L1: the slot of a call is given back on every way out that retries, timeouts,
// edits and compressed bodies have added.
func TestL1_SlotsAreGivenBackOnEveryOtherExit(t *testing.T) {
	t.Parallel()
	const half = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
	large := `{"choices":[],"x":"` + strings.Repeat("x", 1<<20) + `"}`
	ups := harness.NewUpstreams(t, 3, func(x *harness.Exchange) {
		switch x.Header.Get("X-Do") {
		case "hang":
			<-x.Gone()
		case "half":
			x.Write(half)
			<-x.Gone()
		case "break":
			x.Write(half)
			x.Close()
		case "large":
			x.Respond(200, "application/json", large)
		case "stop":
			x.StartStream("text/event-stream")
			x.Chunk("data: {}\n\n")
			<-x.Gone()
		case "stream":
			x.StartStream("text/event-stream")
			x.Chunk("data: {\"model\":\"m\"}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n")
			x.EndStream()
		case "204":
			x.Write("HTTP/1.1 204 No Content\r\n\r\n")
		default:
			harness.Answer(x)
		}
	})
	busy := harness.NewUpstreams(t, 2, status(503))
	dead := harness.FreeAddr(t)
	const often = "retries 2 {\n\t\tbudget 100% 10000\n\t}"
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(ups...), "alias another", "routing least-loaded", "context_window 1024") +
		model("one-busy", to(busy[0], ups[0]), "routing round-robin", often) +
		model("all-busy", to(busy...), "routing round-robin", often) +
		model("busy-or-dead", "to "+busy[0].Addr+" "+dead, "routing round-robin", often) +
		model("off", "to "+dead, "service "+ups[0].Addr) +
		model("hurries", to(ups...), "timeouts {\n\t\tfirst_byte 100ms\n\t}") +
		"max_body 64KiB\nusage_metrics always\nvalidate_requests on\ntimeouts {\n\tgap 100ms\n}\n" + health("eject_after 10000")})

	const path, other = "/v1/chat/completions", "/v1/other"
	plain := chat("hi")
	stream := strings.TrimSuffix(chatOf("another", "hi"), "}") + `,"stream":true,"max_tokens":9000}`
	hurried := strings.Replace(stream, "another", "hurries", 1)
	do := func(want int, path, body string, headers ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			res, err := g.Try(ctx, http.MethodPost, path, body, headers...)
			switch {
			case want == 0 && err == nil:
				return fmt.Errorf("the answer is %s, want it broken off", res)
			case want != 0 && (err != nil || res.Status != want):
				return fmt.Errorf("the answer is %s (%w), want %d", res, err, want)
			}
			return nil
		}
	}
	leave := func(path, body string, headers ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			if res, err := g.TryFresh(ctx, http.MethodPost, path, body, headers...); err == nil {
				return fmt.Errorf("the answer is %s", res)
			}
			return nil
		}
	}
	bomb := encode(t, "gzip", strings.Repeat(" ", 10<<20))
	exits := map[string]func(context.Context) error{
		"another is tried":                         do(200, other, bare("one-busy")),
		"the last answer passes":                   do(503, other, bare("all-busy")),
		"an earlier answer passes":                 do(503, other, bare("busy-or-dead")),
		"the service is tried":                     do(200, other, bare("off")),
		"no first byte":                            do(504, path, hurried, "X-Do", "hang"),
		"no further byte":                          do(0, path, stream, "X-Do", "stop"),
		"a stream that is edited":                  do(200, path, stream, "X-Do", "stream", "Te", "trailers"),
		"an answer that breaks off while read":     do(502, path, plain, "X-Do", "break"),
		"an answer that is too large to read":      do(200, path, plain, "X-Do", "large"),
		"an answer without a body":                 do(204, path, plain, "X-Do", "204"),
		"a client that leaves while it is read":    leave(path, plain, "X-Do", "half"),
		"a client that leaves in an edited stream": leave(path, stream, "X-Do", "stop"),
		"a client that leaves for the hit rate":    leave(path, plain, "X-Do", "hang", "X-Flexinfer-Want-Prefix-Hit", "1"),
		"compressed":                               do(200, path, encode(t, "zstd", plain), "Content-Encoding", "zstd"),
		"compressed, and it hangs":                 do(504, path, encode(t, "gzip", hurried), "Content-Encoding", "gzip", "X-Do", "hang"),
		"broken compression":                       do(400, path, plain, "Content-Encoding", "gzip"),
		"unknown compression":                      do(415, path, plain, "Content-Encoding", "snappy"),
		"a bomb":                                   do(413, path, bomb, "Content-Encoding", "gzip"),
		"a bomb for a known model":                 do(413, path, bomb, "Content-Encoding", "gzip", "X-Model-ID", "m"),
		"a shape that is refused":                  do(400, path, bare("m")),
		"two models":                               do(400, path, plain, "X-Model-ID", "m", "X-Model-ID", "off"),
		"an unknown response":                      func(ctx context.Context) error { _, err := g.Try(ctx, "GET", "/v1/responses/resp_1", ""); return err },
		"an expectation that is refused": func(ctx context.Context) error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", g.Addr)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nX-Model-ID: nobody\r\nContent-Length: 9\r\n\r\n", path)
			head := make([]byte, 12)
			if _, err := conn.Read(head); err != nil || string(head) != "HTTP/1.1 404" {
				return errors.Join(err, fmt.Errorf("the answer is %q", head))
			}
			return nil
		},
	}
	for name, exit := range exits {
		t.Run(name, func(t *testing.T) {
			inParallel(t, 25, 50, func(ctx context.Context, _ int) error { return exit(ctx) })
			g.WaitIdle(t)
		})
	}
	spreadEvenly(t, g, ups, other, 300, 70, 130)
}

// T4, T7: a machine that is off holds up no more calls than it takes to find
// out, each for as long as dialling may take; those for others go on meanwhile.
func TestT7_BlackholeIsFoundOut(t *testing.T) {
	t.Parallel()
	const dial = 500 * time.Millisecond
	hole, up := harness.Blackhole(t), harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "to "+hole+" "+up.Addr, "routing round-robin", "health {\n\t\teject_for 1m\n\t}") +
		fmt.Sprintf("timeouts {\n\tdial %s\n}", dial)})
	send := func(ctx context.Context, _ int) error {
		begun := time.Now()
		res, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", chat("hi"))
		if err != nil || res.Status != http.StatusOK {
			return fmt.Errorf("%v %w", res, err)
		}
		if took := time.Since(begun); took > dial+3*time.Second {
			return fmt.Errorf("a call took %s", took)
		}
		return nil
	}
	waited := func() float64 {
		return g.Metrics(t).Value("flexinfer_proxy_upstream_retries_total", "model", "m", "reason", "timeout")
	}
	inParallel(t, 4, 60, send)
	// Those that were under way when the third failed.
	first := waited()
	if first < 1 || first > 8 {
		t.Errorf("%v of 60 calls waited for a machine that is off", first)
	}
	inParallel(t, 4, 60, send)
	if second := waited() - first; second != 0 {
		t.Errorf("%v calls waited for a machine that is known to be off", second)
	}
	g.WaitIdle(t)
}
