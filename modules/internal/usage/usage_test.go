package usage

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// found is all that a reader found.
type found struct {
	Tokens
	finish, id string
}

// read gives the pieces to a reader, the last one to End.
func read(format Format, encoding string, pieces ...string) found {
	r := Reader{Format: format, Encoding: encoding, WantID: true}
	for _, p := range pieces[:len(pieces)-1] {
		r.Feed([]byte(p))
	}
	r.End([]byte(pieces[len(pieces)-1]))
	return found{r.Tokens(), r.Finish(), r.ID()}
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
	f(append(strings.Split(body, ""), "")...)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		pieces, rest := []string{}, body
		for len(rest) > 0 {
			n := 1 + random.IntN(min(len(rest), 1+len(body)/4))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		f(append(pieces, "")...)
	}
}

const chatStream = "data: {\"choices\":[{\"delta\":{\"content\":\"né\"}}],\"usage\":null}\n\n: ping\n\n" +
	"data:{\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n"

const responsesStream = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"object\":\"response\",\"usage\":null}}\n\n" +
	"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"\\\"usage\\\":{\\\"input_tokens\\\":1}\"}\n\n" +
	"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":9,\"output_tokens\":2},\"metadata\":{\"usage\":\"none\"}}}\n\n"

const messagesStream = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":7,\"output_tokens\":1}}}\n\n" +
	"event: ping\ndata: {\"type\":\"ping\"}\n\n" +
	"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"

const ollamaStream = `{"model":"m","message":{"content":"\"eval_count\":1"},"done":false}` + "\n" +
	`{"model":"m","message":{"content":""},"done":true,"prompt_eval_count":26,"prompt_eval_duration":1,"eval_count":298,"eval_duration":5}` + "\n"

// S1: the same however the body is cut into pieces.
func TestFraming(t *testing.T) {
	chat := found{Tokens: Tokens{Prompt: 12, Completion: 3, Cached: 8, Known: true, CachedKnown: true}}
	responses := found{Tokens: Tokens{Prompt: 9, Completion: 2, Known: true}, id: "resp_1"}
	messages := found{Tokens: Tokens{Prompt: 25, Completion: 15, Cached: 7, Known: true, CachedKnown: true}}
	ollama := found{Tokens: Tokens{Prompt: 26, Completion: 298, Known: true}}
	tests := []struct {
		name   string
		format Format
		body   string
		want   found
	}{
		{"chat", Events, chatStream, chat},
		{"CRLF", Events, strings.ReplaceAll(chatStream, "\n", "\r\n"), chat},
		{"CR", Events, strings.ReplaceAll(chatStream, "\n", "\r"), chat},
		{"mixed ends", Events, strings.Replace(strings.ReplaceAll(chatStream, "\n", "\r\n"), "\r\n", "\r", 3), chat},
		{"no end", Events, strings.TrimRight(strings.TrimSuffix(chatStream, "data: [DONE]\n\n"), "\n"), chat},
		{"no blank lines", Events, strings.ReplaceAll(chatStream, "\n\n", "\n"), chat},
		{"data over lines", Events, strings.ReplaceAll(chatStream, `,"usage":{`, ",\ndata:\"usage\"\n: ping\ndata: :\ndata: {\r\ndata:"), chat},
		{"responses", Events, responsesStream, responses},
		{"responses over lines", Events, strings.ReplaceAll(responsesStream, `"response":`, "\ndata:\"response\":\r\ndata:"), responses},
		{"messages", Events, messagesStream, messages},
		{"Ollama", Lines, ollamaStream, ollama},
		{"Ollama, CRLF, no end", Lines, strings.TrimSuffix(strings.ReplaceAll(ollamaStream, "\n", "\r\n"), "\r\n"), ollama},
		{"Ollama, one line", JSON, strings.Split(ollamaStream, "\n")[1], ollama},
		{"completion", JSON, ` {"object":"text_completion","id":"cmpl-1","choices":[{"text":"a","finish_reason":"stop"},{"finish_reason":"length"}],"usage" : {"prompt_tokens":5}}`,
			found{Tokens: Tokens{Prompt: 5, Known: true}, finish: "stop"}},
		{"response", JSON, `{"id":"resp_2","object":"response","output":[{"id":"no"}],"usage":{"input_tokens":5,"output_tokens":2,"input_tokens_details":{"cached_tokens":0}},"metadata":{"usage":"x"}}`,
			found{Tokens: Tokens{Prompt: 5, Completion: 2, Known: true, CachedKnown: true}, id: "resp_2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := read(tt.format, "", tt.body); got != tt.want {
				t.Fatalf("whole: got %+v, want %+v", got, tt.want)
			}
			cuts(tt.body, func(pieces ...string) {
				if got := read(tt.format, "", pieces...); got != tt.want {
					t.Fatalf("in pieces %q: got %+v", pieces, got)
				}
			})
		})
	}
}

