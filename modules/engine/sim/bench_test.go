package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// unlimited is an engine that is as fast as the machine, for load tests.
func unlimited() Config {
	cfg := DefaultConfig()
	cfg.TTFT, cfg.PrefillRate, cfg.DecodeRate = 0, 0, 0
	cfg.KVBlocks = 1 << 16
	return cfg
}

// chatBody returns a chat of about size bytes, with the escapes of real ones.
func chatBody(size int, more string) string {
	var text strings.Builder
	r := rand.New(rand.NewPCG(1, uint64(size)))
	for text.Len() < size {
		text.WriteString(vocabulary[r.IntN(len(vocabulary))])
		text.WriteString([]string{" ", " ", " ", ", ", ".\n", "\n\t\"key\": "}[r.IntN(6)])
	}
	content, _ := json.Marshal(text.String())
	return fmt.Sprintf(`{"model":"sim","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":%s}]%s}`, content, more)
}

func BenchmarkChat(b *testing.B) {
	for _, size := range []int{2 << 10, 100 << 10} {
		for _, stream := range []string{"", `,"stream":true`} {
			b.Run(fmt.Sprintf("%dKB/stream=%t", size>>10, stream != ""), func(b *testing.B) {
				e, err := New(unlimited())
				if err != nil {
					b.Fatal(err)
				}
				body := chatBody(size, stream)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					w := httptest.NewRecorder()
					e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body)))
					if w.Code != http.StatusOK {
						b.Fatal(w.Code, w.Body)
					}
				}
			})
		}
	}
}

func BenchmarkTokens(b *testing.B) {
	text := []byte(chatBody(100<<10, ""))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		c := chain{blockSize: 16, text: text}
		c.grow()
	}
}

// BenchmarkCache lets sequences in and out of a full cache, where each one
// evicts blocks.
func BenchmarkCache(b *testing.B) {
	for _, blocks := range []int{32, 1600} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			c := newCache(8 * blocks)
			prompts := make([][]uint64, 64)
			for i := range prompts {
				prompts[i] = make([]uint64, blocks)
				for j := range prompts[i] {
					prompts[i][j] = mix(uint64(j))
					if j >= blocks/2 { // the first half is common to all
						prompts[i][j] = mix(uint64(i)<<32 + uint64(j))
					}
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				var h holding
				p := prompts[i%len(prompts)]
				if !c.take(&h, p, blocks-1, blocks, blocks+1) {
					b.Fatal("no room in an idle cache")
				}
				c.publish(&h, p)
				c.release(&h)
			}
		})
	}
}
