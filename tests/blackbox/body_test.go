package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// What a JSON library would not write again as it was: odd whitespace, escapes
// that need not be, numbers with more than one spelling, duplicate keys.
const oddBody = "{ \"tools\" : [{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" +
	`{"type":"object","required":["b"],"properties":{"b":{"type":"number","minimum":1.0},"a":{"maximum":1e2}},` +
	`"additionalProperties":false,"title":"caf\u00e9","$defs":{}}}}],` + "\r\n\t" +
	`"temperature":1.0,"seed":1e2, "x":0.10,"big":12345678901234567890,"model":"a","model" :"m",` +
	`"messages":[{"role":"user","content":"caf\u00e9 \/ \ud83d\ude00 <&>"}],"vendor_field":{"z":1,"a":[ ]}}` + "\n"

func TestB1_BodyPassesByteForByte(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"round-robin", "prefix", "session-affinity", "least-loaded"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			up := harness.NewUpstream(t, nil)
			g := serve(t, routing, up)
			for range 20 {
				g.Chat(t, oddBody)
				got := up.Last(t)
				if string(got.Body) != oddBody {
					t.Fatalf("the upstream got\n%q, the client sent\n%q", got.Body, oddBody)
				}
				if cl := got.Header.Get("Content-Length"); cl != fmt.Sprint(len(oddBody)) {
					t.Errorf("Content-Length is %q", cl)
				}
			}
		})
	}
}

// A tool without parameters, fields nobody knows: the engine is to judge them.
func TestB13_UnknownFieldsPass(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]}`,
		`{"model":"m","messages":[{"role":"user","content":"x","reasoning":"y"}],"chat_template_kwargs":{"enable_thinking":false}}`,
		`{"model":"m","messages":[{"role":"critic","content":[{"type":"video_url","video_url":{"url":"x"}}]}],"guided_json":{}}`,
		`{"model":"m","tools":"all","messages":"none","documents":7,"prefix":[]}`,
	} {
		g.Chat(t, body)
		if got := up.Last(t); string(got.Body) != body {
			t.Errorf("the upstream got %q, the client sent %q", got.Body, body)
		}
	}
}

// sized returns a vision request of exactly n bytes, the model at one end.
func sized(n int, modelFirst bool) string {
	head, tail := `{"model":"m",`, `}`
	if !modelFirst {
		head, tail = `{`, `,"model":"m"}`
	}
	head += `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`
	tail = `"}}]}]` + tail
	return head + strings.Repeat("A", n-len(head)-len(tail)) + tail
}

func TestB4_LargeBodiesPassWholeOrAreRefused(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), "routing prefix") + "max_body 8MiB"})

	for _, size := range []int{6 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, limit - 1, limit, limit + 1} {
		for _, modelFirst := range []bool{true, false} {
			body := sized(size, modelFirst)
			for _, chunked := range []bool{false, true} {
				name := fmt.Sprintf("%d bytes, model first %t, chunked %t", size, modelFirst, chunked)
				up.Forget()
				before := up.Bytes()
				req, err := g.NewRequest(t.Context(), http.MethodPost, "/v1/chat/completions", body)
				if err != nil {
					t.Fatal(err)
				}
				if chunked {
					req.ContentLength = -1
				}
				res, err := g.Client.Do(req)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				_ = res.Body.Close()
				if size > limit {
					if res.StatusCode != http.StatusRequestEntityTooLarge {
						t.Errorf("%s: status %d", name, res.StatusCode)
					}
					if n := up.Bytes() - before; n != 0 {
						t.Errorf("%s: the upstream got %d bytes of a refused body", name, n)
					}
					continue
				}
				if res.StatusCode != http.StatusOK {
					t.Errorf("%s: status %d", name, res.StatusCode)
					continue
				}
				if got := up.Last(t); got.Length != int64(size) || got.Sum != sum(body) {
					t.Errorf("%s: the upstream got other %d bytes", name, got.Length)
				}
			}
		}
	}
	g.WaitIdle(t)
}

// A length that is too large is refused before the body is there, and a client
// that sends first and reads then gets to see why.
func TestB4_RefusalDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "max_body 1KiB"})
	for _, length := range []int{1025, 100_000, 10_000_000} {
		for _, sent := range []int{0, length / 2, length} {
			conn := g.Dial(t)
			conn.Send(t, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", length))
			conn.Send(t, strings.Repeat(" ", sent))
			res := conn.Response(t)
			if res.Status != http.StatusRequestEntityTooLarge {
				t.Fatalf("%d of %d bytes: %s", sent, length, res)
			}
			if e := res.Refusal(t); !strings.Contains(e.Error.Message, "1024") {
				t.Errorf("the refusal does not name the limit: %s", res)
			}
		}
	}
	if up.Connections() != 0 {
		t.Error("the upstream was dialled")
	}
	g.WaitIdle(t)
}

