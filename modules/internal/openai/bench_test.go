package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// chat returns the body of a chat of about size bytes: a system prompt, then
// turns of prose and of code, with escapes as clients send them.
func chat(size int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 2))
	messages := []map[string]any{{"role": "system", "content": "You are a helpful assistant. Answer briefly."}}
	turn := min(1200, size/3)
	for n := 300; n < size; {
		role, text := "user", prose(r, turn)
		if len(messages)%2 == 0 {
			role, text = "assistant", code(r, turn)
		}
		messages = append(messages, map[string]any{"role": role, "content": text})
		n += len(mustMarshal(text)) + 30
	}
	return mustMarshal(map[string]any{
		"messages": messages, "model": "qwen3-8b", "temperature": 0.7, "stream": true,
		"max_tokens": 1024, "user": "someone", "top_p": 0.95,
	})
}

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// prose has a quote or a line break every 80 bytes or so.
func prose(r *rand.Rand, size int) string {
	var s strings.Builder
	for next := 80; s.Len() < size; {
		for range 2 + r.IntN(8) {
			s.WriteByte(byte('a' + r.IntN(26)))
		}
		s.WriteByte(' ')
		if s.Len() > next {
			s.WriteString([]string{`"`, "\n", `"`, "\n\n"}[r.IntN(4)])
			next = s.Len() + 40 + r.IntN(80)
		}
	}
	return s.String()
}

// code has lines of about 40 bytes, each fourth with a string in it.
func code(r *rand.Rand, size int) string {
	var s strings.Builder
	for s.Len() < size {
		fmt.Fprintf(&s, "\n%s%d := f%d(%d, x)", strings.Repeat("\t", r.IntN(4)), r.IntN(1e6), r.IntN(1e9), r.IntN(1e9))
		if r.IntN(4) == 0 {
			fmt.Fprintf(&s, "\n\treturn m[%q] + s", fmt.Sprint("key", r.IntN(1e5)))
		}
	}
	return s.String()
}

// agent returns the body of a coding agent: many tools, then a chat.
func agent(size int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 4))
	var tools []any
	for n := 0; n < size/2; n += 1500 {
		props := map[string]any{}
		for i := range 6 {
			props[fmt.Sprint("param_", i, r.IntN(1e5))] = map[string]any{
				"type": "string", "description": strings.ReplaceAll(prose(r, 40+r.IntN(120)), "\n", " "), "enum": []string{"one", "two"},
			}
		}
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{
			"name": fmt.Sprint("tool_", r.IntN(1e6)), "description": prose(r, 300), "strict": true,
			"parameters": map[string]any{"type": "object", "properties": props, "additionalProperties": false},
		}})
	}
	var body map[string]any
	if err := json.Unmarshal(chat(size/2, seed), &body); err != nil {
		panic(err)
	}
	body["tools"] = tools
	return mustMarshal(body)
}

// ids returns a body of token ids to embed.
func ids(size int) []byte {
	r := rand.New(rand.NewPCG(5, 6))
	ids := make([]int, size/7)
	for i := range ids {
		ids[i] = r.IntN(150000)
	}
	return mustMarshal(map[string]any{"model": "m", "input": ids})
}

// BenchmarkScan scans bodies that it has not seen lately, as a gateway does:
// the processor's branch prediction learns a body of 100 KB by heart when it
// is scanned again and again.
func BenchmarkScan(b *testing.B) {
	fresh := func(size int, body func(int, uint64) []byte) (bodies [][]byte) {
		for seed := range max(1, uint64(4<<20/size)) {
			bodies = append(bodies, body(size, seed))
		}
		return bodies
	}
	repeat := func(head, unit, tail string) [][]byte {
		return [][]byte{[]byte(head + strings.Repeat(unit, 4<<20/len(unit)) + tail)}
	}
	for _, bb := range []struct {
		name   string
		bodies [][]byte
	}{
		{"chat/2KB", fresh(2<<10, chat)},
		{"chat/100KB", fresh(100<<10, chat)},
		{"chat/4MB", fresh(4<<20, chat)},
		{"agent/100KB", fresh(100<<10, agent)},
		{"tokens/100KB", [][]byte{ids(100 << 10)}},
		{"image/4MB", repeat(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`, "iVBORw0KGgo", `"}}]}]}`)},
		// What an attacker may send takes longer, but is linear, too.
		{"quotes/4MB", repeat(`{"a":"`, `\"`, `"}`)},
		{"backslashes/4MB", repeat(`{"a":"`, `\\`, `"}`)},
		{"brackets/4MB", repeat(`{"a":[`, `[[]`, strings.Repeat(`]`, 4<<20/3)+`]}`)},
		{"objects/4MB", repeat(`{"messages":[`, `{"a":`, strings.Repeat(`}`, 4<<20/5)+`]}`)},
		{"commas/4MB", repeat(`{"messages":[`, `,`, `]}`)},
		{"turns/4MB", repeat(`{"messages":[`, `{},`, `{}]}`)},
		{"members/4MB", repeat(`{`, `"a":1,`, `"a":1}`)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			total := 0
			for _, body := range bb.bodies {
				total += len(body)
			}
			b.SetBytes(int64(total / len(bb.bodies)))
			b.ReportAllocs()
			var d Doc
			for i := 0; b.Loop(); i++ {
				if err := d.Scan(bb.bodies[i%len(bb.bodies)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