// The caller binds the id when the first event is there.
func TestIDAtOnce(t *testing.T) {
	first, rest, _ := strings.Cut(responsesStream, "\n\n")
	r := Reader{Format: Events, WantID: true}
	defer r.Close()
	r.Feed([]byte(first + "\n"))
	if got := r.ID(); got != "resp_1" {
		t.Errorf("after the first event: got %q", got)
	}
	r.Feed([]byte(strings.ReplaceAll("\n"+rest, "resp_1", "resp_2")))
	if got := r.ID(); got != "resp_1" {
		t.Errorf("later: got %q", got)
	}
}

func TestIDOddities(t *testing.T) {
	for _, tt := range []struct{ body, want string }{
		{`{"object":"response","id":"` + strings.Repeat("r", 256) + `"}`, strings.Repeat("r", 256)},
		{`{"object":"response","id":"` + strings.Repeat("r", 257) + `"}`, ""},
		{`{"object":"response","id":7}`, ""},
		{`{"object":"chat.completion","id":"chatcmpl-1"}`, ""},
		{`{"response":{"id":"resp_1","object":"response"}}`, ""},
		{`{"id":"resp_1","object":"response","x":"` + strings.Repeat("x", 3<<20) + `"}`, "resp_1"},
	} {
		if got := read(JSON, "", tt.body).id; got != tt.want {
			t.Errorf("%.60s: got %.60q", tt.body, got)
		}
	}
	r := Reader{}
	if r.End([]byte(`{"id":"resp_1","object":"response"}`)); r.ID() != "" {
		t.Error("an id that was not asked for")
	}
}

func TestFinish(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	for _, tt := range []struct{ body, want string }{
		{`{"choices":[{"finish_reason":"tool_calls"}]}`, "tool_calls"},
		{`{"choices":[{"finish_reason":"odd one"}]}`, ""},
		{`{"choices":[{"finish_reason":"a\r\nX-Evil: 1"}]}`, ""},
		{`{"choices":[{"finish_reason":"` + long + `"}]}`, ""},
		{`{"choices":[{"finish_reason":null}]}`, ""},
		{`{"choices":[]}`, ""},
		{`{"choices":[{"message":{"content":"\"finish_reason\":\"stop\""}}]}`, ""},
		{`{"choices":[{"text":"` + long + `","finish_reason":"length"}],"usage":{}}`, "length"},
		{`{"choices":[{"finish_reason":"eos","text":"` + long + `"},{"finish_reason":"length"}]}`, "eos"},
	} {
		if got := read(JSON, "", tt.body).finish; got != tt.want {
			t.Errorf("%.60s: got %q, want %q", tt.body, got, tt.want)
		}
	}
	if got := read(Events, "", `data: {"choices":[{"finish_reason":"stop"}]}`+"\n\n").finish; got != "" {
		t.Errorf("of a stream: got %q", got)
	}
}