func TestB6_ContentTypeSpelling(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	tests := map[string][]string{
		"plain":             {"application/json"},
		"charset":           {"application/json; charset=utf-8"},
		"case":              {"Application/JSON"},
		"quoted, no space":  {`application/json;charset="UTF-8"`},
		"suffix":            {"application/vnd.x+json"},
		"text":              {"text/plain"},
		"nonsense":          {";;;"},
		"missing":           nil,
		"two":               {"application/json", "application/json"},
		"two that disagree": {"text/plain", "application/json"},
	}
	for name, types := range tests {
		for _, extra := range []string{"", "m"} {
			t.Run(name+" "+extra, func(t *testing.T) {
				var head strings.Builder
				for _, v := range types {
					head.WriteString("Content-Type: " + v + "\r\n")
				}
				if extra != "" {
					head.WriteString("X-Model-ID: m\r\n")
				}
				body := chat("hello")
				conn := g.Dial(t)
				conn.Send(t, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", head.String(), len(body), body))
				if res := conn.Response(t); res.Status != http.StatusOK {
					t.Fatalf("the answer is %s", res)
				}
				got := up.Last(t)
				if fmt.Sprint(got.Header["Content-Type"]) != fmt.Sprint(types) {
					t.Errorf("the upstream got the types %q, the client sent %q", got.Header["Content-Type"], types)
				}
				if string(got.Body) != body {
					t.Errorf("the upstream got %q", got.Body)
				}
			})
		}
	}
}

func TestB8_LegalPromptShapes(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, nil)
	g := serve(t, "prefix", ups...)
	// %d makes prompts of the same shape differ.
	tests := []struct{ name, path, body string }{
		{"string", "/v1/completions", `{"model":"m","prompt":"prompt %d"}`},
		{"array of strings", "/v1/completions", `{"model":"m","prompt":["a %d","b"]}`},
		{"token ids", "/v1/completions", `{"model":"m","prompt":[%d,2,3]}`},
		{"arrays of token ids", "/v1/completions", `{"model":"m","prompt":[[%d,2],[3]]}`},
		{"input string", "/v1/embeddings", `{"model":"m","input":"text %d"}`},
		{"input array of strings", "/v1/embeddings", `{"model":"m","input":["a %d","b"]}`},
		{"input token ids", "/v1/embeddings", `{"model":"m","input":[%d,2,3]}`},
		{"input arrays of token ids", "/v1/embeddings", `{"model":"m","input":[[%d,2],[3]]}`},
		{"content string", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi %d"}]}`},
		{"content parts", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"see %d"},{"type":"image_url","image_url":{"url":"data:,x"}}]}]}`},
		{"content image only", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,%d"}}]}]}`},
		{"responses", "/v1/responses", `{"model":"m","input":"hi %d"}`},
		{"messages", "/v1/messages", `{"model":"m","max_tokens":1,"system":[{"type":"text","text":"s %d"}],"messages":[{"role":"user","content":"hi"}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seen := make(map[string]bool)
			for i := range 45 {
				body := fmt.Sprintf(tt.body, i)
				first, times := "", 2
				if i < 5 {
					times = 10
				}
				for range times {
					res := g.Post(t, tt.path, body)
					if res.Status != http.StatusOK {
						t.Fatalf("%s: %s", body, res)
					}
					up := upstreamOf(t, res)
					if first == "" {
						first = up
					}
					if up != first {
						t.Fatalf("%s went to %s and to %s", body, first, up)
					}
				}
				seen[first] = true
			}
			if len(seen) != len(ups) {
				t.Errorf("45 prompts went to %d of %d upstreams", len(seen), len(ups))
			}
		})
	}
}

// Shapes that hold no text to make a key of are for the engine to judge.
func TestB8_EmptyPromptsAreNotRefused(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, nil)
	g := serve(t, "prefix", ups...)
	for path, bodies := range map[string][]string{
		"/v1/completions": {`{"model":"m","prompt":""}`, `{"model":"m","prompt":[]}`, `{"model":"m","prompt":null}`, `{"model":"m"}`},
		"/v1/embeddings":  {`{"model":"m","input":""}`, `{"model":"m","input":[""]}`},
		"/v1/chat/completions": {
			`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`,
			`{"model":"m","messages":[{"role":"user"}]}`,
			`{"model":"m","messages":[]}`,
			`{"model":"m","messages":[null,1,"x",[]]}`,
		},
	} {
		for _, body := range bodies {
			inParallel(t, 2, 10, func(ctx context.Context, _ int) error {
				res, err := g.Try(ctx, http.MethodPost, path, body)
				if err == nil && res.Status != http.StatusOK {
					err = fmt.Errorf("%s: %s", body, res)
				}
				return err
			})
		}
	}
}
