package sim

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// serve returns the address of an engine.
func serve(t *testing.T, cfg Config) (*Engine, string) {
	t.Helper()
	e := newTestEngine(t, cfg)
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	return e, srv.URL
}

// call makes a request and returns the answer with its body.
func call(t *testing.T, method, url, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

const longChat = `"messages":[{"role":"system","content":"You answer in as few words as you can, and always in English."},` +
	`{"role":"user","content":"What is the tallest mountain of the Alps, and who climbed it first? Please name the year as well."}]`

// want checks values of a JSON document by their paths.
func want(t *testing.T, body string, values map[string]any) {
	t.Helper()
	for path, want := range values {
		got := gjson.Get(body, path)
		text := fmt.Sprint(got.Value())
		if got.Type == gjson.Number {
			text = got.Raw // 1048576 and not 1.048576e+06
		}
		if !got.Exists() || text != fmt.Sprint(want) {
			t.Errorf("%s is %s, want %v, in %s", path, text, want, body)
		}
	}
}

func TestAnswers(t *testing.T) {
	e, url := serve(t, unlimited())
	for _, tt := range []struct {
		name, path, body string
		want             map[string]any
	}{
		{"chat", "/v1/chat/completions", `{"model":"sim",` + longChat + `,"max_tokens":8}`, map[string]any{
			"object": "chat.completion", "model": "sim", "system_fingerprint": "fp_engine", "choices.#": 1,
			"choices.0.message.role": "assistant", "choices.0.finish_reason": "length",
			"usage.prompt_tokens": 49, "usage.completion_tokens": 8, "usage.total_tokens": 57, "usage.prompt_tokens_details.cached_tokens": 0,
		}},
		{"chat again", "/v1/chat/completions", `{"model":"sim",` + longChat + `}`, map[string]any{
			"choices.0.finish_reason": "stop", "usage.completion_tokens": 16, "usage.prompt_tokens_details.cached_tokens": 48,
		}},
		{"choices", "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"n":3,"max_completion_tokens":2,"max_tokens":9}`, map[string]any{
			"choices.#": 3, "choices.2.index": 2, "usage.prompt_tokens": 4, "usage.completion_tokens": 6,
		}},
		{"null is absent", "/v1/chat/completions", `{"model":null,"messages":[{"role":"user","content":"hi"}],"stream":null,"n":null,"max_tokens":null,"tools":[]}`, map[string]any{
			"usage.prompt_tokens": 4, "usage.completion_tokens": 16,
		}},
		{"last exact name counts", "/v1/chat/completions", `{"model":"no","model":"sim","Model":"no","messages":[{"role":"user","content":"hi"}]}`, map[string]any{
			"model": "sim",
		}},
		{"image", "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:..."}}]}]}`, map[string]any{
			"usage.prompt_tokens": 3 + 1 + mediaTokens,
		}},
		{"completion", "/v1/completions", `{"prompt":"Once upon a time","max_tokens":4}`, map[string]any{
			"object": "text_completion", "usage.prompt_tokens": 4, "usage.completion_tokens": 4, "choices.0.finish_reason": "length",
		}},
		{"completions", "/v1/completions", `{"prompt":["a","b"],"n":2,"max_tokens":1}`, map[string]any{
			"choices.#": 4, "choices.3.index": 3, "usage.prompt_tokens": 2, "usage.completion_tokens": 4,
		}},
		{"token ids", "/v1/completions", `{"prompt":[1,2,3],"max_tokens":1}`, map[string]any{"usage.prompt_tokens": 3}},
		{"arrays of token ids", "/v1/completions", `{"prompt":[[1,2,3],[4,5]],"max_tokens":1}`, map[string]any{
			"usage.prompt_tokens": 5, "choices.#": 2,
		}},
		{"embedding", "/v1/embeddings", `{"input":"hello"}`, map[string]any{
			"object": "list", "data.#": 1, "data.0.object": "embedding", "data.0.embedding.#": dimensions, "usage.prompt_tokens": 1, "usage.total_tokens": 1,
		}},
		{"embeddings", "/v1/embeddings", `{"input":["hello",[1,2]],"dimensions":8,"encoding_format":"float"}`, map[string]any{
			"data.#": 2, "data.1.index": 1, "data.1.embedding.#": 8, "usage.prompt_tokens": 3,
		}},
		{"response", "/v1/responses", `{"instructions":"Be brief.","input":"hi","max_output_tokens":3}`, map[string]any{
			"object": "response", "status": "incomplete", "incomplete_details.reason": "max_output_tokens", "output.0.type": "message",
			"output.0.content.0.type": "output_text", "usage.output_tokens": 3, "usage.input_tokens_details.cached_tokens": 0,
		}},
		{"response to items", "/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call_output","output":"x"}]}`, map[string]any{
			"status": "completed", "usage.output_tokens": 16,
		}},
		{"message", "/v1/messages", `{"model":"sim","system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":"hi"}],"max_tokens":3}`, map[string]any{
			"type": "message", "role": "assistant", "stop_reason": "max_tokens", "content.0.type": "text",
			"usage.input_tokens": 9, "usage.output_tokens": 3, "usage.cache_read_input_tokens": 0,
		}},
		{"tokenize", "/tokenize", `{"prompt":"Once upon a time"}`, map[string]any{"count": 4, "tokens.#": 4}},
		{"tokenize chat", "/tokenize", `{` + longChat + `}`, map[string]any{"count": 49, "max_model_len": 1 << 20}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := call(t, "POST", url+tt.path, tt.body)
			if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/json" || res.Header.Get("X-Engine-Id") != "engine" {
				t.Errorf("%s %v", res.Status, res.Header)
			}
			want(t, body, tt.want)
		})
	}
	idle(t, e)
}

