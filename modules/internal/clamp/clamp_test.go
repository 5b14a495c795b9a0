package clamp

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

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

func clamped(d *openai.Doc, most int) (string, Change) {
	edits, c := Edits(nil, d, most)
	return string(bytes.Join(openai.Splice(nil, d.Body(), edits), nil)), c
}

// B10: what counts as a limit above the cap, in each of its spellings.
func TestB10Values(t *testing.T) {
	long := "1" + strings.Repeat("0", 100)
	tests := []struct {
		value, want, change string
	}{
		{`0`, `0`, ""},
		{`-1`, `-1`, ""},
		{`-1e9`, `-1e9`, ""},
		{`null`, `null`, ""},
		{`true`, `true`, ""},
		{`"50"`, `"50"`, ""},
		{`"5000"`, `"5000"`, ""},
		{`[5000]`, `[5000]`, ""},
		{`{"a":5000}`, `{"a":5000}`, ""},
		{`1`, `1`, ""},
		{`99.5`, `99.5`, ""},
		{`100`, `100`, ""},
		{`100.0`, `100.0`, ""},
		{`1e2`, `1e2`, ""},
		{`1e-400`, `1e-400`, ""},
		{`101`, `100`, "101->100"},
		{`100.5`, `100`, "100.5->100"},
		{`1e9`, `100`, "1e9->100"},
		{`1E+3`, `100`, "1E+3->100"},
		{`99999999999999999999`, `100`, "99999999999999999999->100"},
		{`1e400`, `100`, "1e400->100"},
		{long, `100`, long[:37] + "...->100"},
		{`05000`, `05000`, ""}, // no JSON: the engine refuses it
		{`NaN`, `NaN`, ""},
	}
	for _, name := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		for _, tt := range tests {
			for _, form := range []string{`{"` + name + `":$}`, "{ \"a\":[1e9], \"" + name + "\" : $ ,\"b\":5000 }", `{"` + strings.ReplaceAll(name, "_", `\u005f`) + `":$}`} {
				got, c := clamped(scan(t, strings.ReplaceAll(form, "$", tt.value)), 100)
				if want := strings.ReplaceAll(form, "$", tt.want); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				if change := c.String(); c == (Change{}) && tt.change != "" || c != (Change{}) && change != tt.change {
					t.Errorf("%s: change %q, want %q", tt.value, change, tt.change)
				}
			}
		}
	}
}

// B10: every member is covered, and none is added.
func TestB10Members(t *testing.T) {
	tests := []struct{ body, want, change string }{
		{`{}`, `{}`, ""},
		{`{"a":5000,"options":{"max_tokens":5000},"MAX_TOKENS":5000}`, `{"a":5000,"options":{"max_tokens":5000},"MAX_TOKENS":5000}`, ""},
		{`{"max_tokens":50,"max_completion_tokens":5000}`, `{"max_tokens":50,"max_completion_tokens":100}`, "5000->100"},
		{`{"max_completion_tokens":6000,"max_tokens":5000}`, `{"max_completion_tokens":100,"max_tokens":100}`, "5000->100"},
		{`{"max_tokens":null,"max_output_tokens":7000}`, `{"max_tokens":null,"max_output_tokens":100}`, "7000->100"},
		{`{"max_tokens":5000,"x":1,"max_tokens":6000}`, `{"max_tokens":100,"x":1,"max_tokens":100}`, "6000->100"},
		{`{"max_tokens":5000,"max\u005ftokens":50,"max_tokens":"6000"}`, `{"max_tokens":100,"max\u005ftokens":50,"max_tokens":"6000"}`, "5000->100"},
		{`{"max_tokens":50,"max_tokens":5}`, `{"max_tokens":50,"max_tokens":5}`, ""},
		{"\xef\xbb\xbf{\"max_tokens\":5000}", "\xef\xbb\xbf{\"max_tokens\":100}", "5000->100"},
		{`{` + strings.Repeat(`"max_tokens":9999,`, 300) + `"a":1}`, `{` + strings.Repeat(`"max_tokens":100,`, 300) + `"a":1}`, "9999->100"},
	}
	for _, tt := range tests {
		got, c := clamped(scan(t, tt.body), 100)
		if got != tt.want || c.Old != "" && c.String() != tt.change || c.Old == "" && tt.change != "" {
			t.Errorf("%.100s:\ngot  %.100s %v\nwant %.100s %s", tt.body, got, c, tt.want, tt.change)
		}
	}
}

func TestCap(t *testing.T) {
	for _, tt := range []struct{ window, reserve, want int }{{32768, 512, 32256}, {512, 512, 1}, {100, 512, 1}, {100, 0, 100}} {
		if got := Cap(tt.window, tt.reserve); got != tt.want {
			t.Errorf("%d - %d: %d, want %d", tt.window, tt.reserve, got, tt.want)
		}
	}
}

