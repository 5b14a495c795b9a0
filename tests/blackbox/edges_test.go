package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Z4: a limit of tokens that is a number of any length is cut, and not shown at
// its length.
func TestZ4_HugeLimits(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), "context_window 612"), AccessLog: true})
	for _, digits := range []int{20, 1000, 100_000, 3_000_000} {
		for _, number := range []string{strings.Repeat("9", digits), "9" + strings.Repeat("0", digits) + ".5e3", "1e" + strings.Repeat("9", digits)} {
			res := g.Post(t, "/v1/chat/completions", `{"model":"m","max_tokens":`+number+`}`)
			if got := string(up.Last(t).Body); got != `{"model":"m","max_tokens":100}` {
				t.Errorf("%.10s of %d bytes: the upstream got %.100s: %.200s", number, len(number), got, res)
			}
			if got := res.Header.Get("X-FlexInfer-MaxTokens-Clamped"); len(got) > 200 || !strings.HasSuffix(got, "->100") {
				t.Errorf("%.10s of %d bytes: X-FlexInfer-MaxTokens-Clamped has %d bytes: %.100s", number, len(number), len(got), got)
			}
		}
	}
}

// Answers that only announce another one pass or are left out, and never spoil
// the one that follows.
func TestInterimAnswers(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.Write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX-Flexinfer-Route: forged\r\n\r\n")
		x.Respond(200, "application/json", `{"model":"m","usage":{"prompt_tokens":3}}`)
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias a", to(up))})
	for range 5 {
		res := g.Chat(t, bare("a"))
		if string(res.Body) != `{"model":"a","usage":{"prompt_tokens":3}}` || res.Header.Get("X-Flexinfer-Prompt-Tokens") != "3" {
			t.Errorf("the client got %s with %v", res, res.Header)
		}
	}
	if n := up.Connections(); n != 1 {
		t.Errorf("five calls took %d connections", n)
	}
	g.WaitIdle(t)
}

// Caddy's own directives go in front: what they refuse reaches neither gateway
// nor upstream, and the client's key stays here if the site says so.
func TestAuthAndLimitsInFront(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", to(up)), Env: []string{"LLM_API_KEY=s3cr3t"},
		Site: `flexinfer {
	header_up -Authorization
}
@denied {
	expression ` + "`" + `{env.LLM_API_KEY} == "" || {http.request.header.Authorization} != "Bearer " + {env.LLM_API_KEY}` + "`" + `
	not path /healthz /readyz
}
respond @denied 401
request_body {
	max_size 10KiB
}`,
	})
	key := []string{"Authorization", "Bearer s3cr3t"}
	if res := g.Get(t, "/healthz"); res.Status != http.StatusOK {
		t.Errorf("/healthz: %s", res)
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/models", "/metrics"} {
		if res := g.Post(t, path, chat("hi"), "Authorization", "Bearer other"); res.Status != http.StatusUnauthorized {
			t.Errorf("%s with another key: %s", path, res)
		}
	}
	if up.Connections() != 0 {
		t.Error("a client without the key reached the upstream")
	}
	if res := g.Chat(t, chat("hi"), key...); upstreamOf(t, res) != up.Addr {
		t.Errorf("with the key: %s", res)
	}
	if got := up.Last(t).Header.Get("Authorization"); got != "" {
		t.Errorf("the upstream got the client's key %q", got)
	}
	for _, chunked := range []bool{false, true} {
		req, err := g.NewRequest(t.Context(), http.MethodPost, "/v1/chat/completions", chat(strings.Repeat("x", 20_000)), key...)
		if err != nil {
			t.Fatal(err)
		}
		if chunked {
			req.ContentLength = -1
		}
		res, err := harness.DoWith(g.Client, req)
		if err != nil || res.Status != http.StatusRequestEntityTooLarge {
			t.Fatalf("a body beyond the site's limit: %v %v", res, err)
		}
		if chunked { // else Caddy's own directive refuses it, in its own words
			res.Refusal(t)
		}
	}
	if n := up.Served(); n != 1 {
		t.Errorf("the upstream got %d requests", n)
	}
}

// HEAD, 304 and ranges have no body to be edited.
func TestAnswersWithoutABody(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		switch {
		case x.Method == "HEAD":
			x.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\nEtag: \"x\"\r\n\r\n")
		case x.Header.Get("If-None-Match") != "":
			x.Write("HTTP/1.1 304 Not Modified\r\nContent-Type: application/json\r\nEtag: \"x\"\r\n\r\n")
		default:
			x.Write("HTTP/1.1 206 Partial Content\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes 0-1/10\r\nContent-Length: 2\r\n\r\nab")
		}
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias a", to(up))})
	for range 3 {
		if res := g.Do(t, "HEAD", "/model/a/v1/files/x", ""); res.Status != 200 || len(res.Body) != 0 || res.Header.Get("Etag") == "" {
			t.Errorf("HEAD: %s %v", res, res.Header)
		}
		if res := g.Get(t, "/model/a/v1/files/x", "If-None-Match", `"x"`); res.Status != 304 || res.Header.Get("Etag") == "" {
			t.Errorf("304: %s %v", res, res.Header)
		}
		if res := g.Get(t, "/model/a/v1/files/x", "Range", "bytes=0-1"); res.Status != 206 || string(res.Body) != "ab" || res.Header.Get("Content-Range") == "" {
			t.Errorf("206: %s %v", res, res.Header)
		}
	}
	if n := up.Connections(); n != 1 {
		t.Errorf("nine calls took %d connections", n)
	}
	g.WaitIdle(t)
}

// An old client gets its stream to the end of the connection.
func TestHTTP10Client(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.StartStream("text/event-stream")
		x.Chunk("data: 1\n\n")
		x.Chunk("data: 2\n\n")
		x.EndStream()
	})
	g := serve(t, "prefix", up)
	conn := g.Dial(t)
	conn.Send(t, fmt.Sprintf("POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(streaming), streaming))
	if res := conn.Response(t); res.Status != 200 || string(res.Body) != "data: 1\n\ndata: 2\n\n" {
		t.Errorf("the client got %s", res)
	}
	g.WaitIdle(t)
}
