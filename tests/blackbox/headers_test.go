package blackbox

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// What a plain completion says of itself is told in headers.
func TestInstrumentationHeaders(t *testing.T) {
	t.Parallel()
	const thinking = 150 * time.Millisecond
	answer := `{"choices":[{"finish_reason":"length"},{"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":7%s}}`
	cached := `,"prompt_tokens_details":{"cached_tokens":0}`
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	tests := []struct {
		name, path, contentType, answer string
		status                          int
		prompt, cached, finish          string
	}{
		{"chat", "/v1/chat/completions", "application/json", fmt.Sprintf(answer, cached), 200, "100", "0", "length"},
		{"completions, charset", "/v1/completions", "application/json; charset=utf-8", fmt.Sprintf(answer, ""), 200, "100", "", "length"},
		{"no usage", "/v1/chat/completions", "application/json", `{"choices":[]}`, 200, "", "", ""},
		{"an error", "/v1/chat/completions", "application/json", fmt.Sprintf(answer, cached), 400, "", "", ""},
		{"no JSON", "/v1/chat/completions", "text/plain", fmt.Sprintf(answer, cached), 200, "", "", ""},
		{"large", "/v1/chat/completions", "application/json", `{"x":"` + strings.Repeat("x", 3<<20) + `",` + fmt.Sprintf(answer, cached)[1:], 200, "", "", ""},
	}
	for _, tt := range tests {
		up.Handle(func(x *harness.Exchange) {
			<-time.After(thinking)
			x.Respond(tt.status, tt.contentType, tt.answer)
		})
		res := g.Post(t, tt.path, chat("hi"))
		if res.Status != tt.status || string(res.Body) != tt.answer {
			t.Errorf("%s: the client got %s", tt.name, res)
		}
		for field, want := range map[string]string{
			"X-Flexinfer-Prompt-Tokens": tt.prompt, "X-Flexinfer-Cached-Tokens": tt.cached, "X-Flexinfer-Finish-Reason": tt.finish,
		} {
			if got := res.Header.Get(field); got != want {
				t.Errorf("%s: %s is %q, want %q", tt.name, field, got, want)
			}
		}
		if ms, err := strconv.Atoi(res.Header.Get("X-Flexinfer-Upstream-Ms")); err != nil || ms < 140 || ms > 5000 {
			t.Errorf("%s: X-Flexinfer-Upstream-Ms is %q after %s", tt.name, res.Header.Get("X-Flexinfer-Upstream-Ms"), thinking)
		}
		if got := res.Header.Get("Content-Length"); got != fmt.Sprint(len(tt.answer)) {
			t.Errorf("%s: Content-Length is %q of %d", tt.name, got, len(tt.answer))
		}
	}
	up.Handle(harness.Answer)
	if res := g.Post(t, "/v1/embeddings", bare("m")); res.Header.Get("X-Flexinfer-Upstream-Ms") != "" {
		t.Error("an embedding counts as a completion")
	}
}

