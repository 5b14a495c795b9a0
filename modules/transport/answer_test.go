package transport

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestKeepAlive(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"":                             0,
		"timeout=5":                    4 * time.Second,
		"timeout=5, max=100":           4 * time.Second,
		"max=100,timeout=75":           74 * time.Second,
		"  Timeout=10 ,max=1":          9 * time.Second,
		"timeout=1":                    500 * time.Millisecond,
		"timeout=0":                    500 * time.Millisecond,
		"timeout=3600":                 3599 * time.Second,
		"timeout=999999999":            3599 * time.Second,
		"timeout=-1":                   0,
		"timeout=1.5":                  0,
		"timeout=5s":                   0,
		`timeout="5"`:                  0,
		"timeout=":                     0,
		"timeout":                      0,
		"max=100":                      0,
		"idle_timeout=5":               0,
		"timeout=x, timeout=3":         2 * time.Second,
		"timeout=99999999999999999999": 0,
		",,timeout=2":                  time.Second,
	} {
		h := http.Header{}
		if value != "" {
			h.Set("Keep-Alive", value)
		}
		if got := keepAlive(h); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"":                              0,
		"0":                             0,
		"1":                             time.Second,
		"120":                           2 * time.Minute,
		"3600":                          time.Hour,
		"3601":                          time.Hour,
		"99999999999":                   time.Hour,
		"-1":                            0,
		"1.5":                           0,
		"soon":                          0,
		"99999999999999999999":          0,
		"Wed, 21 Oct 2015 07:28:00 GMT": 0,
	} {
		h := http.Header{}
		if value != "" {
			h.Set("Retry-After", value)
		}
		if got := retryAfter(h); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}

// closeCounter counts how often it is closed.
type closeCounter struct {
	io.Reader
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }

func TestGatheredBody(t *testing.T) {
	const text = "what was read of an answer"
	for _, tt := range []struct{ name, unread, rest string }{
		{"whole", text, ""},
		{"with a rest", text, " and the rest of it"},
		{"empty", "", ""},
		{"a rest alone", "", "the rest"},
	} {
		body := func() (*gatheredBody, *closeCounter) {
			g := &gatheredBody{unread: []byte(tt.unread), buf: new(gatherBuffer)}
			rest := &closeCounter{Reader: strings.NewReader(tt.rest)}
			if tt.rest != "" {
				g.rest = rest
			}
			return g, rest
		}
		g, _ := body()
		if err := iotest.TestReader(g, []byte(tt.unread+tt.rest)); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		g, rest := body()
		got, err := io.ReadAll(iotest.OneByteReader(g))
		if err != nil || string(got) != tt.unread+tt.rest {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
		if n, err := g.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%s: %d, %v behind the end", tt.name, n, err)
		}
		if err := g.Close(); err != nil || g.buf != nil || tt.rest != "" && rest.closed != 1 {
			t.Errorf("%s: closed with %v, the rest %d times", tt.name, err, rest.closed)
		}
	}

	// The end is told with the last bytes.
	g := &gatheredBody{unread: []byte(text)}
	if n, err := g.Read(make([]byte, 100)); n != len(text) || !errors.Is(err, io.EOF) {
		t.Errorf("%d, %v, want the end with all bytes", n, err)
	}
}

// The memory of a body serves others once it is closed.
func TestGatheredBodyClosed(t *testing.T) {
	buf := &gatherBuffer{b: bytes.Repeat([]byte{'x'}, 100)}
	g := &gatheredBody{unread: buf.b, buf: buf}
	if _, err := g.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := g.Read(make([]byte, 10)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("read %d bytes that may be another's, %v", n, err)
		}
	}
}
