package openai

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// quoteEnd is skipString in plain words, for the inside of a string.
func quoteEnd(s string) int {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

func checkQuote(t *testing.T, s string) {
	t.Helper()
	want := quoteEnd(s)
	got := skipString([]byte(`"`+s), 1)
	if got > 0 {
		got--
	}
	if got != want {
		t.Fatalf("%q ends at %d, want %d", s, got, want)
	}
	if n := indexQuote([]byte(s)); n != want-1 && (n > len(s) || want > 0 && want-1 < n || n%64 != 0) {
		t.Fatalf("%q: %d, want %d or whole blocks before it", s, n, want-1)
	}
}

// TestSkipString has quotes behind runs of backslashes of all lengths, at all
// places of a block and across blocks.
func TestSkipString(t *testing.T) {
	for run := range 140 {
		for before := range 70 {
			s := strings.Repeat("x", before) + strings.Repeat(`\`, run) + `"` + strings.Repeat("y", 70) + `"` + strings.Repeat("z", 70)
			checkQuote(t, s)
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		s := make([]byte, r.IntN(300))
		for i := range s {
			s[i] = `\\\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx`[r.IntN(4+r.IntN(30))]
		}
		checkQuote(t, string(s))
	}
}

func FuzzSkipString(f *testing.F) {
	f.Add(strings.Repeat(`\`, 63)+`"`, 1)
	f.Add(`text with \"quotes\" and \\ in it`, 9)
	f.Fuzz(func(t *testing.T, s string, times int) {
		checkQuote(t, strings.Repeat(s, 1+max(0, times)%20))
	})
}
