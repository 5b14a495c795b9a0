package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func TestOllamaAnswers(t *testing.T) {
	e, url := serve(t, unlimited())
	for _, tt := range []struct {
		name, path, body string
		want             map[string]any
	}{
		{"chat", "/api/chat", `{"model":"sim","stream":false,` + longChat + `,"options":{"num_predict":8}}`, map[string]any{
			"model": "sim", "message.role": "assistant", "done": true, "done_reason": "length", "prompt_eval_count": 49, "eval_count": 8,
		}},
		{"no limit", "/api/chat", `{"stream":false,` + longChat + `,"options":{"num_predict":-1}}`, map[string]any{"done_reason": "stop", "eval_count": 16}},
		{"image", "/api/chat", `{"stream":false,"messages":[{"role":"user","content":"hi","images":["AAAA"]}]}`, map[string]any{"prompt_eval_count": 4 + 1 + mediaTokens}},
		{"load by chat", "/api/chat", `{"model":"sim","messages":[]}`, map[string]any{"done": true, "done_reason": "load", "message.content": ""}},
		{"generate", "/api/generate", `{"model":"sim","system":"Be brief.","prompt":"hi","stream":false}`, map[string]any{
			"done_reason": "stop", "prompt_eval_count": 9, "eval_count": 16, "context.#": 9 + 16 + 1,
		}},
		{"raw", "/api/generate", `{"prompt":"Once upon a time","raw":true,"stream":false}`, map[string]any{"prompt_eval_count": 4}},
		{"load by generate", "/api/generate", `{"model":"sim"}`, map[string]any{"done": true, "done_reason": "load", "response": ""}},
		{"embed", "/api/embed", `{"model":"sim","input":["a","b"]}`, map[string]any{"model": "sim", "embeddings.#": 2, "embeddings.1.#": dimensions, "prompt_eval_count": 2}},
		{"embed one", "/api/embed", `{"input":"a","dimensions":8}`, map[string]any{"embeddings.#": 1, "embeddings.0.#": 8}},
		{"embeddings", "/api/embeddings", `{"prompt":"a"}`, map[string]any{"embedding.#": dimensions}},
		{"show", "/api/show", `{"model":"sim"}`, map[string]any{"details.family": "sim", `model_info.sim\.context_length`: 1 << 20}},
		{"show by name", "/api/show", `{"name":"sim"}`, map[string]any{"capabilities.0": "completion"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := call(t, "POST", url+tt.path, tt.body)
			if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s %v", res.Status, res.Header)
			}
			want(t, body, tt.want)
			if gjson.Get(body, "eval_count").Exists() && (gjson.Get(body, "total_duration").Int() < 1 || gjson.Get(body, "eval_duration").Int() < 1) {
				t.Errorf("no durations: %s", body)
			}
		})
	}
	_, body := call(t, "GET", url+"/api/tags", "")
	want(t, body, map[string]any{"models.#": 1, "models.0.name": "sim", "models.0.model": "sim", "models.0.details.format": "sim"})
	_, body = call(t, "GET", url+"/api/ps", "")
	want(t, body, map[string]any{"models.#": 1, "models.0.name": "sim"})
	_, body = call(t, "GET", url+"/api/version", "")
	want(t, body, map[string]any{"version": "0.0.0"})

	for body, status := range map[string]int{
		`{`: 400, `{"model":"no",` + longChat + `}`: 404, `{"model":1}`: 400, `{"stream":1,` + longChat + `}`: 400,
		`{"options":{"num_predict":1.5},` + longChat + `}`: 400,
	} {
		res, answer := call(t, "POST", url+"/api/chat", body)
		if res.StatusCode != status || gjson.Get(answer, "error").Type != gjson.String {
			t.Errorf("%s: %s %s", body, res.Status, answer)
		}
	}
	for _, context := range []string{`"x"`, `["x"]`, `[-1]`, `[1.5]`} {
		if res, answer := call(t, "POST", url+"/api/generate", `{"prompt":"hi","context":`+context+`}`); res.StatusCode != 400 {
			t.Errorf("%s: %s %s", context, res.Status, answer)
		}
	}
	idle(t, e)
}

// A stream, which is what is sent unless told otherwise, says what the answer
// in one piece says.
func TestOllamaStream(t *testing.T) {
	_, url := serve(t, unlimited())
	for path, piece := range map[string]string{"/api/chat": "message.content", "/api/generate": "response"} {
		request := `{"prompt":"hi",` + longChat + `,"options":{"num_predict":5}`
		_, whole := call(t, "POST", url+path, request+`,"stream":false}`)
		res, body := call(t, "POST", url+path, request+`}`)
		if got := res.Header.Get("Content-Type"); got != "application/x-ndjson" {
			t.Errorf("content type %q", got)
		}
		lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
		if len(lines) != 6 {
			t.Fatalf("%s: %d lines in %s", path, len(lines), body)
		}
		var text string
		for i, line := range lines {
			text += gjson.Get(line, piece).String()
			want(t, line, map[string]any{"done": i == 5, "model": "sim"})
		}
		if text != gjson.Get(whole, piece).String() {
			t.Errorf("streamed %q, whole %s", text, whole)
		}
		want(t, lines[5], map[string]any{"done_reason": "length", "eval_count": 5, "prompt_eval_count": gjson.Get(whole, "prompt_eval_count").Int()})
	}
}