// FuzzEdits: no limit that encoding/json reads is above the cap, and nothing
// else changes.
func FuzzEdits(f *testing.F) {
	f.Add([]byte(`{"max_tokens":5000,"max_tokens":1e9,"a":[{}]}`))
	f.Add([]byte(`{"max_completion_tokens":100.5,"max_output_tokens":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var d openai.Doc
		if d.Scan(body) != nil {
			return
		}
		Estimate(&d)
		edits, c := Edits(nil, &d, 100)
		if (len(edits) > 0) != (c != Change{}) || len(c.Old) > maxOld || strings.Trim(c.Old, "0123456789.eE+-") != "" {
			t.Fatalf("%d edits, change %q", len(edits), c)
		}
		got := bytes.Join(openai.Splice(nil, body, edits), nil)
		plain := bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
		if !json.Valid(plain) {
			return
		}
		var limits struct {
			A *json.Number `json:"max_tokens"`
			B *json.Number `json:"max_completion_tokens"`
			C *json.Number `json:"max_output_tokens"`
		}
		if json.Unmarshal(bytes.TrimPrefix(got, []byte("\xef\xbb\xbf")), &limits) != nil {
			if !json.Valid(bytes.TrimPrefix(got, []byte("\xef\xbb\xbf"))) {
				t.Fatalf("%q became %q", body, got)
			}
			return
		}
		if again, _ := Edits(nil, scan(t, string(got)), 100); len(again) > 0 {
			t.Fatalf("%q became %q", body, got)
		}
	})
}

func TestEstimate(t *testing.T) {
	text := func(ascii int) int { return (2*ascii + 6) / 7 }
	image := strings.Repeat("iVBORw0KGgo", 1000)
	tests := []struct {
		name, body string
		want       int
	}{
		{"nothing", `{}`, 0},
		{"message", `{"messages":[{"role":"user","content":"0123456"}]}`, 2 + 4},
		{"messages", `{"messages":[{"role":"user","content":"0123456"},{"role":"user","content":"0123456"}]}`, 2*2 + 2*4},
		{"parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"0123456789"}]}]}`, text(10) + 4},
		{"other characters", `{"messages":[{"role":"user","content":"日本語の長い文章とä"}]}`, 10 + 4},
		{"mixed", `{"messages":[{"role":"user","content":"日abcdefg本hijklmn🙂"}]}`, 3 + 4 + 4},
		{"image", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}]}`, 256 + 4},
		{"Anthropic's image", `{"messages":[{"role":"user","content":[{"type":"image","source":{"data":"` + image + `"}}]}]}`, 256 + 4},
		{"Ollama's images", `{"messages":[{"role":"user","content":"","images":["` + image + `","` + image + `"]}]}`, 2*256 + 4},
		{"audio", `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"` + image + `"}}]}]}`, 256 + 4},
		{"tools", `{"tools":[{"a":"bcd"}]}`, text(13)},
		{"system", `{"system":"01234"}`, 2},
		{"input", `{"input":"0123456"}`, 2},
		{"prompt", `{"prompt":"01234"}`, 2},
		{"null prompt", `{"prompt":null}`, 0},
		{"prompts", `{"prompt":["01234","0123456789ab","01234"]}`, 4},
		{"tokens", `{"prompt":[1,2,3,4,5]}`, 5},
		{"lists of tokens", `{"prompt":[[1,2],[3,4,5],[6]]}`, 3},
		{"empty prompt", `{"prompt":[]}`, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Estimate(scan(t, tt.body)); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func BenchmarkEstimate(b *testing.B) {
	line := strings.Repeat(`some words of a text, about one line \n`, 30)
	turns := strings.Repeat(`{"role":"user","content":"`+line+`"},`, 100)
	for name, body := range map[string]string{
		"ascii":  `{"messages":[` + turns + `{}]}`,
		"wide":   `{"messages":[{"role":"user","content":"` + strings.Repeat("日本語の長い文章", 5000) + `"}]}`,
		"quotes": `{"messages":[` + strings.Repeat(`"",`, 40000) + `1]}`,
		"ids":    `{"prompt":[` + strings.Repeat(`12345,`, 20000) + `1]}`,
	} {
		b.Run(name, func(b *testing.B) {
			d := scan(b, body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				Estimate(d)
			}
		})
	}
}

func BenchmarkEdits(b *testing.B) {
	for name, body := range map[string]string{"none": `{"model":"m","max_tokens":50}`, "one": `{"model":"m","max_tokens":5000}`} {
		b.Run(name, func(b *testing.B) {
			d := scan(b, body)
			b.ReportAllocs()
			var edits []openai.Edit
			for b.Loop() {
				edits, _ = Edits(edits[:0], d, 100)
			}
		})
	}
}