// What is only known at the end of a stream is told in trailers, to clients
// that take them.
func TestTrailersOfStreams(t *testing.T) {
	t.Parallel()
	const thinking = 200 * time.Millisecond
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.Write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nTrailer: X-Engine, X-Flexinfer-Ttft-Ms\r\n\r\n")
		x.Chunk(": ping\n\n")
		<-time.After(thinking)
		x.Chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\n")
		x.End()
		x.Write("0\r\nX-Engine: e\r\nX-Flexinfer-Ttft-Ms: 1\r\nX-Flexinfer-Route: forged\r\n\r\n")
	})
	g := serve(t, "prefix", up)
	for _, te := range []string{"trailers", "gzip;q=0.5, Trailers", ""} {
		var headers []string
		if te != "" {
			headers = []string{"Te", te}
		}
		res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true}`, headers...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(res.Body); err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		for field, want := range map[string]string{
			"X-Flexinfer-Prompt-Tokens": "100", "X-Flexinfer-Completion-Tokens": "7", "X-Flexinfer-Cached-Tokens": "64",
		} {
			if te == "" {
				want = ""
			}
			if got := res.Trailer.Get(field); got != want {
				t.Errorf("TE %q: the trailer %s is %q, want %q", te, field, got, want)
			}
		}
		ttft := res.Trailer.Get("X-Flexinfer-Ttft-Ms")
		if ms, err := strconv.Atoi(ttft); te != "" && (err != nil || ms < 190 || ms > 5000) || te == "" && ttft != "" {
			t.Errorf("TE %q: the trailer X-Flexinfer-Ttft-Ms is %q after %s", te, ttft, thinking)
		}
		if got := res.Trailer.Get("X-Engine"); got != "e" {
			t.Errorf("TE %q: the engine's own trailer is %q", te, got)
		}
		if got := res.Trailer.Get("X-Flexinfer-Route"); got != "" {
			t.Errorf("TE %q: the engine forged X-Flexinfer-Route: %q", te, got)
		}
	}
}

// Z1: an upstream cannot forge what the gateway says, and what a client sends
// under the same names is not obeyed.
func TestZ1_AnswersCannotBeForged(t *testing.T) {
	t.Parallel()
	own := []string{"Upstream-Ms", "Prompt-Tokens", "Completion-Tokens", "Cached-Tokens", "Finish-Reason", "Prefix-Cache-Hit-Rate", "Ttft-Ms", "Route", "MaxTokens-Clamped", "Anything"}
	forged := "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Request-Id: forged\r\nX-REQUEST-ID: forged\r\n"
	var sent []string
	for _, name := range own {
		forged += "X-Flexinfer-" + name + ": forged\r\nx-flexinfer-" + strings.ToLower(name) + ": forged\r\n"
		sent = append(sent, "X-Flexinfer-"+name, "forged")
	}
	up := harness.NewUpstream(t, func(x *harness.Exchange) { x.Write(forged + "Content-Length: 2\r\n\r\nok") })
	g := serve(t, "prefix", up)
	res := g.Chat(t, chat("hi"), append(sent, "Connection", "X-Request-Id, X-Flexinfer-Route", "X-Request-Id", "mine")...)
	for field, values := range res.Header {
		for _, v := range values {
			if v == "forged" {
				t.Errorf("the client got %s: %s", field, v)
			}
		}
	}
	if got := res.Header["X-Request-Id"]; len(got) != 1 || got[0] != "mine" {
		t.Errorf("X-Request-Id is %q", got)
	}
	if got := up.Last(t).Header["X-Request-Id"]; len(got) != 1 || !strings.HasPrefix(got[0], "mine-") {
		t.Errorf("the upstream got the X-Request-Id %q", got)
	}
}

// The client's request id comes back; engines get another one for each
// attempt, since they use it as a key of their own.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	seen := make(map[string]bool)
	fresh := regexp.MustCompile(`^[0-9]{19}[0-9a-f]{4}$`)
	for _, id := range []string{"abc", "abc", strings.Repeat("a", 128), strings.Repeat("a", 129), "with space", "", strings.Repeat("a", 8000)} {
		var headers []string
		if id != "" {
			headers = []string{"X-Request-Id", id}
		}
		res := g.Chat(t, chat("hi"), headers...)
		got, sent := res.Header.Get("X-Request-Id"), up.Last(t).Header.Get("X-Request-Id")
		if good := id != "" && len(id) <= 128 && id != "with space"; good && got != id || !good && !fresh.MatchString(got) {
			t.Errorf("X-Request-Id %.20q came back as %.200q", id, got)
		}
		if !regexp.MustCompile("^"+regexp.QuoteMeta(got)+"-[0-9a-f]{8}$").MatchString(sent) || seen[sent] {
			t.Errorf("X-Request-Id %.20q went on as %.200q", id, sent)
		}
		seen[sent] = true
	}
	if res := g.Post(t, "/v1/chat/completions", "{", "X-Request-Id", "refused"); res.Header.Get("X-Request-Id") != "refused" {
		t.Errorf("a refusal has the headers %v", res.Header)
	}
}

// The hit rate is asked of the very upstream that serves, only for those who
// want to know, and never holds a stream back.
func TestPrefixHitRate(t *testing.T) {
	t.Parallel()
	answer := `{"choices":[]}`
	upstream := func(metrics func(x *harness.Exchange)) *harness.Upstream {
		return harness.NewUpstream(t, func(x *harness.Exchange) {
			switch {
			case x.Target == "/metrics":
				metrics(x)
			case strings.Contains(string(x.Body), `"stream":true`):
				x.StartStream("text/event-stream")
				x.Chunk("data: {}\n\n")
				x.EndStream()
			default:
				x.Respond(200, "application/json", answer)
			}
		})
	}
	text := func(s string) func(x *harness.Exchange) {
		return func(x *harness.Exchange) { x.Respond(200, "text/plain", s) }
	}
	counters := "# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total{e=\"0\"} 100\nvllm:prefix_cache_queries_total{e=\"1\"} 200\n" +
		"# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{e=\"0\"} 50\nvllm:prefix_cache_hits_total{e=\"1\"} 50\n"
	tests := []struct {
		name, want string
		metrics    func(x *harness.Exchange)
	}{
		{"counters", "0.3333", text(counters)},
		{"gauge", "0.7500", text(counters + "# TYPE vllm:gpu_prefix_cache_hit_rate gauge\nvllm:gpu_prefix_cache_hit_rate 0.75\n")},
		{"no queries", "", text("vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n")},
		{"not a number", "", text("vllm:gpu_prefix_cache_hit_rate NaN\n")},
		{"garbage", "", text("<html>")},
		{"404", "", func(x *harness.Exchange) { x.Respond(404, "text/plain", counters) }},
		{"reset", "", func(x *harness.Exchange) { x.Reset() }},
		{"hangs", "", func(x *harness.Exchange) { <-x.Gone() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			up := upstream(tt.metrics)
			g := serve(t, "prefix", up)
			for _, want := range []string{"1", "TRUE", "yes", "On"} {
				begun := time.Now()
				res := g.Chat(t, chat("hi"), "X-Flexinfer-Want-Prefix-Hit", want)
				if got := res.Header.Get("X-Flexinfer-Prefix-Cache-Hit-Rate"); got != tt.want || string(res.Body) != answer {
					t.Errorf("the rate is %q, want %q; the answer is %s", got, tt.want, res)
				}
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("it took %s", took)
				}
			}
			begun := time.Now()
			res := g.Chat(t, `{"model":"m","stream":true}`, "X-Flexinfer-Want-Prefix-Hit", "1")
			if took := time.Since(begun); tt.name == "hangs" && took > time.Second {
				t.Errorf("the stream took %s", took)
			}
			if string(res.Body) != "data: {}\n\n" {
				t.Errorf("the stream is %s", res)
			}
			g.WaitIdle(t)
		})
	}
	up := upstream(text(counters))
	g := serve(t, "prefix", up)
	for _, headers := range [][]string{nil, {"X-Flexinfer-Want-Prefix-Hit", "no"}, {"X-Flexinfer-Want-Prefix-Hit", ""}} {
		if rate := g.Chat(t, chat("hi"), headers...).Header.Get("X-Flexinfer-Prefix-Cache-Hit-Rate"); rate != "" {
			t.Errorf("%v: the rate is %q", headers, rate)
		}
	}
	if n := up.Served(); n != 3 {
		t.Errorf("for clients that do not ask the upstream got %d requests, want 3", n)
	}
}