func TestAnswersAreDeterministic(t *testing.T) {
	a, b := newTestEngine(t, unlimited()), newTestEngine(t, unlimited())
	answer := func(e *Engine, body string) string {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)))
		return gjson.Get(w.Body.String(), "choices.#.message.content").Raw
	}
	same := `{` + longChat + `,"n":2}`
	first := answer(a, same)
	if first != answer(a, same) || first != answer(b, same) || first != answer(a, `{"cache_salt":"x","n":2,`+longChat+`}`) {
		t.Error("the same prompt was answered differently")
	}
	if first == answer(a, `{`+strings.Replace(longChat, "Alps", "Andes", 1)+`,"n":2}`) {
		t.Error("another prompt was answered in the same way")
	}
	if v := gjson.Parse(first).Array(); v[0].String() == v[1].String() {
		t.Error("two choices are the same")
	}
}

func TestEmbeddingIsTheSameInBothFormats(t *testing.T) {
	_, url := serve(t, unlimited())
	_, float := call(t, "POST", url+"/v1/embeddings", `{"input":"hello"}`)
	_, encoded := call(t, "POST", url+"/v1/embeddings", `{"input":"hello","encoding_format":"base64"}`)
	var v []float32
	if err := json.Unmarshal([]byte(gjson.Get(float, "data.0.embedding").Raw), &v); err != nil {
		t.Fatal(err)
	}
	if got := gjson.Get(encoded, "data.0.embedding").String(); got != base64Vector(v) {
		t.Errorf("%s is not %v", got, v)
	}
	raw, err := base64.StdEncoding.DecodeString(base64Vector([]float32{1}))
	if err != nil || !bytes.Equal(raw, []byte{0, 0, 0x80, 0x3f}) {
		t.Errorf("1 is %v, %v", raw, err)
	}
	var square float64
	for _, x := range v {
		square += float64(x) * float64(x)
	}
	if square < 0.999 || square > 1.001 {
		t.Errorf("the vector's length is %v", square)
	}
}

