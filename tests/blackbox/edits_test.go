package blackbox

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// S14: each upstream gets the name that it knows the model by, in the bytes of
// that value alone, and the client sees the name that it asked for.
func TestS14_ModelNames(t *testing.T) {
	t.Parallel()
	own := harness.NewUpstream(t, nil)
	answer := `{"id":"x", "model" : "Qwen/Qwen3-8B","choices":[{"message":{"content":"{\"model\":\"Qwen/Qwen3-8B\"}"}}]}`
	own.Handle(func(x *harness.Exchange) { x.Respond(http.StatusOK, "application/json", answer) })
	g := harness.Start(t, harness.Config{Flexinfer: model("qwen", "alias chat", "adapter lora", "to "+own.Addr+" {\n\t\tmodel Qwen/Qwen3-8B\n\t}", "routing prefix") +
		model("upstream-speaks", "alias u", to(own)) + "response_model asked"})

	const shape = "{ \"a\":1.0, \"model\"\t:  %s ,\"b\": \"\\u00e9\", \"n\":1e2,\"messages\":[{\"role\":\"user\",\"content\":\"\\\"model\\\": x\"}], \"x\":{\"model\":\"inner\"} }"
	body := func(name string) string { return fmt.Sprintf(shape, name) }
	tests := []struct {
		name, path, header string
		sent, upstream     string // the body's value of model
		asked              string // in the answer; "" as the engine has it
	}{
		{"declared name", "/v1/chat/completions", "", `"qwen"`, `"Qwen/Qwen3-8B"`, "qwen"},
		{"alias", "/v1/chat/completions", "", `"chat"`, `"Qwen/Qwen3-8B"`, "chat"},
		{"alias with an escape", "/v1/chat/completions", "", `"ch\u0061t"`, `"Qwen/Qwen3-8B"`, "chat"},
		{"adapter", "/v1/chat/completions", "", `"lora"`, `"lora"`, ""},
		{"header", "/v1/chat/completions", "chat", `"other"`, `"Qwen/Qwen3-8B"`, "chat"},
		{"path", "/model/qwen/v1/chat/completions", "", `"gpt-4"`, `"Qwen/Qwen3-8B"`, "qwen"},
		{"alias without a name of its own", "/v1/chat/completions", "", `"u"`, `"upstream-speaks"`, "u"},
		{"as it is known", "/v1/chat/completions", "", `"upstream-speaks"`, `"upstream-speaks"`, ""},
	}
	for _, tt := range tests {
		var headers []string
		if tt.header != "" {
			headers = []string{"X-Model-ID", tt.header}
		}
		res := g.Post(t, tt.path, body(tt.sent), headers...)
		if got := own.Last(t); string(got.Body) != body(tt.upstream) {
			t.Errorf("%s: the upstream got\n%s, want\n%s", tt.name, got.Body, body(tt.upstream))
		} else if got.Header.Get("Content-Length") != fmt.Sprint(len(got.Body)) || len(got.Header["Content-Length"]) != 1 {
			t.Errorf("%s: Content-Length is %q of %d", tt.name, got.Header["Content-Length"], len(got.Body))
		}
		want := answer
		if tt.asked != "" {
			want = strings.Replace(answer, `"model" : "Qwen/Qwen3-8B"`, `"model" : "`+tt.asked+`"`, 1)
		}
		if string(res.Body) != want {
			t.Errorf("%s: the client got\n%s, want\n%s", tt.name, res.Body, want)
		}
		if n := res.Header.Get("Content-Length"); n != fmt.Sprint(len(want)) {
			t.Errorf("%s: the client got the Content-Length %q of %d", tt.name, n, len(want))
		}
	}
	g.WaitIdle(t)
}