// A conversation that goes on with the numbers under context finds what came
// before in the cache.
func TestOllamaContext(t *testing.T) {
	e := newTestEngine(t, unlimited())
	long := string(text("once", 40))
	first := e.do("POST", "/api/generate", `{"system":"`+long+`","prompt":"hi","images":["AAAA"],"stream":false}`).Body.String()
	e.do("POST", "/api/generate", `{"prompt":"and then?","stream":false,"context":`+gjson.Get(first, "context").Raw+`}`)
	notes := e.history.list()
	before, after := notes[0], notes[1]
	if after.CachedTokens != (before.PromptTokens+defaultAnswer)/16*16 {
		t.Errorf("a first turn of %d tokens and its answer: %d of the second turn's %d were found", before.PromptTokens, after.CachedTokens, after.PromptTokens)
	}
}

func FuzzTokenIDs(f *testing.F) {
	f.Add([]byte("Once upon a time, \xffu          x\xfe\x00\x10\x00\x00\x00\x00\x00\x07!"))
	f.Fuzz(func(t *testing.T, in []byte) {
		for i := 0; i < len(in); {
			end := nextToken(in, i)
			token := in[i:end]
			i = end
			if token[0] == tokenByte && (len(token) != 9 || token[1] != 0 || token[2]>>4 != 1) {
				continue // no number that a text's tokens have
			}
			id := tokenID(token)
			if got := appendID(nil, id); !bytes.Equal(got, token) || id >= 1<<53 {
				t.Fatalf("%q is %d and %q again", token, id, got)
			}
		}
	})
}

func TestDetokenize(t *testing.T) {
	_, url := serve(t, unlimited())
	const text = "Once upon a time,           there — was { \"nothing\" } \n\n\n\t\t to ünpack."
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	_, body := call(t, "POST", url+"/tokenize", `{"prompt":`+string(quoted)+`}`)
	_, body = call(t, "POST", url+"/detokenize", `{"tokens":`+gjson.Get(body, "tokens").Raw+`}`)
	if got := gjson.Get(body, "prompt").String(); got != text {
		t.Errorf("got %q", got)
	}
	if res, _ := call(t, "POST", url+"/detokenize", `{"tokens":["x"]}`); res.StatusCode != 400 {
		t.Error(res.Status)
	}
}

func TestRerank(t *testing.T) {
	_, url := serve(t, unlimited())
	_, body := call(t, "POST", url+"/v1/rerank", `{"query":"tall mountain","documents":["a sea",{"text":"A mountain"},"a tall mountain"],"top_n":2}`)
	want(t, body, map[string]any{
		"model": "sim", "results.#": 2, "results.0.index": 2, "results.0.relevance_score": 1, "results.1.document.text": "A mountain",
	})
	if n := gjson.Get(body, "usage.prompt_tokens").Int(); n < 9 || n != gjson.Get(body, "usage.total_tokens").Int() {
		t.Errorf("usage: %s", body)
	}
	for _, documents := range []string{`null`, `[]`, `"x"`, `[1]`, `[{}]`} {
		if res, body := call(t, "POST", url+"/v1/rerank", `{"query":"q","documents":`+documents+`}`); res.StatusCode != 400 {
			t.Errorf("%s: %s %s", documents, res.Status, body)
		}
	}
}

func TestAudio(t *testing.T) {
	e, url := serve(t, unlimited())
	transcribe := func(form string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/audio/transcriptions", strings.NewReader(form))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, req)
		return w.Result(), w.Body.String()
	}
	part := func(name, rest, value string) string {
		return fmt.Sprintf("--b\r\nContent-Disposition: form-data; name=%q%s\r\n\r\n%s\r\n", name, rest, value)
	}
	file := part("file", `; filename="a.wav"`, "RIFF....")
	res, body := transcribe(file + part("model", "", "sim") + "--b--\r\n")
	if res.StatusCode != 200 {
		t.Error(res.Status, body)
	}
	want(t, body, map[string]any{"usage.input_tokens": 1 + mediaTokens, "usage.output_tokens": 16})
	if words := strings.Fields(gjson.Get(body, "text").String()); len(words) < 10 {
		t.Errorf("the text is %v", words)
	}
	if _, text := transcribe(file + part("response_format", "", "text") + "--b--\r\n"); text != gjson.Get(body, "text").String()+"\n" {
		t.Errorf("as text it is %q", text)
	}
	for form, status := range map[string]int{
		file + part("model", "", "no") + "--b--\r\n":            404,
		part("model", "", "sim") + "--b--\r\n":                  400,
		file + part("response_format", "", "srt") + "--b--\r\n": 400,
		file: 400,
	} {
		if res, body := transcribe(form); res.StatusCode != status {
			t.Errorf("%q: %s %s", form, res.Status, body)
		}
	}

	res, wav := call(t, "POST", url+"/v1/audio/speech", `{"model":"sim","input":"Once upon a time","voice":"any"}`)
	if res.Header.Get("Content-Type") != "audio/wav" || !strings.HasPrefix(wav, "RIFF") || len(wav) != 44+2*4*tokenSamples {
		t.Errorf("%v, %d bytes", res.Header, len(wav))
	}
	idle(t, e)
}