func TestRefusals(t *testing.T) {
	cfg := unlimited()
	cfg.MaxModelLen = 100
	e, url := serve(t, cfg)
	const chat, completions, embeddings = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
	hi := `"messages":[{"role":"user","content":"hi"}]`
	for _, tt := range []struct {
		path, body string
		status     int
		param      any
	}{
		{chat, ``, 400, nil},
		{chat, `{`, 400, nil},
		{chat, `null`, 400, nil},
		{chat, `[]`, 400, nil},
		{chat, `"x"`, 400, nil},
		{chat, "{\"model\":\"\xff\"}", 400, nil},
		{chat, strings.Repeat("[", 1<<20), 400, nil},
		{chat, `{"model":1,` + hi + `}`, 400, "model"},
		{chat, `{"model":"gpt-4",` + hi + `}`, 404, "model"},
		{chat, `{"model":"SIM",` + hi + `}`, 404, "model"},
		{chat, `{}`, 400, "messages"},
		{chat, `{"messages":[]}`, 400, "messages"},
		{chat, `{"messages":"hi"}`, 400, "messages"},
		{chat, `{"messages":["hi"]}`, 400, "messages"},
		{chat, `{"messages":[{"content":"hi"}]}`, 400, "messages"},
		{chat, `{"messages":[{"role":"user","content":5}]}`, 400, "messages"},
		{chat, `{"messages":[{"role":"user","content":[5]}]}`, 400, "messages"},
		{chat, `{"max_tokens":0,` + hi + `}`, 400, "max_tokens"},
		{chat, `{"max_tokens":1.5,` + hi + `}`, 400, "max_tokens"},
		{chat, `{"max_tokens":"5",` + hi + `}`, 400, "max_tokens"},
		{chat, `{"max_tokens":1e300,` + hi + `}`, 400, "max_tokens"},
		{chat, `{"max_tokens":97,` + hi + `}`, 400, nil},
		{chat, `{"n":0,` + hi + `}`, 400, "n"},
		{chat, `{"n":100000,` + hi + `}`, 400, "n"},
		{chat, `{"stream":"yes",` + hi + `}`, 400, "stream"},
		{chat, `{"stream_options":{"include_usage":true},` + hi + `}`, 400, "stream_options"},
		{chat, `{"stream":true,"stream_options":[],` + hi + `}`, 400, "stream_options"},
		{chat, `{"cache_salt":[],` + hi + `}`, 400, "cache_salt"},
		{completions, `{}`, 400, "prompt"},
		{completions, `{"prompt":""}`, 400, "prompt"},
		{completions, `{"prompt":[]}`, 400, "prompt"},
		{completions, `{"prompt":{}}`, 400, "prompt"},
		{completions, `{"prompt":[1,"a"]}`, 400, "prompt"},
		{completions, `{"prompt":[-1]}`, 400, "prompt"},
		{completions, `{"prompt":[[]]}`, 400, "prompt"},
		{embeddings, `{"input":null}`, 400, "input"},
		{embeddings, `{"input":"a","encoding_format":"int8"}`, 400, "encoding_format"},
		{embeddings, `{"input":"a","dimensions":5000}`, 400, "dimensions"},
		{"/v1/responses", `{}`, 400, "input"},
		{"/v1/responses", `{"input":"a","previous_response_id":"resp_1"}`, 404, "previous_response_id"},
		{"/v1/nothing", `{}`, 404, nil},
	} {
		name := tt.path + " " + tt.body
		res, body := call(t, "POST", url+tt.path, tt.body)
		if res.StatusCode != tt.status {
			t.Errorf("%.100s: got %s", name, res.Status)
		}
		kind := map[int]string{400: "BadRequestError", 404: "NotFoundError"}[tt.status]
		want(t, body, map[string]any{"error.type": kind, "error.param": tt.param, "error.code": tt.status})
		if gjson.Get(body, "error.message").String() == "" {
			t.Errorf("%.100s: no message in %s", name, body)
		}
	}

	res, body := call(t, "POST", url+"/v1/messages", `{"model":"claude",`+hi+`}`)
	if res.StatusCode != 404 {
		t.Error(res.Status)
	}
	want(t, body, map[string]any{"type": "error", "error.type": "not_found_error"})

	res, _ = call(t, "GET", url+chat, "")
	if res.StatusCode != 405 || res.Header.Get("Allow") != "POST" {
		t.Errorf("%s, allowed is %q", res.Status, res.Header.Get("Allow"))
	}
	idle(t, e)
}

func TestBodyIsBounded(t *testing.T) {
	_, url := serve(t, unlimited())
	body := io.MultiReader(strings.NewReader(`{"messages":"`), io.LimitReader(endless{}, maxBody))
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Error(res.Status)
	}
}

type endless struct{}

var manyAs = strings.Repeat("a", 32<<10)

func (endless) Read(p []byte) (int, error) { return copy(p, manyAs), nil }