// The names of models in streams are those that were asked for, wherever the
// API has them, and however the stream is cut.
func TestS14_ModelNamesInStreams(t *testing.T) {
	t.Parallel()
	streams := map[string]struct{ path, contentType, body, sent, want string }{
		"chat": {"/v1/chat/completions", "text/event-stream; charset=utf-8", `{"model":"alias","stream":true}`,
			"data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"\\\"model\\\":\\\"m\\\"\"}}]}\n\ndata: [DONE]\n\n",
			"data: {\"model\":\"alias\",\"choices\":[{\"delta\":{\"content\":\"\\\"model\\\":\\\"m\\\"\"}}]}\n\ndata: [DONE]\n\n"},
		"responses": {"/v1/responses", "text/event-stream", `{"model":"alias","stream":true}`,
			"event: response.created\r\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"model\":\"m\"}}\r\n\r\n",
			"event: response.created\r\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"model\":\"alias\"}}\r\n\r\n"},
		"messages": {"/v1/messages", "text/event-stream", `{"model":"alias","stream":true}`,
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\"}}\n\n",
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"alias\"}}\n\n"},
		"ollama": {"/api/chat", "application/x-ndjson", `{"model":"alias"}`,
			"{\"model\":\"m\",\"done\":false}\n{\"model\":\"m\",\"done\":true}\n",
			"{\"model\":\"alias\",\"done\":false}\n{\"model\":\"alias\",\"done\":true}\n"},
	}
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias alias", to(up))})
	for name, s := range streams {
		for cut := range len(s.sent) {
			up.Handle(func(x *harness.Exchange) {
				x.StartStream(s.contentType)
				if cut > 0 {
					x.Chunk(s.sent[:cut])
				}
				x.Chunk(s.sent[cut:])
				x.EndStream()
			})
			if res := g.Post(t, s.path, s.body, "Accept-Encoding", "gzip"); string(res.Body) != s.want {
				t.Fatalf("%s, cut at %d: the client got\n%q, want\n%q", name, cut, res.Body, s.want)
			}
			if got := up.Last(t).Header.Get("Accept-Encoding"); got != "identity" {
				t.Fatalf("%s: the upstream was asked for the encoding %q", name, got)
			}
		}
	}
	g.WaitIdle(t)
}

// With response_model upstream, what the engine wrote stays.
func TestResponseModelUpstream(t *testing.T) {
	t.Parallel()
	const answer = `{"model":"m","choices":[]}`
	up := harness.NewUpstream(t, func(x *harness.Exchange) { x.Respond(http.StatusOK, "application/json", answer) })
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias alias", to(up)) + "response_model upstream"})
	if res := g.Post(t, "/v1/chat/completions", bare("alias")); string(res.Body) != answer {
		t.Errorf("the client got %s", res)
	}
}

// A retry to another upstream carries the name that that one knows.
func TestRetryCarriesTheUpstreamsName(t *testing.T) {
	t.Parallel()
	busy := harness.NewUpstream(t, func(x *harness.Exchange) { x.Respond(http.StatusServiceUnavailable, "text/plain", "busy") })
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m",
		"to "+busy.Addr+" {\n\t\tmodel first\n\t}", "to "+harness.FreeAddr(t)+" {\n\t\tmodel second\n\t}", "to "+up.Addr+" {\n\t\tmodel third\n\t}", "routing round-robin")})
	for range 6 {
		g.Chat(t, chat("hi"))
		if got, want := string(up.Last(t).Body), chatOf("third", "hi"); got != want {
			t.Errorf("the upstream got %s, want %s", got, want)
		}
	}
	for _, r := range busy.Requests() {
		if got, want := string(r.Body), chatOf("first", "hi"); got != want {
			t.Errorf("the busy upstream got %s, want %s", got, want)
		}
	}
}

// B7: a form's field model is renamed as well, wherever it stands, and the file
// stays as it is.
func TestB7_FormModelIsRenamed(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("whisper", "alias w", to(up))})
	file := bytes.Repeat([]byte("RIFF\r\n--x name=\"model\"\r\n\r\nw\r\n"), 1<<15)
	for _, first := range []bool{true, false} {
		form := func(name string) (string, string) {
			var b bytes.Buffer
			w := multipart.NewWriter(&b)
			_ = w.SetBoundary("boundary")
			if first {
				_ = w.WriteField("model", name)
			}
			f, _ := w.CreateFormFile("file", "a.wav")
			_, _ = f.Write(file)
			_ = w.WriteField("language", "w")
			if !first {
				_ = w.WriteField("model", name)
			}
			_ = w.Close()
			return b.String(), w.FormDataContentType()
		}
		body, contentType := form("w")
		want, _ := form("whisper")
		res := g.Post(t, "/v1/audio/transcriptions", body, "Content-Type", contentType)
		if got := up.Last(t); res.Status != http.StatusOK || got.Sum != sum(want) || got.Length != int64(len(want)) {
			t.Errorf("model first %v: the answer is %s, the upstream got %d bytes, want %d", first, res, got.Length, len(want))
		}
	}
}

