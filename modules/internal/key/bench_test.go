package key

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// chat returns the body of a chat of about size bytes, with the escapes that
// texts of people and of programs have.
func chat(size int) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	line := "Some words of a text that goes on for a while, with a \"quote\" here,\nand a new line there.\n\tfor i := range n {\n"
	messages := []message{{"system", "You are a helpful assistant. " + strings.Repeat("Be brief, and be kind. ", min(size/100, 80))}}
	for n := 200 + len(messages[0].Content); n < size; {
		text := fmt.Sprint(n) + strings.Repeat(line, 1+min(size/1000, 10))
		messages = append(messages, message{[]string{"assistant", "user"}[len(messages)%2], text})
		n += len(text)*21/20 + 40
	}
	body, err := json.Marshal(map[string]any{"model": "qwen3-8b", "stream": true, "temperature": 0.7, "messages": messages})
	if err != nil {
		panic(err)
	}
	return string(body)
}

// BenchmarkKeys scans a body and works out both of its keys.
func BenchmarkKeys(b *testing.B) {
	for _, bb := range []struct{ name, body string }{
		{"2KB", chat(2 << 10)},
		{"100KB", chat(100 << 10)},
		{"4MB", chat(4 << 20)},
		{"prompt/100KB", `{"model":"m","prompt":"` + strings.Repeat(`some text\n`, 10<<10) + `"}`},
		{"image/4MB", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + strings.Repeat("iVBORw0KGgo", 4<<20/11) + `"}}]}]}`},
		{"parts/4MB", `{"messages":[{"role":"system","content":[` + strings.Repeat(`{"text":""},`, 4<<20/12) + `1]}]}`},
		{"nested/4MB", `{"messages":[{"role":"system","content":[[[[[[` + strings.Repeat(`{"text":""},`, 4<<20/12) + `1]]]]]]}]}`},
		{"spaces/4MB", `{"system":"` + strings.Repeat(` `, 4<<20) + `"}`},
		{"escapes/4MB", `{"session_id":"` + strings.Repeat(`\"`, 2<<20) + `"}`},
	} {
		body := []byte(bb.body)
		c := Default()
		h := header("Content-Type", "application/json", "User-Agent", "bench", "Accept", "*/*", "Accept-Encoding", "gzip")
		b.Run(bb.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var d openai.Doc
			for b.Loop() {
				if err := d.Scan(body); err != nil {
					b.Fatal(err)
				}
				c.Session(h, &d)
				c.Prefix("qwen3-8b", "", h, &d)
			}
		})
	}
	// The keys alone.
	c := Default()
	h := header("Content-Type", "application/json", "User-Agent", "bench", "Accept", "*/*", "Accept-Encoding", "gzip")
	d := scan(b, chat(100<<10))
	b.Run("session", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Session(h, d)
		}
	})
	b.Run("prefix", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Prefix("qwen3-8b", "", h, d)
		}
	})
}
