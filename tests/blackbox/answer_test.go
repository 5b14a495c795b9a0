package blackbox

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// encodeEvents returns a stream under a content coding, flushed after each
// event as engines do.
func encodeEvents(t *testing.T, coding string, events ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := newEncoder(t, coding, &b)
	for _, e := range events {
		if _, err := io.WriteString(w, e); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// S1: an engine that compresses if it is asked to: the client gets its bytes as
// they are, wherever they are cut, and the usage in them is counted all the
// same, in streams and in plain answers.
func TestS1_CompressedAnswers(t *testing.T) {
	t.Parallel()
	const usage = `"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":64}}`
	events := []string{
		": ping\n\n", "data: {\"choices\":[{\"delta\":{\"content\":\"größer 🦊\"}}]}\n\n",
		"data:{\"choices\":[]," + usage + "}\r\n\r\n", "data: [DONE]\n\n",
	}
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	n := 0.0
	check := func(coding string) {
		t.Helper()
		m := g.Metrics(t)
		for name, want := range map[string]float64{
			"flexinfer_proxy_prompt_tokens_total":        100 * n,
			"flexinfer_proxy_cached_prompt_tokens_total": 64 * n,
			"flexinfer_proxy_request_completion_tokens":  n,
			"flexinfer_proxy_completions_total":          n,
		} {
			if got := m.Value(name, "model", "m"); got != want {
				t.Errorf("%s: %s is %v, want %v", coding, name, got, want)
			}
		}
	}
	for _, coding := range []string{"gzip", "deflate", "br", "zstd"} {
		encoded := encodeEvents(t, coding, events...)
		plain := encode(t, coding, `{"choices":[{"finish_reason":"stop"}],`+usage+`}`)
		var cut int
		up.Handle(func(x *harness.Exchange) {
			if got := x.Header.Get("Accept-Encoding"); got != coding {
				t.Errorf("the engine was asked for %q, want %q", got, coding)
			}
			if !strings.Contains(string(x.Body), `"stream":true`) {
				x.Write(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s", coding, len(plain), plain))
				return
			}
			x.Write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: " + coding + "\r\nTransfer-Encoding: chunked\r\n\r\n")
			if cut > 0 {
				x.Chunk(encoded[:cut])
			}
			x.Chunk(encoded[cut:])
			x.EndStream()
		})
		for cut = 0; cut < len(encoded); cut += 3 {
			res := g.Post(t, "/v1/chat/completions", streaming, "Accept-Encoding", coding)
			n++
			if string(res.Body) != encoded || res.Header.Get("Content-Encoding") != coding {
				t.Fatalf("%s, cut at %d: the client got other bytes", coding, cut)
			}
		}
		res := g.Post(t, "/v1/chat/completions", chat("hi"), "Accept-Encoding", coding)
		n++
		if string(res.Body) != plain || res.Header.Get("Content-Encoding") != coding {
			t.Errorf("%s: the client got other bytes of a plain answer: %s", coding, res)
		}
		for field, want := range map[string]string{"Prompt-Tokens": "100", "Cached-Tokens": "64", "Finish-Reason": "stop"} {
			if got := res.Header.Get("X-Flexinfer-" + field); got != want {
				t.Errorf("%s: X-Flexinfer-%s is %q, want %q", coding, field, got, want)
			}
		}
		check(coding)
	}
	g.WaitIdle(t)
}

// S6: nothing that the gateway adds holds a stream back: trailers, a hit rate
// that never comes, a model that is renamed, usage that is asked for and hidden.
func TestS6_StreamIsNotHeldBackByWhatIsAdded(t *testing.T) {
	t.Parallel()
	const events = 10
	acknowledged := make(chan struct{})
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		if x.Target == "/metrics" {
			<-x.Gone()
			return
		}
		x.StartStream("text/event-stream")
		wait := func() bool {
			select {
			case <-acknowledged:
				return true
			case <-x.Gone():
				return false
			}
		}
		for i := range events {
			if !wait() {
				return
			}
			x.Chunk(fmt.Sprintf("data: {\"model\":\"m\",\"n\":%d}\n\n", i))
		}
		x.Chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n")
		if wait() {
			x.Chunk("data: [DONE]\n\n")
			x.EndStream()
		}
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias another", to(up), "context_window 1024") + "usage_metrics always"})
	res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"another","max_tokens":9000,"stream":true}`,
		"Te", "trailers", "X-Flexinfer-Want-Prefix-Hit", "1", "X-Flexinfer-Debug", "1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	for _, field := range []string{"X-Flexinfer-Upstream-Ms", "X-Flexinfer-Route", "X-FlexInfer-MaxTokens-Clamped", "X-Request-Id"} {
		if res.Header.Get(field) == "" {
			t.Errorf("%s is not there", field)
		}
	}
	body := bufio.NewReader(res.Body)
	line := func() string {
		line, err := body.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream broke off: %v", err)
		}
		_, _ = body.ReadString('\n')
		return line
	}
	for i := range events {
		harness.Send(t, acknowledged, struct{}{}, "the upstream wants to send on")
		if got, want := line(), fmt.Sprintf("data: {\"model\":\"another\",\"n\":%d}\n", i); got != want {
			t.Fatalf("the client got %q, want %q", got, want)
		}
	}
	harness.Send(t, acknowledged, struct{}{}, "the upstream wants to end")
	if got := line(); got != "data: [DONE]\n" {
		t.Errorf("the client got %q", got)
	}
	if rest, err := io.ReadAll(body); err != nil || len(rest) != 0 {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	if got := res.Trailer.Get("X-Flexinfer-Completion-Tokens"); got != "1" {
		t.Errorf("the trailer X-Flexinfer-Completion-Tokens is %q: %v", got, res.Trailer)
	}
	g.WaitIdle(t)
}

// S13: what describes the engine's bytes does not describe those that the
// gateway changed: their length, their digest, their tag.
func TestS13_NoStaleLength(t *testing.T) {
	t.Parallel()
	const own = "Etag: \"x\"\r\nContent-MD5: x\r\nDigest: x\r\nContent-Digest: x\r\nRepr-Digest: x\r\nAccept-Ranges: bytes\r\n"
	pad := strings.Repeat("x", 3<<20) // more than is read for its usage
	bodies := map[string]struct{ path, contentType, body string }{
		"plain":  {"/v1/chat/completions", "application/json", `{"model":"m","choices":[]}`},
		"large":  {"/v1/chat/completions", "application/json", `{"model":"m","choices":[],"x":"` + pad + `"}`},
		"other":  {"/v1/rerank", "application/json", `{"model":"m","results":[]}`},
		"stream": {"/v1/chat/completions", "text/event-stream", "data: {\"model\":\"m\"}\n\ndata: [DONE]\n\n"},
	}
	up := harness.NewUpstream(t, nil)
	long := strings.Repeat("n", 200)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias a "+long, to(up))})
	for name, tt := range bodies {
		up.Handle(func(x *harness.Exchange) {
			x.Write(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n%s", tt.contentType, own, len(tt.body), tt.body))
		})
		for _, asked := range []string{"a", long, "m"} {
			res := g.Post(t, tt.path, `{"model":"`+asked+`","stream":`+fmt.Sprint(name == "stream")+`}`)
			want := strings.Replace(tt.body, `"model":"m"`, `"model":"`+asked+`"`, 1)
			if res.Status != http.StatusOK || string(res.Body) != want {
				t.Errorf("%s, %.5s: the client got other %d bytes, want %d", name, asked, len(res.Body), len(want))
			}
			if n := res.Header.Get("Content-Length"); n != "" && n != fmt.Sprint(len(want)) {
				t.Errorf("%s, %.5s: the Content-Length is %s of %d", name, asked, n, len(want))
			}
			for _, field := range []string{"Etag", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
				if got := res.Header.Get(field); (got != "") != (asked == "m") {
					t.Errorf("%s, %.5s: %s is %q", name, asked, field, got)
				}
			}
		}
	}
	// A refusal in the place of an answer that broke off has its own length.
	up.Handle(func(x *harness.Exchange) {
		x.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\nContent-Encoding: x\r\n\r\n{")
		x.Close()
	})
	res := g.Post(t, "/v1/chat/completions", chat("hi"))
	if res.Status != http.StatusBadGateway || res.Header.Get("Content-Length") != fmt.Sprint(len(res.Body)) || res.Header.Get("Content-Encoding") != "" {
		t.Errorf("the refusal is %s with %v", res, res.Header)
	}
	res.Refusal(t)
	g.WaitIdle(t)
}

// M1: no label holds what an upstream or a client wrote, whatever goes wrong:
// the reasons of retries are of a fixed set, and series come per model and
// endpoint alone.
func TestM1_LabelsAreBounded(t *testing.T) {
	t.Parallel()
	reset := func(x *harness.Exchange) { x.Reset() }
	answers := []func(x *harness.Exchange){
		status(429), status(503), status(599), status(404), reset, func(x *harness.Exchange) { x.Close() },
		func(x *harness.Exchange) {
			x.Write("no HTTP: " + fmt.Sprint(x.Upstream.Served()) + "\r\n\r\n")
			x.Close()
		},
		func(x *harness.Exchange) {
			x.Write(fmt.Sprintf("HTTP/1.1 503 Reason %d\r\nContent-Length: 0\r\n\r\n", x.Upstream.Served()))
		},
		func(x *harness.Exchange) {
			x.Respond(200, "application/json", fmt.Sprintf(`{"model":"model-%d","choices":[{"finish_reason":"reason-%[1]d"}],"usage":{"kind":"k%[1]d"}}`, x.Upstream.Served()))
		},
	}
	up := harness.NewUpstream(t, nil)
	models := model("off", "to "+harness.FreeAddr(t)+" "+up.Addr, "routing round-robin")
	names := []string{"off"}
	for i, answer := range answers {
		name := fmt.Sprint("m", i)
		names = append(names, name)
		models += model(name, to(harness.NewUpstream(t, answer), up), "routing round-robin", "context_window 1024")
	}
	g := harness.Start(t, harness.Config{Flexinfer: models + "retries 5 {\n\ton 404 429 5xx reset\n\tbudget 100% 10000\n}\n" + health("eject_after 10000")})
	first := 0
	for round := range 3 {
		for _, name := range names {
			for k := range 6 {
				g.Post(t, "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":%d,"user":"u%d"}`, name, 10_000+round*1000+k, k))
			}
		}
		own := g.Metrics(t).Own()
		if round == 0 {
			first = own
		}
		if own > first+2 { // a lost connection has one of two reasons
			t.Errorf("round %d: %d series, %d after the first", round, own, first)
		}
	}
	allowed := []string{"conn_refused", "conn_reset", "eof", "http_404", "http_429", "http_503", "http_599", "other"}
	reasons := make(map[string]bool)
	for _, s := range g.Metrics(t).Series("flexinfer_proxy_upstream_retries_total") {
		reasons[s.Labels["reason"]] = true
	}
	for reason := range reasons {
		if !slices.Contains(allowed, reason) {
			t.Errorf("a reason for a retry is %q", reason)
		}
	}
	for _, want := range []string{"conn_refused", "http_404", "http_429", "http_503", "http_599", "other"} {
		if !reasons[want] {
			t.Errorf("no retry has the reason %s: %v", want, slices.Sorted(maps.Keys(reasons)))
		}
	}
	g.WaitIdle(t)
}