// B10: no limit of tokens above what the context window leaves reaches an
// upstream, none is added, and what is no such limit stays.
func TestB10_Clamp(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), "context_window 612") + model("free", to(up))})
	tests := []struct{ sent, want, header string }{
		{`"max_tokens":0`, `"max_tokens":0`, ""},
		{`"max_tokens":-1`, `"max_tokens":-1`, ""},
		{`"max_tokens":null`, `"max_tokens":null`, ""},
		{`"max_tokens":100`, `"max_tokens":100`, ""},
		{`"max_tokens":101`, `"max_tokens":100`, "101->100"},
		{`"max_tokens":1e9`, `"max_tokens":100`, "1e9->100"},
		{`"max_tokens":100.5`, `"max_tokens":100`, "100.5->100"},
		{`"max_tokens":"50"`, `"max_tokens":"50"`, ""},
		{`"max_tokens":99999999999999999999`, `"max_tokens":100`, "99999999999999999999->100"},
		{`"max_completion_tokens" : 5000`, `"max_completion_tokens" : 100`, "5000->100"},
		{`"max_tokens":50,"max_completion_tokens":5000`, `"max_tokens":50,"max_completion_tokens":100`, "5000->100"},
		{`"max_output_tokens":5000`, `"max_output_tokens":100`, "5000->100"},
		{`"max_tokens":5000,"max_tokens":6000`, `"max_tokens":100,"max_tokens":100`, "6000->100"},
		{`"x":{"max_tokens":5000}`, `"x":{"max_tokens":5000}`, ""},
		{`"a":1`, `"a":1`, ""},
	}
	clamped := 0
	for _, tt := range tests {
		for _, shape := range []string{`{%s,"model":"m"}`, `{"model":"m",%s}`, `{"model":"m", "messages":[{"role":"user","content":"\u00e9"}] , %s }`} {
			res := g.Post(t, "/v1/chat/completions", fmt.Sprintf(shape, tt.sent))
			if got, want := string(up.Last(t).Body), fmt.Sprintf(shape, tt.want); got != want {
				t.Errorf("%s: the upstream got %s, want %s", tt.sent, got, want)
			}
			if got := res.Header.Get("X-FlexInfer-MaxTokens-Clamped"); got != tt.header {
				t.Errorf("%s: X-FlexInfer-MaxTokens-Clamped is %q, want %q", tt.sent, got, tt.header)
			}
			if tt.header != "" {
				clamped++
			}
		}
	}
	if n := g.Metrics(t).Value("flexinfer_proxy_max_tokens_clamped_total", "model", "m", "reason", "context_window_headroom"); n != float64(clamped) {
		t.Errorf("max_tokens_clamped_total is %v, want %d", n, clamped)
	}
	const body = `{"model":"free","max_tokens":100000}`
	g.Post(t, "/v1/chat/completions", body)
	if got := string(up.Last(t).Body); got != body {
		t.Errorf("without a window the upstream got %s", got)
	}
	g.Reload(t, harness.Config{Flexinfer: model("m", to(up), "context_window 612") + "max_tokens_clamp off"})
	const off = `{"model":"m","max_tokens":100000}`
	if res, err := g.TryTwice(t.Context(), http.MethodPost, "/v1/chat/completions", off); err != nil || res.Header.Get("X-FlexInfer-MaxTokens-Clamped") != "" {
		t.Errorf("with the clamp off: %v, %v", res, err)
	}
	if got := string(up.Last(t).Body); got != off {
		t.Errorf("with the clamp off the upstream got %s", got)
	}
}

// The window of a model can be the engine's own word.
func TestClampToTheEnginesWindow(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		if x.Target == "/v1/models" {
			x.Respond(http.StatusOK, "application/json", `{"data":[{"id":"m","max_model_len":1512}]}`)
			return
		}
		harness.Answer(x)
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), "context_window auto")})
	harness.Eventually(t, harness.Patience, "the engine's window is known", func() bool {
		return g.Post(t, "/v1/chat/completions", `{"model":"m","max_tokens":5000}`).Header.Get("X-FlexInfer-MaxTokens-Clamped") == "5000->1000"
	})
}

