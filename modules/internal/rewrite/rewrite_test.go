package rewrite

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/usage"
)

// rewrite gives the pieces to a rewriter.
func rewrite(format usage.Format, o Options, pieces ...string) string {
	w := New(format, o)
	var out []byte
	for _, p := range pieces {
		out = w.Append(out, []byte(p))
	}
	return string(w.Finish(out))
}

// cuts calls f with body in two pieces, cut at every byte if it is short, in
// single bytes, and in random pieces.
func cuts(body string, f func(pieces ...string)) {
	step := 1
	if len(body) > 2000 {
		step = len(body) / 50
	}
	for i := 0; i <= len(body); i += step {
		f(body[:i], body[i:])
	}
	f(strings.Split(body, "")...)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		pieces, rest := []string{}, body
		for len(rest) > 0 {
			n := 1 + random.IntN(min(len(rest), 1+len(body)/4))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		f(pieces...)
	}
}

// check holds out against what becomes of in, however that is cut.
func check(t *testing.T, format usage.Format, o Options, in, want string) {
	t.Helper()
	if got := rewrite(format, o, in); got != want {
		t.Fatalf("whole: got\n%.500q, want\n%.500q", got, want)
	}
	cuts(in, func(pieces ...string) {
		if got := rewrite(format, o, pieces...); got != want {
			t.Fatalf("in %d pieces, the first %.100q: got\n%.500q, want\n%.500q", len(pieces), pieces[0], got, want)
		}
	})
}

// In these tests the name there is OLD, and the name OLD that must stay is KEPT.
func named(body string) (in, want string) {
	return strings.NewReplacer("OLD", `"Qwen/Qwen3-8B"`, "KEPT", `"Qwen/Qwen3-8B"`).Replace(body),
		strings.NewReplacer("OLD", `"chat \"1\"<é>"`, "KEPT", `"Qwen/Qwen3-8B"`).Replace(body)
}

var asked = Options{Model: `chat "1"<é>`}