func TestModels(t *testing.T) {
	cfg := unlimited()
	cfg.Models = []string{"a", "org/b:1"}
	_, url := serve(t, cfg)
	_, body := call(t, "GET", url+"/v1/models", "")
	want(t, body, map[string]any{"object": "list", "data.#.id": []any{"a", "org/b:1"}, "data.0.object": "model", "data.0.max_model_len": 1 << 20})
	for _, path := range []string{"org/b:1", "org%2Fb:1"} {
		_, body = call(t, "GET", url+"/v1/models/"+path, "")
		want(t, body, map[string]any{"id": "org/b:1", "object": "model"})
	}
	if res, _ := call(t, "GET", url+"/v1/models/c", ""); res.StatusCode != 404 {
		t.Error(res.Status)
	}
	if res, body := call(t, "GET", url+"/health", ""); res.StatusCode != 200 || body != "" {
		t.Error(res.Status, body)
	}
	// What the first model computed is of no use to the second.
	call(t, "POST", url+"/v1/chat/completions", `{"model":"a",`+longChat+`}`)
	_, body = call(t, "POST", url+"/v1/chat/completions", `{"model":"org/b:1",`+longChat+`}`)
	want(t, body, map[string]any{"usage.prompt_tokens_details.cached_tokens": 0})
}

// events returns the names and the data of a stream's events.
func events(t *testing.T, body string) (names []string, data []string) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		name, rest, named := strings.Cut(event, "\n")
		if named {
			names = append(names, strings.TrimPrefix(name, "event: "))
			event = rest
		}
		text, ok := strings.CutPrefix(event, "data: ")
		if !ok || strings.Contains(text, "\n") {
			t.Fatalf("not an event: %q", event)
		}
		data = append(data, text)
	}
	return names, data
}

// A stream says what the answer in one piece says.
func TestStreams(t *testing.T) {
	e, url := serve(t, unlimited())
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		for _, include := range []bool{true, false} {
			t.Run(fmt.Sprint(path, include), func(t *testing.T) {
				request := `{` + longChat + `,"prompt":["` + string(text("once", 40)) + `"],"n":2,"max_tokens":5`
				_, whole := call(t, "POST", url+path, request+`}`)
				res, body := call(t, "POST", url+path, request+fmt.Sprintf(`,"stream":true,"stream_options":{"include_usage":%t}}`, include))
				if got := res.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
					t.Errorf("content type %q", got)
				}
				_, data := events(t, body)
				if data[len(data)-1] != "[DONE]" {
					t.Errorf("ends with %s", data[len(data)-1])
				}
				data = data[:len(data)-1]
				if include {
					last := data[len(data)-1]
					data = data[:len(data)-1]
					want(t, last, map[string]any{"choices.#": 0, "usage.completion_tokens": 10, "usage.total_tokens": gjson.Get(whole, "usage.total_tokens").Int()})
					if gjson.Get(last, "usage.prompt_tokens_details.cached_tokens").Int() == 0 {
						t.Errorf("nothing was found in the cache: %s", last)
					}
				}
				texts, finish := map[int64]string{}, map[int64]string{}
				for _, d := range data {
					if gjson.Get(d, "usage").Exists() || gjson.Get(d, "choices.#").Int() != 1 {
						t.Errorf("unexpected event %s", d)
					}
					choice := gjson.Get(d, "choices.0")
					index := choice.Get("index").Int()
					texts[index] += choice.Get("delta.content").String() + choice.Get("text").String()
					if f := choice.Get("finish_reason"); f.Type != gjson.Null {
						finish[index] += f.String()
					}
				}
				for i, choice := range gjson.Get(whole, "choices").Array() {
					want := choice.Get("message.content").String() + choice.Get("text").String()
					if got := texts[int64(i)]; got != want || finish[int64(i)] != "length" {
						t.Errorf("choice %d: streamed %q, whole %q, finish %q", i, got, want, finish[int64(i)])
					}
				}
			})
		}
	}
	idle(t, e)
}

