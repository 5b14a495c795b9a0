package call

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// withID returns a call with this X-Request-Id, none if it is empty.
func withID(id string) *Call {
	c := &Call{header: make(http.Header)}
	if id != "" {
		c.header.Set(RequestIDHeader, id)
	}
	return c
}

func TestRequestID(t *testing.T) {
	own := regexp.MustCompile(`^[0-9]{19}[0-9a-f]{4}$`)
	for _, tt := range []struct {
		id   string
		good bool
	}{
		{"x", true},
		{"!~", true},
		{`{"id":"<1>"}`, true},
		{strings.Repeat("x", maxRequestID), true},
		{strings.Repeat("x", maxRequestID+1), false},
		{"", false},
		{"a b", false},
		{" ", false},
		{"a\tb", false},
		{"a\r\nX-Evil: 1", false},
		{"a\x00", false},
		{"a\x7f", false},
		{"é", false},
		{"\xff", false},
	} {
		c := withID(tt.id)
		got := c.RequestID()
		if tt.good != (got == tt.id) || !tt.good && !own.MatchString(got) {
			t.Errorf("%q: got %q", tt.id, got)
		}
		c.header.Set(RequestIDHeader, "other") // the proxy's own field, by then
		if again := c.RequestID(); again != got {
			t.Errorf("%q: got %q, then %q", tt.id, got, again)
		}
		attempt, ok := strings.CutPrefix(c.AttemptID(), got+"-")
		if !ok || !regexp.MustCompile(`^[0-9a-f]{8}$`).MatchString(attempt) {
			t.Errorf("%q: the attempt's id is %q", tt.id, attempt)
		}
	}
}

// One client's id, sent again and again, gives no attempt the id of another.
func TestAttemptIDIsUnique(t *testing.T) {
	seen := make(map[string]bool)
	for range 50 {
		c := withID("same")
		for range 4 {
			id := c.AttemptID()
			if seen[id] {
				t.Fatalf("%s is there twice", id)
			}
			seen[id] = true
		}
	}
}

func TestAttemptIDAllocatesOnce(t *testing.T) {
	for _, id := range []string{"", "x", strings.Repeat("x", maxRequestID)} {
		c := withID(id)
		c.RequestID()
		if n := testing.AllocsPerRun(100, func() { c.AttemptID() }); n != 1 {
			t.Errorf("an id of %d bytes: %v allocations, want that of the result", len(id), n)
		}
		if n := testing.AllocsPerRun(100, func() { c.RequestID() }); n != 0 {
			t.Errorf("%v allocations for an id that is known", n)
		}
	}
}

func BenchmarkAttemptID(b *testing.B) {
	c := withID("0b6d4f8e-6a0e-4c7c-9a51-6f5f0c0a9b1e")
	b.ReportAllocs()
	for b.Loop() {
		c.AttemptID()
	}
}