// S14
func TestBody(t *testing.T) {
	long := `"` + strings.Repeat("m", maxValue-2) + `"`
	for _, tt := range []struct{ name, body string }{
		{"first", `{"model":OLD,"choices":[]}`},
		{"last", `{"choices":[{"x":1}], "model" : OLD }`},
		{"white space", "\t{\r\n \"model\" \n: \t OLD\n,\"x\" : 1.5e3 }\r\n"},
		{"twice", `{"model":OLD,"x":true,"model":OLD}`},
		{"escaped key", `{"\u006dod\u0065l":OLD,"mode\u006c":OLD,"m\u006F\u0064\u0065\u006c":OLD}`},
		{"other keys", `{"Model":KEPT,"model ":KEPT,"mode":KEPT,"models":KEPT,"":KEPT,"mod\u0065":KEPT,"mod\\u0065l":KEPT,"model\n":KEPT,"\u106dodel":KEPT}`},
		{"long keys", `{"` + strings.Repeat("model", 20) + `":KEPT,"` + strings.Repeat(`\u006d`, 9) + `":KEPT,"model":OLD}`},
		{"nested", `{"choices":[{"model":KEPT,"a":{"model":KEPT}}],"response":{"model":KEPT},"message":{"model":KEPT},"model":OLD}`},
		{"in strings", `{"a":"\"model\":\"x\"","b":"\\","c":"\\\"model\":","model":OLD,"d":["\"","\\"],"e":{"\"}":"]"}}`},
		{"as a value", `{"x":"model","y":["model",KEPT],"model":OLD}`},
		{"no strings", `{"model":null,"model":1,"model":["model",KEPT],"model":{"model":KEPT},"model":OLD}`},
		{"list", `[{"model":KEPT}]`},
		{"list of models", `{"object":"list","data":[{"id":"m","model":KEPT}],"model":OLD}`},
		{"string", `"model"`},
		{"empty object", `{}`},
		{"empty", ``},
		{"behind the end", `{"model":OLD}{"model":KEPT}`},
		{"longer than is held", `{"model":` + strings.Replace(long, "m", "mm", 1) + `,"model":OLD}`},
		{"deep", `{"a":` + strings.Repeat(`{"a":[`, 5000) + strings.Repeat(`]}`, 5000) + `,"model":OLD}`},
		{"broken before a member", `{"a":1,,"model":KEPT}`},
		{"broken key", `{model:KEPT,"model":KEPT}`},
		{"broken colon", `{"model" KEPT,"model":KEPT}`},
		{"broken value", `{"a":,"model":KEPT}`},
		{"broken number", `{"a":1"b","model":KEPT}`},
		{"broken end", `{"a":1],"model":KEPT}`},
		{"comma at the end", `{"a":1,},"model":KEPT}`},
		{"control in the value", "{\"model\":\"a\nb\",\"model\":KEPT}"},
		{"cut in the value", `{"model":"Qwen/Qw`},
		{"cut in an escape", `{"model":"Qwen\`},
		{"cut at the value", `{"model":"`},
		{"cut in the key", `{"mod`},
		{"error", "<html>\"model\":KEPT</html>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, want := named(tt.body)
			check(t, usage.JSON, asked, in, want)
			if got := rewrite(usage.JSON, Options{}, in); got != in {
				t.Errorf("with nothing to edit: got %q", got)
			}
		})
	}
	in := `{"model":` + long + `}`
	check(t, usage.JSON, Options{Model: "m"}, in, `{"model":"m"}`)
}

func TestEvents(t *testing.T) {
	for _, tt := range []struct{ name, body string }{
		{"chat", "data: {\"model\":OLD,\"choices\":[{\"model\":KEPT}]}\n\ndata:{\"choices\":[],\"model\":OLD}\n\ndata: [DONE]\n\n"},
		{"responses", "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"x\",\"model\":OLD,\"tools\":[{\"model\":KEPT}],\"response\":{\"model\":KEPT},\"message\":KEPT},\"model\":OLD}\n\n"},
		{"messages", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":OLD,\"usage\":{\"model\":KEPT}},\"delta\":{\"model\":KEPT}}\n\n"},
		{"response no object", "data: {\"response\":[{\"model\":KEPT}],\"message\":\"model\",\"model\":OLD}\n\n"},
		{"empty response", "data: {\"response\":{},\"message\":{\"model\":OLD}}\n\n"},
		{"other fields", ": {\"model\":KEPT}\nevent: {\"model\":KEPT}\nid: {\"model\":KEPT}\ndatas: {\"model\":KEPT}\n data: {\"model\":KEPT}\ndata\ndata {\"model\":KEPT}\n\n"},
		{"data over lines", "data: {\ndata:\"model\"\n: ping\ndata\ndata:  :\nevent: x\ndata: OLD ,\ndata:\"n\": 1\ndata: ,\"model\":OLD}\n\ndata: {\"model\":OLD}\n\n"},
		{"string over lines", "data: {\"model\":\"a\ndata: \",\"model\":KEPT}\n\ndata: {\"x\":\"a\ndata: \",\"model\":KEPT}\n\ndata: {\"x\":{\"a\ndata: \"},\"model\":KEPT}\n\ndata: {\"mo\ndata: del\":KEPT,\"model\":KEPT}\n\ndata: {\"model\":OLD}\n\n"},
		{"broken event", "data: {\"a\":\"\n\ndata: {\"model\":OLD}\n\ndata: {\"a\":[\n\ndata: {\"model\":OLD}\n\ndata: oops\n\ndata: {\"model\":OLD}\n\n"},
		{"no blank lines", "data: {\"model\":OLD}\ndata: {\"model\":OLD}\ndata: [DONE]\n"},
		{"behind the end", "data: {\"model\":OLD}{\"model\":KEPT}\n\n"},
		{"cut", "data: {\"model\":OLD}\n\ndata: {\"model\":\"Qw"},
		{"cut in the field", "data: {\"model\":OLD}\n\ndat"},
		{"long", "data: {\"x\":\"" + strings.Repeat("iVBORw0KGgo", 6500) + "\",\"model\":OLD}\n\ndata: {\"model\":OLD}\n\n"},
	} {
		for end, name := range map[string]string{"\n": "LF", "\r\n": "CRLF", "\r": "CR"} {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				in, want := named(strings.ReplaceAll(tt.body, "\n", end))
				check(t, usage.Events, asked, in, want)
				hides := asked
				hides.HideUsage = true
				check(t, usage.Events, hides, in, want)
			})
		}
	}
}