// S7: odd usage harms nothing, neither in a body nor in the last event.
func TestOddUsage(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	objects := strings.Repeat(`{"usage":`, 5000)
	tests := []struct {
		name, body string
		want       Tokens
	}{
		{"in a string", `{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`, Tokens{Prompt: 5, Completion: 1, Known: true}},
		{"nothing behind it", `{"usage":{"prompt_tokens":5},"completion_tokens":9}`, Tokens{Prompt: 5, Known: true}},
		{"brackets in strings", `{"usage":{"x":"}\"]","prompt_tokens":5}}`, Tokens{Prompt: 5, Known: true}},
		{"string", `{"usage":"oops"}`, Tokens{}},
		{"string, after a true one", `{"usage":{"prompt_tokens":5},"metadata":{"usage":"oops"}}`, Tokens{Prompt: 5, Known: true}},
		{"null", `{"usage":null}`, Tokens{}},
		{"array", `{"usage":[]}`, Tokens{}},
		{"array of numbers", `{"usage":[{"prompt_tokens":1}]}`, Tokens{}},
		{"number as string", `{"usage":{"prompt_tokens":"1024"}}`, Tokens{}},
		{"negative", `{"usage":{"prompt_tokens":-5}}`, Tokens{}},
		{"huge", `{"usage":{"prompt_tokens":1e400}}`, Tokens{}},
		{"no number", `{"usage":{"prompt_tokens":nan}}`, Tokens{}},
		{"details no object", `{"usage":{"prompt_tokens":3,"prompt_tokens_details":0}}`, Tokens{Prompt: 3, Known: true}},
		{"more cached than there are", `{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":9}}}`, Tokens{Prompt: 3, Cached: 3, Known: true, CachedKnown: true}},
		{"deep", `{"usage":` + deep + `}`, Tokens{}},
		{"deep within", `{"usage":{"x":` + deep + `,"prompt_tokens":3}}`, Tokens{Prompt: 3, Known: true}},
		{"deep usages", objects + `{"prompt_tokens":3}` + strings.Repeat(`}`, 5000), Tokens{Prompt: 3, Known: true}},
		{"no JSON", `usage`, Tokens{}},
		{"no value", `{"usage"`, Tokens{}},
		{"broken", `{"usage":{`, Tokens{}},
		{"broken in the middle", `{"usage":{"prompt_tokens":3,`, Tokens{}},
		{"empty", ``, Tokens{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := read(JSON, "", tt.body).Tokens; got != tt.want {
				t.Errorf("body: got %+v, want %+v", got, tt.want)
			}
			if got := read(Events, "", "data: {}\n\ndata: "+tt.body+"\n\ndata: [DONE]\n\n").Tokens; got != tt.want {
				t.Errorf("event: got %+v, want %+v", got, tt.want)
			}
		})
	}
	for _, body := range []string{
		`{"eval_count":"7"}`, `{"eval_count":-7}`, `{"eval_count":1e400}`, `{"eval_count":{"eval_count":null}}`, `{"eval_count"`, `{"eval_count":`,
		`{"prompt_eval_count":` + deep + `}`, `{"x":"\"eval_count\":7"}`,
	} {
		if got := read(Lines, "", body+"\n").Tokens; got != (Tokens{}) {
			t.Errorf("%.60s: got %+v", body, got)
		}
	}
}