// S4: the gateway asks for the usage of a stream only if it is told to, and
// then the client sees nothing of it.
func TestS4_UsageOfStreams(t *testing.T) {
	t.Parallel()
	const (
		first = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n"
		usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n"
		last  = "data: [DONE]\n\n"
	)
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		body := string(x.Body)
		switch {
		case !strings.Contains(body, `"stream":true`):
			x.Respond(http.StatusOK, "application/json", `{"choices":[],"usage":{"prompt_tokens":3}}`)
			return
		default:
			x.StartStream("text/event-stream")
			x.Chunk(first)
			if strings.Contains(body, `"include_usage":true`) {
				x.Chunk(usage)
			}
			x.Chunk(last)
			x.EndStream()
		}
	})
	tests := []struct {
		sent, always string // what goes up with usage_metrics always; "" for as it is
		sees         bool
	}{
		{`{"model":"m","stream":true}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, false},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":false}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, false},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, "", true},
		{`{"model":"m","stream":true,"stream_options":null}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, false},
		{`{"model":"m","stream":false}`, "", true},
		{`{"model":"m"}`, "", true},
		{`{"model":"m","stream":"true"}`, "", true},
	}
	for _, always := range []bool{false, true} {
		cfg := model("m", to(up))
		if always {
			cfg += "usage_metrics always"
		}
		g := harness.Start(t, harness.Config{Flexinfer: cfg})
		for _, tt := range tests {
			res := g.Post(t, "/v1/chat/completions", tt.sent)
			want := tt.sent
			if always && tt.always != "" {
				want = tt.always
			}
			if got := string(up.Last(t).Body); got != want {
				t.Errorf("always %v: the upstream got %s, want %s", always, got, want)
			}
			if !strings.Contains(tt.sent, `"stream":true`) {
				continue
			}
			stream := first + last
			if tt.sees {
				stream = first + usage + last
			}
			if string(res.Body) != stream {
				t.Errorf("always %v, %s: the client got %q, want %q", always, tt.sent, res.Body, stream)
			}
		}
		want := 1.0 // stream, and of two plain ones and a strange one none has completion tokens alone
		if always {
			want = 4
		}
		if n := g.Metrics(t).Buckets("flexinfer_proxy_request_completion_tokens", "model", "m"); len(n) == 0 {
			t.Error("no completion tokens are counted")
		}
		if n := g.Metrics(t).Value("flexinfer_proxy_request_completion_tokens", "model", "m"); n != want+3 {
			t.Errorf("always %v: the usage of %v completions is known, want %v", always, n, want+3)
		}
		g.WaitIdle(t)
	}
}

// Ollama's older clients write name for model.
func TestOllamasOldName(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias alias", to(up))})
	for sent, want := range map[string]string{
		`{"name":"m"}`:                     `{"name":"m"}`,
		`{"name" : "alias", "verbose":1 }`: `{"name" : "m", "verbose":1 }`,
		`{"name":"x","model":"alias"}`:     `{"name":"x","model":"m"}`,
	} {
		if res := g.Post(t, "/api/show", sent); res.Status != http.StatusOK {
			t.Errorf("%s: %s", sent, res)
		}
		if got := string(up.Last(t).Body); got != want {
			t.Errorf("%s: the upstream got %s, want %s", sent, got, want)
		}
	}
	if res := g.Post(t, "/v1/chat/completions", `{"name":"m"}`); res.Status != http.StatusBadRequest {
		t.Errorf("elsewhere: %s", res)
	}
}

// S13: what has no body, or a part of one, passes as it is, its length too.
func TestS13_AnswersThatAreNoWholeBody(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","usage":{"prompt_tokens":3}}`
	heads := map[string]string{
		"HEAD": fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body)),
		"GET":  "HTTP/1.1 304 Not Modified\r\nContent-Type: application/json\r\nEtag: \"x\"\r\n\r\n",
		"POST": fmt.Sprintf("HTTP/1.1 206 Partial Content\r\nContent-Type: application/json\r\nContent-Range: bytes 0-%d/100\r\nContent-Length: %d\r\n\r\n%s", len(body)-1, len(body), body),
	}
	up := harness.NewUpstream(t, func(x *harness.Exchange) { x.Write(heads[x.Method]) })
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias alias", to(up))})
	for method, length := range map[string]string{"HEAD": fmt.Sprint(len(body)), "GET": "", "POST": fmt.Sprint(len(body))} {
		res := g.Do(t, method, "/model/alias/v1/chat/completions", "")
		if got := res.Header.Get("Content-Length"); got != length {
			t.Errorf("%s: Content-Length is %q, want %q", method, got, length)
		}
		if method == "POST" && string(res.Body) != body {
			t.Errorf("%s: the client got %s", method, res)
		}
	}
	g.WaitIdle(t)
}