func TestLines(t *testing.T) {
	in, want := named("{\"model\":OLD,\"message\":{\"model\":KEPT}}\r\n\n{\"x\":\"\\\n{\"model\":OLD}{\"model\":KEPT}\n{\"model\":\"a\n[{\"model\":KEPT}]\n{\"done\":true,\"model\":OLD}")
	check(t, usage.Lines, asked, in, want)
}

// S4: what the client did not ask for does not reach it.
func TestHideUsage(t *testing.T) {
	chunk := "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"choices\\\":[]\"}}],\"usage\":null}\n\n"
	extra := "data: {\"id\":\"x\",\"choices\": [ ],\"usage\":{\"prompt_tokens\":12}}\n\n"
	tests := []struct{ name, in, want string }{
		{"chat", chunk + extra + "data: [DONE]\n\n", chunk + "data: [DONE]\n\n"},
		{"first", extra + chunk, chunk},
		{"alone", extra, ""},
		{"with other fields", chunk + ": ping\nevent: x\n" + strings.TrimSuffix(extra, "\n") + "id: 7\n\n" + chunk, chunk + chunk},
		{"over lines", chunk + "data: {\"choices\":\ndata: [\ndata:\ndata: ]\n:\ndata: ,\"usage\":{}}\n\n" + chunk, chunk + chunk},
		{"no blank line at the end", chunk + strings.TrimSuffix(extra, "\n"), chunk},
		{"no line end at the end", chunk + strings.TrimSuffix(extra, "\n\n"), chunk},
	}
	for _, same := range []string{
		chunk,
		"data: {\"choices\":[],\"usage\":null}\n\n",
		"data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
		"data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":1}}\n\n",
		"data: {\"choices\":null,\"usage\":{\"prompt_tokens\":1}}\n\n",
		"data: {\"x\":{\"choices\":[],\"usage\":{}}}\n\n",
		"data: {\"choices\":[],\"usage\":{}\n\n",
		"data: {\"usage\":{}}\n\n",
		"choices: {\"choices\":[],\"usage\":{}}\n\n",
		": ping\n\n\n\n",
		"data: {\"choices\":[],\"usage\":{},\"x\":\"" + strings.Repeat("x", maxHeld) + "\"}\n\n",
	} {
		tests = append(tests, struct{ name, in, want string }{fmt.Sprintf("stays: %.40s", same), same + extra + same, same + same})
	}
	for _, tt := range tests {
		for end, name := range map[string]string{"\n": "LF", "\r\n": "CRLF", "\r": "CR"} {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				check(t, usage.Events, Options{HideUsage: true}, strings.ReplaceAll(tt.in, "\n", end), strings.ReplaceAll(tt.want, "\n", end))
			})
		}
	}
	if in := `{"choices":[],"usage":{}}`; rewrite(usage.JSON, Options{HideUsage: true}, in) != in {
		t.Error("a JSON body is no event")
	}
}

