package blackbox

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Each event passes at once, shown causally: the upstream sends the head, and
// then each event, only when the client has what went before it in its hands.
// Whatever holds something back makes the test stand still.
func TestS6_StreamIsNotHeldBack(t *testing.T) {
	t.Parallel()
	const events = 20
	sites := map[string]string{"plain": "flexinfer", "encode in front": "encode\nflexinfer"}
	for siteName, site := range sites {
		for _, contentType := range []string{"text/event-stream", "text/event-stream; charset=utf-8", "application/x-ndjson"} {
			for _, encoding := range []string{"", "gzip"} {
				t.Run(strings.Join([]string{siteName, contentType, encoding}, " "), func(t *testing.T) {
					t.Parallel()
					acknowledged := make(chan struct{})
					// Caddy's encode keeps the head of what is no event stream
					// until it sees the body.
					headWaits := site != "flexinfer" && contentType == "application/x-ndjson"
					up := harness.NewUpstream(t, func(x *harness.Exchange) {
						x.StartStream(contentType)
						for i := range events {
							if i > 0 || !headWaits {
								select {
								case <-acknowledged:
								case <-x.Gone():
									return
								}
							}
							x.Chunk(fmt.Sprintf("data: event %d\n\n", i))
						}
						<-acknowledged
						x.EndStream()
					})
					g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), "routing prefix"), Site: site})
					var headers []string
					if encoding != "" {
						headers = []string{"Accept-Encoding", encoding}
					}
					res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true}`, headers...)
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = res.Body.Close() }()
					if got := res.Header.Get("Content-Type"); got != contentType {
						t.Errorf("the client got the type %q", got)
					}
					body := bufio.NewReader(res.Body)
					for i := range events {
						if i > 0 || !headWaits {
							harness.Send(t, acknowledged, struct{}{}, "the upstream wants to send on")
						}
						if i == 0 && res.Header.Get("Content-Encoding") == "gzip" {
							unzipped, err := gzip.NewReader(res.Body)
							if err != nil {
								t.Fatal(err)
							}
							body = bufio.NewReader(unzipped)
						}
						line, err := body.ReadString('\n')
						if want := fmt.Sprintf("data: event %d\n", i); err != nil || line != want {
							t.Fatalf("the client got %q (%v), want %q", line, err, want)
						}
						if _, err := body.ReadString('\n'); err != nil {
							t.Fatal(err)
						}
					}
					harness.Send(t, acknowledged, struct{}{}, "the upstream wants to end")
					if rest, err := io.ReadAll(body); err != nil || len(rest) != 0 {
						t.Errorf("the stream ended with %q, %v", rest, err)
					}
					g.WaitIdle(t)
				})
			}
		}
	}
}

// S1: the bytes of a stream are the engine's, however they are cut, and what
// they say of usage is counted the same each time.
func TestS1_StreamBytesAndUsage(t *testing.T) {
	t.Parallel()
	stream := ": ping\n\n" +
		"data: {\"choices\":[{\"delta\":{\"content\":\"größer 🦊\"}}]}\n\n" +
		"data:{\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":64}}}\r\n\r\n" +
		": bye\n\ndata: [DONE]\n\n"
	var cut int
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.StartStream("text/event-stream")
		if cut > 0 {
			x.Chunk(stream[:cut])
		}
		x.Chunk(stream[cut:])
		x.EndStream()
	})
	g := serve(t, "prefix", up)
	for cut = range len(stream) {
		res := g.Post(t, "/v1/chat/completions", `{"model":"m","stream":true}`)
		if string(res.Body) != stream {
			t.Fatalf("cut at %d, the client got %q", cut, res.Body)
		}
	}
	n := float64(len(stream))
	m := g.Metrics(t)
	for name, want := range map[string]float64{
		"flexinfer_proxy_completions_total":           n,
		"flexinfer_proxy_prompt_tokens_total":         100 * n,
		"flexinfer_proxy_cached_prompt_tokens_total":  64 * n,
		"flexinfer_proxy_request_prompt_tokens":       n,
		"flexinfer_proxy_request_completion_tokens":   n,
		"flexinfer_proxy_time_to_first_token_seconds": n,
	} {
		if got := m.Value(name, "model", "m"); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := m.Value("flexinfer_proxy_completions_total", "model", "m", "stream", "true"); got != n {
		t.Errorf("completions_total{stream=true} is %v, want %v", got, n)
	}
}

// Whatever an engine says of usage, the client gets it as it was, and the
// gateway lives.
func TestS7_OddUsageValues(t *testing.T) {
	t.Parallel()
	usages := []string{
		`"oops"`, `null`, `[]`, `true`, `{}`, `{"prompt_tokens":"1024"}`, `{"prompt_tokens":-5}`, `{"prompt_tokens":1e400,"completion_tokens":1.5}`,
		`1e400`, `{"prompt_tokens_details":0}`, `{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":"x"}}`, `{"prompt_tokens":99999999999999999999}`,
		strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000), strings.Repeat(`[`, 5000), `{"prompt_tokens":`, `\`, "\x00",
	}
	var answers []string
	for _, usage := range usages {
		answers = append(answers, `{"id":"x","usage":`+usage+`}`)
	}
	answers = append(answers, `not JSON`, `[]`, `null`, `"usage"`, `{"usage"`, `{"usage":`, ``, `{"usage":{"prompt_tokens":3}`, "\xff\xfe")

	var answer string
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		switch {
		case strings.Contains(string(x.Body), `"stream":true`):
			x.StartStream("text/event-stream")
			x.Chunk("data: {\"choices\":[]}\n\ndata: " + answer + "\n\n")
			x.EndStream()
		default:
			x.Respond(http.StatusOK, "application/json", answer)
		}
	})
	g := serve(t, "prefix", up)
	for _, answer = range answers {
		if res := g.Post(t, "/v1/chat/completions", `{"model":"m"}`); res.Status != http.StatusOK || string(res.Body) != answer {
			t.Errorf("answer %.60q: the client got %s", answer, res)
		}
		want := "data: {\"choices\":[]}\n\ndata: " + answer + "\n\n"
		if res := g.Post(t, "/v1/chat/completions", `{"model":"m","stream":true}`); res.Status != http.StatusOK || string(res.Body) != want {
			t.Errorf("stream with %.60q: the client got %s", answer, res)
		}
	}
	up.Handle(func(x *harness.Exchange) { x.Write("HTTP/1.1 204 No Content\r\n\r\n") })
	if res := g.Post(t, "/v1/chat/completions", `{"model":"m"}`); res.Status != http.StatusNoContent || len(res.Body) != 0 {
		t.Errorf("a 204 came as %s", res)
	}
	up.Handle(harness.Answer)
	g.Chat(t, chat("still there?"))
	g.WaitIdle(t)
}

// First byte means the first byte of the body that is no comment: an engine
// that says ": ping" while it thinks has not begun.
func TestTimeToFirstTokenIsThatOfTheBody(t *testing.T) {
	t.Parallel()
	const thinking = 300 * time.Millisecond
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.StartStream("text/event-stream")
		x.Chunk(": ping\n\n")
		<-time.After(thinking) // as long as the prefill takes
		x.Chunk("data: {}\n\n")
		x.EndStream()
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)), AccessLog: true})
	g.Post(t, "/v1/chat/completions", `{"model":"m","stream":true}`)
	e := g.Logs().Wait(t, "handled request", func(e harness.Entry) bool { return e["model"] == "m" })
	if ms, _ := e["ttft_ms"].(float64); ms < 290 || ms > 2000 {
		t.Errorf("ttft_ms is %v after %s of thinking", e["ttft_ms"], thinking)
	}
	if s := g.Metrics(t).Sum("flexinfer_proxy_time_to_first_token_seconds", "model", "m"); s < thinking.Seconds()*0.95 {
		t.Errorf("time_to_first_token_seconds has a sum of %v", s)
	}
}

// An upstream that dies in its answer is never made to look like a clean end.
func TestDeathInTheAnswerIsSeen(t *testing.T) {
	t.Parallel()
	tests := map[string]func(x *harness.Exchange){
		"stream": func(x *harness.Exchange) {
			x.StartStream("text/event-stream")
			x.Chunk("data: {}\n\n")
			x.Reset()
		},
		"stream, closed": func(x *harness.Exchange) {
			x.StartStream("text/event-stream")
			x.Chunk("data: {}\n\n")
			x.Close()
		},
		"body": func(x *harness.Exchange) {
			x.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\":")
			x.Close()
		},
	}
	for name, handle := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := harness.NewUpstream(t, handle)
			g := serve(t, "prefix", up)
			res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true}`)
			if err == nil {
				var got []byte
				got, err = io.ReadAll(res.Body)
				_ = res.Body.Close()
				if bytes.Contains(got, []byte("error")) {
					t.Errorf("the gateway made up an event: %q", got)
				}
			}
			if err == nil {
				t.Error("the answer ended cleanly")
			}
			if n := up.Served(); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
			g.WaitIdle(t)
			if n := g.Metrics(t).Value("flexinfer_proxy_requests_total", "model", "m", "status", "upstream_error"); n != 1 {
				t.Errorf("requests_total{status=upstream_error} is %v", n)
			}
		})
	}
}