func TestResponseStream(t *testing.T) {
	_, url := serve(t, unlimited())
	_, whole := call(t, "POST", url+"/v1/responses", `{"input":"hi","max_output_tokens":2}`)
	_, body := call(t, "POST", url+"/v1/responses", `{"input":"hi","max_output_tokens":2,"stream":true}`)
	names, data := events(t, body)
	if got, want := strings.Join(names, " "), "response.created response.in_progress response.output_item.added response.content_part.added "+
		"response.output_text.delta response.output_text.delta response.output_text.done response.content_part.done "+
		"response.output_item.done response.incomplete"; got != want {
		t.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
	for i, d := range data {
		want(t, d, map[string]any{"type": names[i], "sequence_number": i})
	}
	text := gjson.Get(whole, "output.0.content.0.text").String()
	if streamed := gjson.Get(data[4], "delta").String() + gjson.Get(data[5], "delta").String(); streamed != text {
		t.Errorf("streamed %q, whole %q", streamed, text)
	}
	want(t, data[len(data)-1], map[string]any{"response.output.0.content.0.text": text, "response.usage.output_tokens": 2})
}

func TestMessageStream(t *testing.T) {
	_, url := serve(t, unlimited())
	request := `{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":2`
	_, whole := call(t, "POST", url+"/v1/messages", request+`}`)
	_, body := call(t, "POST", url+"/v1/messages", request+`,"stream":true}`)
	names, data := events(t, body)
	if got, want := strings.Join(names, " "), "message_start content_block_start content_block_delta content_block_delta "+
		"content_block_stop message_delta message_stop"; got != want {
		t.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
	for i, d := range data {
		want(t, d, map[string]any{"type": names[i]})
	}
	want(t, data[0], map[string]any{"message.usage.input_tokens": 4, "message.role": "assistant"})
	if streamed := gjson.Get(data[2], "delta.text").String() + gjson.Get(data[3], "delta.text").String(); streamed != gjson.Get(whole, "content.0.text").String() {
		t.Errorf("streamed %q, whole %s", streamed, whole)
	}
	want(t, data[5], map[string]any{"delta.stop_reason": "max_tokens", "usage.output_tokens": 2})
}

// Status and headers of a stream are there while the prompt is still being
// computed, and a client that leaves then frees the engine.
func TestHeadersBeforePrefill(t *testing.T) {
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		t.Run(path, func(t *testing.T) {
			cfg := unlimited()
			cfg.PrefillRate = 0.01
			e, url := serve(t, cfg)
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", url+path, strings.NewReader(`{"stream":true,`+longChat+`}`))
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Error(res.Status)
			}
			eventually(t, func() bool { return e.State().Running == 1 })
			cancel()
			if b, err := io.ReadAll(res.Body); len(b) != 0 || !errors.Is(err, context.Canceled) {
				t.Errorf("read %q, %v", b, err)
			}
			eventually(t, func() bool { return e.State().Running == 0 })
			idle(t, e)
		})
	}
}

// eventually waits for what another goroutine of the server brings about.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come about")
		}
	}
}

func TestRequestID(t *testing.T) {
	e := newTestEngine(t, unlimited())
	r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(`{`+longChat+`}`))
	r.Header.Set("X-Request-Id", "abc-1")
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	want(t, w.Body.String(), map[string]any{"id": "chatcmpl-abc-1"})
}

func TestMetrics(t *testing.T) {
	cfg := unlimited()
	cfg.Models = []string{"sim", "other"}
	_, url := serve(t, cfg)
	for range 2 {
		call(t, "POST", url+"/v1/chat/completions", `{`+longChat+`,"max_tokens":5}`)
	}
	res, body := call(t, "GET", url+"/metrics", "")
	if got := res.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
		t.Errorf("content type %q", got)
	}
	for _, line := range []string{
		`vllm:num_requests_running{model_name="sim"} 0`,
		`vllm:num_requests_waiting{model_name="sim"} 0`,
		`vllm:kv_cache_usage_perc{model_name="sim"} 0`,
		`vllm:prefix_cache_queries_total{model_name="sim"} 98`,
		`vllm:prefix_cache_hits_total{model_name="sim"} 48`,
		`vllm:prompt_tokens_total{model_name="sim"} 98`,
		`vllm:generation_tokens_total{model_name="sim"} 10`,
		`vllm:generation_tokens_total{model_name="other"} 0`,
		`vllm:cache_config_info{block_size="16",model_name="sim",num_gpu_blocks="65536"} 1`,
		`# TYPE vllm:prefix_cache_hits_total counter`,
		`# TYPE vllm:num_requests_running gauge`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no line %s in\n%s", line, body)
		}
	}
}
