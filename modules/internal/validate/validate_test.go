package validate

import (
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

func scan(t testing.TB, body string) *openai.Doc {
	t.Helper()
	d := new(openai.Doc)
	if err := d.Scan([]byte(body)); err != nil {
		t.Fatalf("%.80q: %v", body, err)
	}
	return d
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
	embeddingPath  = "/v1/embeddings"
)

// B8, B13: what OpenAI takes passes, and so does what vendors add.
func TestPasses(t *testing.T) {
	message := func(s string) string { return `{"messages":[` + s + `]}` }
	with := func(s string) string { return `{"messages":[{"role":"user","content":"x"}],` + s + `}` }
	prompt := func(s string) string { return `{"prompt":` + s + `}` }
	for path, bodies := range map[string][]string{
		chatPath: {
			message(`{"role":"user","content":"x"}`),
			message(`{"role":"user","content":""}`),
			message(`{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:"}},{"type":"video_url"}]}`),
			message(`{"role":"system","content":"x"},{"role":"developer","content":"x"},{"role":"user","content":"x","name":"n"}`),
			message(`{"role":"assistant","content":null,"tool_calls":[]},{"role":"tool","content":"x","tool_call_id":"y"}`),
			message(`{"role":"assistant","tool_calls":[{}]},{"role":"function","content":null,"name":"f"}`),
			message(`{"role":"assistant","reasoning_content":"x"}`),
			message(`{"r\u006fle":"us\u0065r","content":"x"}`),
			message(`{"role":7,"role":"user","content":"x"}`),
			with(`"temperature":0`), with(`"temperature":2`), with(`"temperature":2.0`), with(`"temperature":0.7e0`), with(`"temperature":null`), with(`"temperature":5,"temperature":1`),
			with(`"top_p":1,"n":1,"n":null`), with(`"n":128`), with(`"n":1.0`), with(`"frequency_penalty":-2,"presence_penalty":2`),
			with(`"max_tokens":1`), with(`"max_tokens":null`), with(`"max_completion_tokens":1e3`), with(`"max_tokens":99999999999999999999`),
			with(`"stream":true`), with(`"stream":null,"stream_options":null`), with(`"stream":false,"stream_options":{}`),
			with(`"stop":null`), with(`"stop":"x"`), with(`"stop":[]`), with(`"stop":["a","b","c","d"]`),
			with(`"tools":[]`), with(`"tools":null`), with(`"tools":[{"type":"function","function":{"name":"f"}},{"type":"vendor"}]`),
			with(`"top_k":-1,"guided_json":{},"chat_template_kwargs":{"a":[1]}`),
			with(`"x":{"temperature":9,"stop":9}`),
		},
		"/base/v1/completions": {prompt(`"x"`)},
		completionPath: {
			prompt(`""`), prompt(`"x"`), prompt(`["a","b"]`), prompt(`[1,2,3]`), prompt(`[[1,2],[3]]`), prompt(`null`), prompt(`[0]`),
			`{"prompt_embeds":"x"}`, `{"prompt":"x","max_tokens":0}`, `{"prompt":"x","suffix":9}`,
		},
		embeddingPath: {
			`{"input":"x"}`, `{"input":""}`, `{"input":["a","b"]}`, `{"input":[1,2]}`, `{"input":[[1],[2,3]]}`,
			`{"input":"x","dimensions":1,"encoding_format":"base64"}`, `{"messages":[]}`,
		},
		"/v1/responses": {`{}`}, "/v1/messages": {`{"max_tokens":"x"}`}, "/api/chat": {`{"messages":1}`}, "": {`{}`}, "/v1/completions/x": {`{}`},
	} {
		for _, body := range bodies {
			if r := Request(path, scan(t, body)); r != nil {
				t.Errorf("%s %s: %s", path, body, r.Message)
			}
		}
	}
}

func TestRefuses(t *testing.T) {
	message := func(s string) string { return `{"messages":[{"role":"user","content":"x"},` + s + `]}` }
	with := func(s string) string { return `{"messages":[{"role":"user","content":"x"}],` + s + `}` }
	tests := []struct{ path, body, code, param string }{
		{chatPath, `{}`, codeMissing, "messages"},
		{chatPath, `{"messages":null}`, codeType, "messages"},
		{chatPath, `{"messages":"x"}`, codeType, "messages"},
		{chatPath, `{"messages":{}}`, codeType, "messages"},
		{chatPath, `{"messages":[]}`, codeValue, "messages"},
		{chatPath, `{"messages":[ ]}`, codeValue, "messages"},
		{chatPath, message(`"x"`), codeType, "messages[1]"},
		{chatPath, message(`null`), codeType, "messages[1]"},
		{chatPath, message(`{}`), codeMissing, "messages[1].role"},
		{chatPath, message(`{"role":1,"content":"x"}`), codeType, "messages[1].role"},
		{chatPath, message(`{"role":null,"content":"x"}`), codeType, "messages[1].role"},
		{chatPath, message(`{"role":"User","content":"x"}`), codeValue, "messages[1].role"},
		{chatPath, message(`{"role":"","content":"x"}`), codeValue, "messages[1].role"},
		{chatPath, message(`{"role":"` + strings.Repeat("user", 9999) + `","content":"x"}`), codeValue, "messages[1].role"},
		{chatPath, message(`{"role":"user"}`), codeMissing, "messages[1].content"},
		{chatPath, message(`{"role":"tool"}`), codeMissing, "messages[1].content"},
		{chatPath, message(`{"role":"user","content":null}`), codeType, "messages[1].content"},
		{chatPath, message(`{"role":"user","content":1}`), codeType, "messages[1].content"},
		{chatPath, message(`{"role":"user","content":{}}`), codeType, "messages[1].content"},
		{chatPath, message(`{"role":"assistant","content":true}`), codeType, "messages[1].content"},
		{chatPath, message(`{"role":"user","content":[]}`), codeValue, "messages[1].content"},
		{chatPath, message(`{"role":"user","content":["x"]}`), codeType, "messages[1].content[0]"},
		{chatPath, message(`{"role":"user","content":[{"type":"text"},{"text":"x"}]}`), codeMissing, "messages[1].content[1].type"},
		{chatPath, message(`{"role":"user","content":[{"type":1}]}`), codeType, "messages[1].content[0].type"},
		{chatPath, with(`"temperature":-0.1`), codeValue, "temperature"},
		{chatPath, with(`"temperature":2.0000001`), codeValue, "temperature"},
		{chatPath, with(`"temperature":"1"`), codeType, "temperature"},
		{chatPath, with(`"temperature":hot`), codeType, "temperature"},
		{chatPath, with(`"temperature":1,"temperature":1e400`), codeValue, "temperature"},
		{chatPath, with(`"temp\u0065rature":3`), codeValue, "temperature"},
		{chatPath, with(strings.Repeat(`"x":1,`, 99) + `"top_p":1.5`), codeValue, "top_p"},
		{chatPath, with(`"presence_penalty":-3`), codeValue, "presence_penalty"},
		{chatPath, with(`"frequency_penalty":[]`), codeType, "frequency_penalty"},
		{chatPath, with(`"n":0`), codeValue, "n"},
		{chatPath, with(`"n":1.5`), codeType, "n"},
		{chatPath, with(`"max_tokens":0`), codeValue, "max_tokens"},
		{chatPath, with(`"max_tokens":-1`), codeValue, "max_tokens"},
		{chatPath, with(`"max_tokens":"50"`), codeType, "max_tokens"},
		{chatPath, with(`"max_completion_tokens":0.5`), codeType, "max_completion_tokens"},
		{chatPath, with(`"stream":"true"`), codeType, "stream"},
		{chatPath, with(`"stream":1`), codeType, "stream"},
		{chatPath, with(`"stream":tru`), codeType, "stream"},
		{chatPath, with(`"stream_options":[]`), codeType, "stream_options"},
		{chatPath, with(`"stop":1`), codeType, "stop"},
		{chatPath, with(`"stop":["a",1]`), codeType, "stop[1]"},
		{chatPath, with(`"stop":["a","b","c","d","e"]`), codeValue, "stop"},
		{chatPath, with(`"tools":{}`), codeType, "tools"},
		{chatPath, with(`"tools":["f"]`), codeType, "tools[0]"},
		{chatPath, with(`"tools":[{"type":"function"},{"function":{}}]`), codeMissing, "tools[1].type"},
		{"/base" + chatPath, `{}`, codeMissing, "messages"},
		{completionPath, `{}`, codeMissing, "prompt"},
		{completionPath, `{"prompt":1}`, codeType, "prompt"},
		{completionPath, `{"prompt":{}}`, codeType, "prompt"},
		{completionPath, `{"prompt":[]}`, codeValue, "prompt"},
		{completionPath, `{"prompt":[null]}`, codeType, "prompt[0]"},
		{completionPath, `{"prompt":[{}]}`, codeType, "prompt[0]"},
		{completionPath, `{"prompt":["a",1]}`, codeType, "prompt[1]"},
		{completionPath, `{"prompt":[1,"a"]}`, codeType, "prompt[1]"},
		{completionPath, `{"prompt":[1,-1]}`, codeValue, "prompt[1]"},
		{completionPath, `{"prompt":[1.5]}`, codeValue, "prompt[0]"},
		{completionPath, `{"prompt":[[1],["a"]]}`, codeType, "prompt[1][0]"},
		{completionPath, `{"prompt":[[1],[]]}`, codeValue, "prompt[1]"},
		{completionPath, `{"prompt":[[1],2]}`, codeType, "prompt[1]"},
		{completionPath, `{"prompt":[[[1]]]}`, codeType, "prompt[0][0]"},
		{completionPath, `{"prompt":"x","max_tokens":-1}`, codeValue, "max_tokens"},
		{embeddingPath, `{}`, codeMissing, "input"},
		{embeddingPath, `{"input":null}`, codeType, "input"},
		{embeddingPath, `{"input":[]}`, codeValue, "input"},
		{embeddingPath, `{"input":true}`, codeType, "input"},
		{embeddingPath, `{"input":"x","dimensions":0}`, codeValue, "dimensions"},
		{embeddingPath, `{"input":"x","encoding_format":1}`, codeType, "encoding_format"},
	}
	for _, tt := range tests {
		t.Run(tt.path+" "+tt.body[:min(len(tt.body), 100)], func(t *testing.T) {
			r := Request(tt.path, scan(t, tt.body))
			if r == nil {
				t.Fatal("passes")
			}
			if r.Status != 400 || r.Type != "invalid_request_error" || r.Code != tt.code || r.Param != tt.param {
				t.Errorf("%+v", r)
			}
			if !strings.HasPrefix(r.Message, tt.param+" ") || len(r.Message) > 200 {
				t.Errorf("message %q", r.Message)
			}
		})
	}
}

// What a client may send takes linear time, and nothing is kept of it.
func TestHostile(t *testing.T) {
	const size = 1 << 20
	for name, body := range map[string]string{
		"deep prompt":   `{"messages":` + strings.Repeat(`[`, size) + strings.Repeat(`]`, size) + `}`,
		"deep objects":  `{"messages":[` + strings.Repeat(`{"a":`, size/5) + `1` + strings.Repeat(`}`, size/5) + `]}`,
		"many messages": `{"messages":[` + strings.Repeat(`{"role":"user","content":""},`, size/30) + `{}]}`,
		"many parts":    `{"messages":[{"role":"user","content":[` + strings.Repeat(`{"type":""},`, size/12) + `{}]}]}`,
		"many members":  `{` + strings.Repeat(`"a":1,`, size/6) + `"messages":1}`,
		"many tokens":   `{"messages":1,"prompt":[` + strings.Repeat(`1,`, size/2) + `1]}`,
		"long number":   `{"messages":1,"prompt":[` + strings.Repeat(`1`, size) + `]}`,
		"escaped keys":  `{` + strings.Repeat(`"\u0061":1,`, size/11) + `"messages":1}`,
	} {
		d := scan(t, body)
		begin := time.Now()
		if Request(chatPath, d) == nil {
			t.Errorf("%s passes", name)
		}
		Request(completionPath, d)
		Request(embeddingPath, d)
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	d := scan(t, `{"messages":[`+strings.Repeat(`{"role":"user","content":[{"type":"text","text":""}]},`, 1000)+`{"role":"user","content":""}],"stop":["a"],"tools":[{"type":"f"}]}`)
	if n := testing.AllocsPerRun(10, func() { Request(chatPath, d) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzRequest: nothing panics, and every refusal says what it is about.
func FuzzRequest(f *testing.F) {
	f.Add(`{"messages":[{"role":"user","content":[{"type":"text"}]}],"stop":["a"],"n":1}`)
	f.Add(`{"prompt":[[1],[2]],"input":["a"],"tools":[{"type":"f"}]}`)
	f.Add(`{"messages":[{]}`)
	f.Fuzz(func(t *testing.T, body string) {
		var d openai.Doc
		if d.Scan([]byte(body)) != nil {
			return
		}
		for _, path := range []string{chatPath, completionPath, embeddingPath} {
			if r := Request(path, &d); r != nil && (r.Param == "" || r.Code == "" || len(r.Message) > 400) {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	text := strings.Repeat(`some words of a text, about one line \n`, 30)
	d := scan(b, `{"model":"m","temperature":0.5,"messages":[`+strings.Repeat(`{"role":"user","content":"`+text+`"},`, 100)+`{"role":"user","content":"x"}]}`)
	b.SetBytes(int64(len(d.Body())))
	b.ReportAllocs()
	for b.Loop() {
		if r := Request(chatPath, d); r != nil {
			b.Fatal(r)
		}
	}
}