// A client that leaves takes its upstream request with it, at once.
func TestClientGoneClosesTheUpstreamRequest(t *testing.T) {
	t.Parallel()
	gone := make(chan time.Time, 1)
	begun := make(chan struct{}, 1)
	phases := map[string]func(x *harness.Exchange){
		"before the head": func(*harness.Exchange) {},
		"after the head":  func(x *harness.Exchange) { x.StartStream("text/event-stream") },
		"in the stream": func(x *harness.Exchange) {
			x.StartStream("text/event-stream")
			x.Chunk("data: {}\n\n")
		},
	}
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	for name, phase := range phases {
		up.Handle(func(x *harness.Exchange) {
			watch := x.Gone()
			phase(x)
			begun <- struct{}{}
			<-watch
			gone <- time.Now()
		})
		conn := g.Dial(t)
		body := `{"model":"m","stream":true}`
		conn.Send(t, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		harness.Receive(t, begun, "the upstream gets the request")
		left := time.Now()
		_ = conn.Close()
		if took := harness.Receive(t, gone, "the upstream request is closed").Sub(left); took > time.Second {
			t.Errorf("%s: the upstream request was closed %s after the client left", name, took)
		}
		g.WaitIdle(t)
	}
	m := g.Metrics(t)
	if n := m.Value("flexinfer_proxy_requests_total", "model", "m", "status", "client_closed"); n != float64(len(phases)) {
		t.Errorf("%v of %d requests count as client_closed: %v", n, len(phases), m.Series("flexinfer_proxy_requests_total", "model", "m"))
	}
	if n := up.Served(); n != len(phases) {
		t.Errorf("the upstream got %d requests", n)
	}
}

// An upgraded connection passes both ways, and is a call under way for as long
// as it lives.
func TestUpgradePasses(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.Write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		x.Echo()
	})
	g := serve(t, "round-robin", up)
	conn := g.Dial(t)
	conn.Send(t, "GET /model/m/v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if res := conn.Head(t); res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the answer is %s", res.Status)
	}
	for _, word := range []string{"ping\n", "pong\n"} {
		conn.Send(t, word)
		if got := conn.Line(t); got != word {
			t.Errorf("sent %q, got %q", word, got)
		}
	}
	if n := g.Inflight(t)[up.Addr]; n != 1 {
		t.Errorf("the upgraded connection counts as %d calls in flight", n)
	}
	_ = conn.Close()
	g.WaitIdle(t)
}

// A stream that ends long after its last event still ends cleanly: the deadline
// that the server set for that event does not cut off the end.
func TestStreamEndsCleanlyAfterAPause(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.StartStream("text/event-stream")
		x.Chunk("data: {}\n\n")
		<-time.After(time.Second) // more than write_idle
		x.EndStream()
	})
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", to(up)), Global: "servers {\n\ttimeouts {\n\t\twrite_idle 300ms\n\t}\n}",
	})
	res := g.Post(t, "/v1/chat/completions", `{"model":"m","stream":true}`)
	if string(res.Body) != "data: {}\n\n" {
		t.Errorf("the client got %s", res)
	}
}