// S6: nothing is held that is decided.
func TestNothingIsHeld(t *testing.T) {
	chunk := []byte("data: {\"model\":\"m\",\"choices\":[{}]}\n\n")
	want := "data: {\"model\":\"new\",\"choices\":[{}]}\n\n"
	for _, hide := range []bool{false, true} {
		w := New(usage.Events, Options{Model: "new", HideUsage: hide})
		for range 3 {
			if got := string(w.Append(nil, chunk)); got != want {
				t.Errorf("hide %v: got %q", hide, got)
			}
		}
	}
	w := New(usage.JSON, Options{Model: "new"})
	out := ""
	for _, c := range `{"mod":"m","model" : "m","x":[1` {
		before := len(out)
		out += string(w.Append(nil, []byte(string(c))))
		if inValue := w.document.state == inModel; len(out) == before && !inValue {
			t.Errorf("%q is held behind %q", c, out)
		}
	}
	w = New(usage.Events, Options{HideUsage: true})
	long := bytes.Repeat([]byte("data: x\n"), maxHeld/8)
	if got := w.Append(nil, long); len(got) != 0 {
		t.Errorf("%d bytes of an event are shown", len(got))
	}
	if got := w.Append(nil, []byte("d")); len(got) != maxHeld+1 {
		t.Errorf("%d bytes of a long event are shown", len(got))
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	chunk := []byte(event)
	dst := make([]byte, 0, 4096)
	for _, hide := range []bool{false, true} {
		for _, cut := range []int{10, 103, len(chunk)} {
			w := New(usage.Events, Options{Model: "new", HideUsage: hide})
			n := testing.AllocsPerRun(100, func() {
				dst = w.Append(dst[:0], chunk[:cut])
				dst = w.Append(dst, chunk[cut:])
			})
			if n != 0 {
				t.Errorf("hide %v, cut %d: %v allocations", hide, cut, n)
			}
		}
	}
}

// A document is the same but for the model, and all of them at the top.
func sameButModel(t *testing.T, in, out []byte) {
	t.Helper()
	var a, b map[string]any
	if json.Unmarshal(in, &a) != nil || a == nil {
		return
	}
	if err := json.Unmarshal(out, &b); err != nil {
		t.Fatalf("%q became %q: %v", in, out, err)
	}
	if model, ok := a["model"].(string); ok && len(model) < maxValue/6 { // its spelling, too, is short enough
		a["model"] = "new"
	} else if ok {
		b["model"] = a["model"]
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("%q became %q", in, out)
	}
}

// unchanged reports whether all of out but the new names stands in in.
func unchanged(in, out string) bool {
	for part := range strings.SplitSeq(out, `"new"`) {
		i := strings.Index(in, part)
		if i < 0 {
			return false
		}
		in = in[i+len(part):]
	}
	return true
}

func FuzzRewriter(f *testing.F) {
	for _, body := range []string{
		`{"model":"a","x":[{"model":"b"}],"mod\u0065l":"c\"","y":"\\"}`, `{"a":"\\\"","model":null,"model":"x"}`, `{"response":{"model":"a"}}`,
		"data: {\"model\":\"a\",\"response\":{\"model\":\"b\"}}\r\n\r\ndata:{\"choices\":[],\"usage\":{}}\r\rdata: [DONE]\n\n",
		"{\"model\":\"a\"}\n{\"model\":\"b\"}\n",
	} {
		for format := range byte(3) {
			f.Add([]byte(body), format, 9, 30, true)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, format byte, a, b int, hide bool) {
		a = min(max(a, 0), len(body))
		b = min(max(b, a), len(body))
		in, kind, o := string(body), usage.Format(format%3), Options{Model: "new", HideUsage: hide}
		out := rewrite(kind, o, in)
		if parts := rewrite(kind, o, in[:a], in[a:b], in[b:]); parts != out {
			t.Fatalf("%q\nwhole    %q\nin parts %q", in, out, parts)
		}
		if kind == usage.JSON {
			sameButModel(t, body, []byte(out))
		}
		if !hide || kind != usage.Events {
			if !unchanged(in, out) {
				t.Fatalf("%q became %q", in, out)
			}
			if !strings.Contains(in, `\u`) && !strings.Contains(in, `"model"`) && in != out {
				t.Fatalf("%q became %q", in, out)
			}
		}
		if same := rewrite(kind, Options{}, in); same != in {
			t.Fatalf("with nothing to edit, %q became %q", in, same)
		}
	})
}

// Random documents, with names and escapes that are near to what matters.
func TestRandomDocuments(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	keys := []string{`"model"`, `"mod\u0065l"`, `"models"`, `"response"`, `"message"`, `"\"model"`, `"x"`, `"\\"`}
	var document func(depth int) string
	document = func(depth int) string {
		switch n := r.IntN(8); {
		case depth == 0 || n < 3 && depth < 4:
			var b strings.Builder
			b.WriteString(`{ `)
			for i := range r.IntN(5) {
				if i > 0 {
					b.WriteString(`, `)
				}
				b.WriteString(keys[r.IntN(len(keys))] + ` : ` + document(depth+1))
			}
			return b.String() + `}`
		case n < 4 && depth < 4:
			return `[` + document(depth+1) + `,` + document(depth+1) + `]`
		case n < 6:
			return []string{`"a"`, `"\""`, `"\\"`, `"\\\""`, `"\"model\":\"x\""`, `""`, `"é\u00e9"`}[r.IntN(7)]
		}
		return []string{`1`, `-1.5e+3`, `null`, `true`, `{}`, `[]`}[r.IntN(6)]
	}
	for range 5_000 {
		in := document(0)
		out := rewrite(usage.JSON, Options{Model: "new"}, in)
		sameButModel(t, []byte(in), []byte(out))
		at := r.IntN(len(in))
		if parts := rewrite(usage.JSON, Options{Model: "new"}, in[:at], in[at:]); parts != out {
			t.Fatalf("%q cut at %d: got %q, want %q", in, at, parts, out)
		}
	}
}

// event is an event of about 300 bytes.
const event = `data: {"id":"chatcmpl-7f1d0c5e8a","object":"chat.completion.chunk","created":1760000000,"model":"Qwen/Qwen3-8B","choices":[{"index":0,"delta":{"role":"assistant","content":" a few words of an answer","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"

func BenchmarkEvent(b *testing.B) {
	for _, o := range []struct {
		name string
		Options
	}{{"model", Options{Model: "chat"}}, {"usage", Options{HideUsage: true}}, {"both", Options{Model: "chat", HideUsage: true}}} {
		b.Run(o.name, func(b *testing.B) {
			w, p := New(usage.Events, o.Options), []byte(event)
			dst := make([]byte, 0, 1024)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				dst = w.Append(dst[:0], p)
			}
		})
	}
}

func BenchmarkBody(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, bb := range []struct{ name, unit string }{
		{"prose", "some words of an answer that goes on, and then \\\"ends\\\" here.\\n"},
		{"code", "\\tif x := m[\\\"key\\\"]; x != nil {\\n"},
	} {
		var text strings.Builder
		for text.Len() < 100<<10 {
			text.WriteString(bb.unit)
		}
		p := []byte(`{"id":"1","model":"Qwen/Qwen3-8B","choices":[{"index":0,"message":{"role":"assistant","content":"` + text.String() + `"}}],"usage":{"prompt_tokens":5}}`)
		benchmarkBody(b, bb.name, p)
	}
	vector := make([]float64, 10_000)
	for i := range vector {
		vector[i] = r.NormFloat64()
	}
	list, _ := json.Marshal(map[string]any{"model": "m", "data": []any{map[string]any{"embedding": vector}}})
	benchmarkBody(b, "embedding", list)
}

func benchmarkBody(b *testing.B, name string, p []byte) {
	b.Run(name, func(b *testing.B) {
		dst := make([]byte, 0, 2*len(p))
		b.SetBytes(int64(len(p)))
		b.ReportAllocs()
		for b.Loop() {
			w := New(usage.JSON, Options{Model: "chat"})
			dst = w.Finish(w.Append(dst[:0], p))
		}
	})
}
