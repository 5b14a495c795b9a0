package blackbox

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A chat and a stream pass over each version of HTTP, byte by byte, with a body
// of any size.
func TestChatOverEveryProtocol(t *testing.T) {
	t.Parallel()
	const stream = "data: {\"choices\":[{\"delta\":{\"content\":\"größer\"}}]}\n\ndata: [DONE]\n\n"
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		if !strings.Contains(string(x.Body), `"stream":true`) {
			harness.Answer(x)
			return
		}
		x.StartStream("text/event-stream")
		x.Chunk(stream)
		x.EndStream()
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), "routing prefix"), TLS: true})
	for _, protocol := range harness.Protocols {
		t.Run(protocol, func(t *testing.T) {
			client, _ := g.NewProtocolClient(t, protocol)
			post := func(body string) *harness.Response {
				t.Helper()
				req, err := g.NewRequest(t.Context(), http.MethodPost, "/v1/chat/completions", body, harness.Debug...)
				if err != nil {
					t.Fatal(err)
				}
				res, err := harness.DoWith(client, req)
				if err != nil || res.Status != http.StatusOK {
					t.Fatalf("a chat: %v %v", res, err)
				}
				return res
			}
			for _, size := range []int{1, 2 << 10, 200 << 10, 5 << 20} {
				body := chat(strings.Repeat("x", size))
				if got := upstreamOf(t, post(body)); got != up.Addr {
					t.Errorf("the answer is from %q", got)
				}
				if got := up.Last(t); got.Sum != sum(body) || got.Header.Get("Content-Length") != fmt.Sprint(len(body)) {
					t.Errorf("of %d bytes the engine got %d, Content-Length %s", len(body), got.Length, got.Header.Get("Content-Length"))
				}
			}
			res := post(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`)
			if string(res.Body) != stream {
				t.Errorf("the stream is %q", res.Body)
			}
			if route := res.Route(); route["target"] != up.Addr || route["strategy"] != "prefix" {
				t.Errorf("the stream was routed by %v", route)
			}
		})
	}
	g.WaitIdle(t)
}

// Over each version of HTTP, and compressed by Caddy on the way, the engine's
// next event follows only when the client has the one before in its hands.
func TestS6_StreamIsNotHeldBackOverAnyProtocol(t *testing.T) {
	t.Parallel()
	const events = 30
	for _, protocol := range harness.Protocols {
		for _, encoding := range []string{"", "gzip", "zstd"} {
			for _, trailers := range []string{"", "trailers"} {
				t.Run(strings.Join([]string{protocol, encoding, trailers}, " "), func(t *testing.T) {
					t.Parallel()
					acknowledged := make(chan struct{})
					up := harness.NewUpstream(t, func(x *harness.Exchange) {
						gone := x.Gone()
						x.StartStream("text/event-stream")
						for i := range events {
							select {
							case <-acknowledged:
							case <-gone:
								return
							}
							x.Chunk(event(i))
						}
						x.EndStream()
					})
					site := "flexinfer"
					if encoding != "" {
						site = "encode gzip zstd\nflexinfer"
					}
					g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), "routing prefix"), Site: site, TLS: true})
					client, _ := g.NewProtocolClient(t, protocol)
					req, err := g.NewRequest(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true}`)
					if err != nil {
						t.Fatal(err)
					}
					if encoding != "" {
						req.Header.Set("Accept-Encoding", encoding)
					}
					if trailers != "" {
						req.Header.Set("TE", trailers)
					}
					res, err := client.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = res.Body.Close() }()
					if got := res.Header.Get("Content-Encoding"); got != encoding {
						t.Fatalf("the stream's encoding is %q", got)
					}
					// The first event is on its way before a decoder waits for it.
					harness.Send(t, acknowledged, struct{}{}, "the engine wants to send")
					body := bufio.NewReader(decoder(t, encoding, res.Body))
					for i := range events {
						got := make([]byte, len(event(i)))
						if _, err := io.ReadFull(body, got); err != nil || string(got) != event(i) {
							t.Fatalf("the client got %q (%v), want %q", got, err, event(i))
						}
						if i < events-1 {
							harness.Send(t, acknowledged, struct{}{}, "the engine wants to send on")
						}
					}
					if rest, err := io.ReadAll(body); err != nil || len(rest) != 0 {
						t.Errorf("the stream ended with %q, %v", rest, err)
					}
					g.WaitIdle(t)
				})
			}
		}
	}
}

func event(i int) string {
	return fmt.Sprintf("data: {\"choices\":[{\"delta\":{\"content\":\"token %d\"}}]}\n\n", i)
}

// decoder returns what decodes an answer.
func decoder(t *testing.T, encoding string, body io.Reader) io.Reader {
	t.Helper()
	var (
		r   = body
		err error
	)
	switch encoding {
	case "gzip":
		r, err = gzip.NewReader(body)
	case "zstd":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(body, zstd.WithDecoderConcurrency(1)); err == nil {
			t.Cleanup(d.Close)
			r = d
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}
