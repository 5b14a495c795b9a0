package sse

import (
	"slices"
	"strings"
	"testing"
)

// linesOf returns the lines of a stream that comes in pieces, the last one
// without an end.
func linesOf(pieces ...string) (lines []string) {
	var l Lines
	line := ""
	for _, piece := range pieces {
		p := []byte(piece)
		for len(p) > 0 {
			if l.SkipLF(p) {
				p = p[1:]
				continue
			}
			i := l.End(p)
			if i < 0 {
				line += string(p)
				break
			}
			lines, line = append(lines, line+string(p[:i])), ""
			p = p[i+1:]
		}
	}
	return append(lines, line)
}

func TestLines(t *testing.T) {
	for _, tt := range []struct {
		stream string
		want   []string
	}{
		{"", []string{""}},
		{"a", []string{"a"}},
		{"a\nb\rc\r\nd", []string{"a", "b", "c", "d"}},
		{"\n\n", []string{"", "", ""}},
		{"\r\r", []string{"", "", ""}},
		{"\r\n\r\n", []string{"", "", ""}},
		{"\n\r\n\r", []string{"", "", "", ""}},
		{"a\r\n\nb", []string{"a", "", "b"}},
		{"a\r\r\nb\r", []string{"a", "", "b", ""}},
		{"data: é\r\n\r\n: x\r\n", []string{"data: é", "", ": x", ""}},
	} {
		if got := linesOf(tt.stream); !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.stream, got, tt.want)
		}
		for i := range len(tt.stream) {
			if got := linesOf(tt.stream[:i], "", tt.stream[i:]); !slices.Equal(got, tt.want) {
				t.Errorf("%q cut at %d: got %q, want %q", tt.stream, i, got, tt.want)
			}
		}
		if got := linesOf(strings.Split(tt.stream, "")...); !slices.Equal(got, tt.want) {
			t.Errorf("%q in single bytes: got %q, want %q", tt.stream, got, tt.want)
		}
	}
}

func TestEnd(t *testing.T) {
	for _, n := range []int{0, 1, 2047, 2048, 2049, 5000} {
		text := strings.Repeat("x", n)
		for _, end := range []string{"\n", "\r", "\r\n", "\n\r"} {
			if got := End([]byte(text + end + text + "\r\n")); got != n {
				t.Errorf("%d and %q: got %d", n, end, got)
			}
		}
		if got := End([]byte(text)); got != -1 {
			t.Errorf("%d: got %d", n, got)
		}
	}
}

// FuzzLines holds the lines out against those of the rule as the standard has
// it.
func FuzzLines(f *testing.F) {
	f.Add("data: x\r\n\r\n", 8)
	f.Add("\r\r\n\n", 2)
	f.Fuzz(func(t *testing.T, stream string, at int) {
		at = min(max(at, 0), len(stream))
		want := strings.Split(strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n"), "\n")
		if got := linesOf(stream[:at], stream[at:]); !slices.Equal(got, want) {
			t.Errorf("%q cut at %d: got %q, want %q", stream, at, got, want)
		}
	})
}

func BenchmarkLines(b *testing.B) {
	p := []byte(strings.Repeat("data: "+strings.Repeat("x", 300)+"\n\n", 10))
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	var l Lines
	for b.Loop() {
		for rest := p; len(rest) > 0; {
			if l.SkipLF(rest) {
				rest = rest[1:]
				continue
			}
			rest = rest[l.End(rest)+1:]
		}
	}
}