func TestStoredResponses(t *testing.T) {
	e, url := serve(t, unlimited())
	const path = "/v1/responses"
	long := string(text("once", 40))
	_, first := call(t, "POST", url+path, `{"instructions":"Be brief.","input":"`+long+`"}`)
	id := gjson.Get(first, "id").String()

	_, second := call(t, "POST", url+path, `{"instructions":"Be brief.","input":[{"role":"user","content":"and?","id":"msg_x"}],"previous_response_id":"`+id+`","stream":true}`)
	names, data := events(t, second)
	if names[0] != "response.created" || gjson.Get(data[0], "response.id").String() == "" || gjson.Get(data[0], "response.id").String() != gjson.Get(data[len(data)-1], "response.id").String() {
		t.Errorf("the first event is %s %s", names[0], data[0])
	}
	want(t, data[len(data)-1], map[string]any{"response.previous_response_id": id})
	if cached := gjson.Get(data[len(data)-1], "response.usage.input_tokens_details.cached_tokens").Int(); cached < gjson.Get(first, "usage.input_tokens").Int() {
		t.Errorf("%d tokens of the second turn were found in the cache", cached)
	}

	if res, body := call(t, "GET", url+path+"/"+id, ""); res.StatusCode != 200 || body != first {
		t.Errorf("%s %s\nwant\n%s", res.Status, body, first)
	}
	_, body := call(t, "GET", url+path+"/"+id+"/input_items", "")
	want(t, body, map[string]any{"object": "list", "data.#": 1, "data.0.role": "user", "data.0.content.0.text": long, "has_more": false})
	_, body = call(t, "GET", url+path+"/"+gjson.Get(data[0], "response.id").String()+"/input_items", "")
	want(t, body, map[string]any{"data.0.content": "and?", "data.0.id": "msg_x", "first_id": "msg_x"})
	if res, body := call(t, "POST", url+path+"/"+id+"/cancel", ""); res.StatusCode != 400 {
		t.Errorf("%s %s", res.Status, body)
	}
	if res, _ := call(t, "PUT", url+path+"/"+id, ""); res.StatusCode != 405 || res.Header.Get("Allow") != "GET, DELETE" {
		t.Errorf("%s %v", res.Status, res.Header)
	}
	_, body = call(t, "DELETE", url+path+"/"+id, "")
	want(t, body, map[string]any{"id": id, "deleted": true})

	_, body = call(t, "POST", url+path, `{"input":"hi","store":false}`)
	for _, gone := range []string{id, gjson.Get(body, "id").String(), "resp_no"} {
		for _, r := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/cancel"}, {"GET", "/input_items"}} {
			res, body := call(t, r[0], url+path+"/"+gone+r[1], "")
			if res.StatusCode != 404 {
				t.Errorf("%s %s: %s", r[0], r[1], res.Status)
			}
			want(t, body, map[string]any{"error.type": "NotFoundError", "error.code": 404})
		}
	}
	idle(t, e)
}

func TestStoredResponsesAreBounded(t *testing.T) {
	var s responses
	for i := range 3 * maxResponses {
		s.put(&storedResponse{id: fmt.Sprint(i % (2 * maxResponses)), body: make([]byte, 10)})
	}
	if len(s.order) != maxResponses || len(s.byID) != maxResponses || s.bytes != 10*maxResponses {
		t.Errorf("%d, %d, %d bytes", len(s.order), len(s.byID), s.bytes)
	}
	if _, err := s.find("id", fmt.Sprint(maxResponses-1)); err != nil {
		t.Error(err)
	}
	big := make([]byte, maxResponseBytes/2)
	for i := range 3 {
		s.put(&storedResponse{id: fmt.Sprint("big", i), body: big})
	}
	if got := slices.Collect(func(yield func(string) bool) {
		for _, r := range s.order {
			yield(r.id)
		}
	}); !slices.Equal(got, []string{"big1", "big2"}) {
		t.Errorf("kept %v", got)
	}
	s.put(&storedResponse{id: "huge", body: make([]byte, maxResponseBytes+1)})
	if len(s.order) != 0 || s.bytes != 0 {
		t.Errorf("%d, %d bytes", len(s.order), s.bytes)
	}
}