// A long line is no obstacle, nor is it kept.
func TestLongLine(t *testing.T) {
	image := strings.Repeat("iVBORw0K", 3<<20/8)
	id := found{id: "resp_1"}
	usage := found{Tokens: Tokens{Prompt: 12, Completion: 3, Cached: 8, Known: true, CachedKnown: true}}
	inLine := found{Tokens: Tokens{Prompt: 4, Known: true}, id: "resp_1"}
	tests := []struct {
		name   string
		format Format
		body   string
		want   found
	}{
		{"before", Events, "data: {\"x\":\"" + image + "\"}\n\n" + chatStream, usage},
		{"comment before", Events, ": \"usage\":{\"prompt_tokens\":1} " + image + "\"usage\":{\"prompt_tokens\":1}\n\n" + chatStream, usage},
		{"itself", Events, `data: {"response":{"id":"resp_1","x":"` + image + `","usage":{"input_tokens":4}}}` + "\n\n", inLine},
		{"itself, over lines", Events, `data: {"response":{"id":"resp_1","x":"` + image[:100<<10] + "\"\ndata: ,\"y\":\"" + image[:100<<10] + "\"\ndata:,\"usage\":{\"input_tokens\":4}}}\n\n", inLine},
		{"without end", Events, `data: {"response":{"id":"resp_1","x":"` + image, id},
		{"line", Lines, `{"x":"` + image + "\"}\n" + ollamaStream, found{Tokens: Tokens{Prompt: 26, Completion: 298, Known: true}}},
		{"line itself", Lines, `{"x":"` + image + `","eval_count":5}` + "\n", found{Tokens: Tokens{Completion: 5, Known: true}}},
		{"body", JSON, `{"object":"response","id":"resp_1","x":"` + image + `","usage":{"input_tokens":4}}`, inLine},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{len(tt.body), 1000, 32 << 10, 70_000, 200_000} {
				r := Reader{Format: tt.format, WantID: true}
				for i := 0; i < len(tt.body); i += size {
					r.Feed([]byte(tt.body[i:min(i+size, len(tt.body))]))
					for _, kept := range []tail{r.line, r.event} {
						if !kept.empty() && cap(kept.buf.b) > 2*maxKept {
							t.Fatalf("keeps %d bytes", cap(kept.buf.b))
						}
					}
				}
				r.End(nil)
				if got := (found{r.Tokens(), r.Finish(), r.ID()}); got != tt.want {
					t.Errorf("pieces of %d: got %+v, want %+v", size, got, tt.want)
				}
			}
			if got := read(tt.format, "", tt.body); got != tt.want {
				t.Errorf("whole: got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestLastIndex(t *testing.T) {
	for _, size := range []int{0, 7, 500, 512, 513, 3000} {
		b := []byte(strings.Repeat(".", size))
		if got := usageKey.lastIndex(b); got != -1 {
			t.Errorf("%d: found at %d", size, got)
		}
		for at := 0; at+len(usageKey.text) <= size; at += 1 + size/1000 {
			b := []byte(strings.Repeat(".", size))
			copy(b, usageKey.text)
			copy(b[at:], usageKey.text)
			if got := usageKey.lastIndex(b); got != at {
				t.Fatalf("%d: found at %d, not %d", size, got, at)
			}
		}
	}
}

func TestIndex(t *testing.T) {
	for _, fill := range []string{".", "g", `"`, `"usage`, `usage"`, `g"usag`} {
		for n := range 200 {
			for _, s := range []string{strings.Repeat(fill, n), strings.Repeat(fill, n) + `"usage"`, strings.Repeat(fill, n) + `"usage"` + strings.Repeat(fill, n)} {
				if got, want := usageKey.index([]byte(s)), strings.Index(s, `"usage"`); got != want {
					t.Fatalf("%q: got %d, want %d", s, got, want)
				}
			}
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(chatStream), byte(Events), 7, 60)
	f.Add([]byte(strings.ReplaceAll(responsesStream, "\n", "\r\n")), byte(Events), 100, 3)
	f.Add([]byte("data:{\ndata:\"usage\":{\"prompt_tokens\":1}\r\r"), byte(Events), 9, 9)
	f.Add([]byte(`{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":5}}`), byte(JSON), 3, 9)
	f.Add([]byte(ollamaStream), byte(Lines), 3, 9)
	f.Fuzz(func(t *testing.T, body []byte, format byte, a, b int) {
		a = min(max(a, 0), len(body))
		b = min(max(b, a), len(body))
		s, kind := string(body), Format(format%3)
		whole := read(kind, "", s)
		if parts := read(kind, "", s[:a], s[a:b], s[b:]); whole != parts {
			t.Errorf("whole %+v, in parts %+v", whole, parts)
		}
	})
}

// chunk is an event of about 300 bytes.
const chunk = `data: {"id":"chatcmpl-7f1d0c5e8a","object":"chat.completion.chunk","created":1760000000,"model":"Qwen/Qwen3-8B","choices":[{"index":0,"delta":{"role":"assistant","content":" a few words of an answer","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"

func BenchmarkEvents(b *testing.B) {
	r := Reader{Format: Events}
	p := []byte(chunk)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		r.Feed(p)
	}
}

func BenchmarkEventsCut(b *testing.B) {
	r := Reader{Format: Events}
	p := []byte(chunk)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		r.Feed(p[:100])
		r.Feed(p[100:])
	}
}

func BenchmarkBody(b *testing.B) {
	for _, size := range []int{2 << 10, 100 << 10, 1 << 20} {
		for _, usage := range []string{`"usage":{"prompt_tokens":1024,"completion_tokens":400,"total_tokens":1424,"prompt_tokens_details":{"cached_tokens":512}}`, `"none":0`} {
			p := fmt.Appendf(nil, `{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],%s}`,
				strings.Repeat("some \"words\" of text\n", size/24), usage)
			name := fmt.Sprintf("%dKB/%.6s", size>>10, usage[1:])
			b.Run(name+"/whole", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					var r Reader
					r.End(p)
				}
			})
			b.Run(name+"/parts", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					var r Reader
					for i := 0; i < len(p); i += 32 << 10 {
						r.Feed(p[i:min(i+32<<10, len(p))])
					}
					r.End(nil)
				}
			})
		}
	}
}
