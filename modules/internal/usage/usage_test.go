package usage

import (
	"fmt"
	"strings"
	"testing"
)

const event = "data: {\"choices\":[{\"delta\":{\"content\":\"né\"}}],\"usage\":null}\n\n: ping\n\n" +
	"data:{\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n"

// S1: the same usage however the stream is cut into pieces.
func TestStreamFraming(t *testing.T) {
	want := Tokens{Prompt: 12, Completion: 3, Cached: 8, Known: true, CachedKnown: true}
	for _, stream := range []string{event, strings.ReplaceAll(event, "\n", "\r\n"), strings.TrimRight(strings.TrimSuffix(event, "data: [DONE]\n\n"), "\n")} {
		for i := range len(stream) {
			r := Reader{Stream: true}
			r.Feed([]byte(stream[:i]))
			r.Feed([]byte(stream[i:]))
			if got := r.Tokens(); got != want {
				t.Fatalf("cut at %d: got %+v", i, got)
			}
		}
		r := Reader{Stream: true}
		for i := range len(stream) {
			r.Feed([]byte{stream[i]})
		}
		if got := r.Tokens(); got != want {
			t.Errorf("byte by byte: got %+v", got)
		}
	}
}

func TestStreamLongLine(t *testing.T) {
	r := Reader{Stream: true}
	long := []byte("data: {\"x\":\"" + strings.Repeat("a", 64<<10))
	for range 20 {
		r.Feed(long)
	}
	if len(r.kept) > maxLine {
		t.Errorf("kept %d bytes of a line without end", len(r.kept))
	}
	r.Feed([]byte("\"}\n" + event))
	if got := r.Tokens(); got.Prompt != 12 {
		t.Errorf("after a line that is too long: got %+v", got)
	}
}

// S7: odd usage harms nothing.
func TestBody(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	tests := []struct {
		name, body string
		want       Tokens
	}{
		{"chat", `{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`, Tokens{Prompt: 5, Completion: 1, Known: true}},
		{"responses", `{"usage":{"input_tokens":5,"output_tokens":2,"input_tokens_details":{"cached_tokens":0}}}`, Tokens{Prompt: 5, Completion: 2, Known: true, CachedKnown: true}},
		{"event of responses", `{"type":"response.completed","response":{"usage":{"input_tokens":7}}}`, Tokens{Prompt: 7, Known: true}},
		{"string", `{"usage":"oops"}`, Tokens{}},
		{"null", `{"usage":null}`, Tokens{}},
		{"array", `{"usage":[]}`, Tokens{}},
		{"number as string", `{"usage":{"prompt_tokens":"1024"}}`, Tokens{}},
		{"negative", `{"usage":{"prompt_tokens":-5}}`, Tokens{}},
		{"huge", `{"usage":{"prompt_tokens":1e400}}`, Tokens{}},
		{"details no object", `{"usage":{"prompt_tokens":3,"prompt_tokens_details":0}}`, Tokens{Prompt: 3, Known: true}},
		{"deep", `{"usage":` + deep + `}`, Tokens{}},
		{"no JSON", `usage`, Tokens{}},
		{"broken", `{"usage":{`, Tokens{}},
		{"empty", ``, Tokens{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r Reader
			r.Feed([]byte(tt.body))
			if got := r.Tokens(); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestLargeBody(t *testing.T) {
	body := fmt.Sprintf(`{"choices":[{"text":%q}],"usage": {"prompt_tokens":77}}`, strings.Repeat("word ", 200_000))
	for _, size := range []int{1, 1000, 32 << 10, len(body)} {
		var r Reader
		for i := 0; i < len(body); i += size {
			r.Feed([]byte(body[i:min(i+size, len(body))]))
			if len(r.kept) > 2*maxTail {
				t.Fatalf("kept %d bytes", len(r.kept))
			}
		}
		if got := r.Tokens(); got.Prompt != 77 {
			t.Errorf("pieces of %d: got %+v", size, got)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(event), true, 7)
	f.Add([]byte(`{"usage":{"prompt_tokens":5}}`), false, 3)
	f.Fuzz(func(t *testing.T, body []byte, stream bool, at int) {
		whole, parts := Reader{Stream: stream}, Reader{Stream: stream}
		whole.Feed(body)
		at = min(max(at, 0), len(body))
		parts.Feed(body[:at])
		parts.Feed(body[at:])
		if a, b := whole.Tokens(), parts.Tokens(); a != b {
			t.Errorf("whole %+v, in two parts %+v", a, b)
		}
	})
}
