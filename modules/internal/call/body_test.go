package call

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

func TestReadBody(t *testing.T) {
	const limit = 100_000
	broken := errors.New("broken")
	tests := []struct {
		name   string
		size   int
		length int64 // announced
		err    error
	}{
		{"empty", 0, -1, nil},
		{"small", 10, 10, nil},
		{"page", 4096, 4096, nil},
		{"page unannounced", 4096, -1, nil},
		{"page and one", 4097, 4097, nil},
		{"large", 99_999, 99_999, nil},
		{"limit", limit, limit, nil},
		{"limit unannounced", limit, -1, nil},
		{"over", limit + 1, -1, errTooLarge},
		{"far over", 10 * limit, -1, errTooLarge},
		{"more than announced", 50_000, 10, nil},
		{"broken off", 50_000, 60_000, broken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sent := bytes.Repeat([]byte("x0"), tt.size/2+1)[:tt.size]
			var r io.Reader = bytes.NewReader(sent)
			if errors.Is(tt.err, broken) {
				r = io.MultiReader(r, iotest.ErrReader(broken))
			}
			buf, err := readBody(iotest.HalfReader(r), tt.length, limit)
			defer buf.release()
			if !errors.Is(err, tt.err) {
				t.Fatalf("err = %v, want %v", err, tt.err)
			}
			if err == nil && !bytes.Equal(buf.b, sent) {
				t.Errorf("got %d bytes, not those sent", len(buf.b))
			}
		})
	}
}

// Memory follows what has come, not what was announced.
func TestReadBodyIgnoresAnnouncement(t *testing.T) {
	buf, err := readBody(strings.NewReader("{}"), 32<<20, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.release()
	if cap(buf.b) > 4096 {
		t.Errorf("2 bytes hold a buffer of %d", cap(buf.b))
	}
	sent := make([]byte, 50_000)
	larger, err := readBody(iotest.OneByteReader(bytes.NewReader(sent)), 32<<20, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer larger.release()
	if cap(larger.b) > 8*2*len(sent) {
		t.Errorf("%d bytes hold a buffer of %d", len(sent), cap(larger.b))
	}
}

// Attempts read the same bytes, one after the other or at the same time.
func TestAttemptBody(t *testing.T) {
	want := strings.Repeat("0123456789", 5000)
	buf, err := readBody(strings.NewReader(want), -1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			a := &attemptBody{buf: buf, rest: [][]byte{buf.b[:len(buf.b)/3], nil, buf.b[len(buf.b)/3:]}}
			defer a.Close()
			got, err := io.ReadAll(a)
			if err != nil || string(got) != want {
				t.Errorf("read %d bytes, error %v", len(got), err)
			}
		})
	}
	wg.Wait()
	a := &attemptBody{buf: buf, rest: [][]byte{buf.b[:len(buf.b)/3], nil, buf.b[len(buf.b)/3:]}}
	var b strings.Builder
	if n, err := a.WriteNTo(&b, 10); n != 10 || err != nil || b.String() != want[:10] {
		t.Errorf("WriteNTo = %d, %v, wrote %q", n, err, b.String())
	}
	if n, err := a.WriteTo(&b); n != int64(len(want)-10) || err != nil || b.String() != want {
		t.Errorf("WriteTo = %d, %v", n, err)
	}
	a.Close()
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("read after close: %v", err)
	}
	if got := buf.refs.Load(); got != 1 {
		t.Errorf("%d references are left", got)
	}
}

// net/http may close a body while it is being written, after the call ended.
func TestAttemptBodyOutlivesCall(t *testing.T) {
	buf, err := readBody(strings.NewReader("body"), -1, 100)
	if err != nil {
		t.Fatal(err)
	}
	a := &attemptBody{buf: buf, rest: [][]byte{buf.b[:len(buf.b)/3], nil, buf.b[len(buf.b)/3:]}}
	pr, pw := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		_, err := a.WriteTo(pw)
		wrote <- err
	}()
	first := make([]byte, 1)
	if _, err := io.ReadFull(pr, first); err != nil {
		t.Fatal(err)
	}
	a.Close()
	buf.release() // the call ends
	if got := buf.refs.Load(); got != 1 {
		t.Errorf("%d references while the body is being written", got)
	}
	rest := make([]byte, 3)
	if _, err := io.ReadFull(pr, rest); err != nil || string(rest) != "ody" {
		t.Errorf("rest %q, error %v", rest, err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if got := buf.refs.Load(); got != 0 {
		t.Errorf("%d references at the end", got)
	}
	late := &attemptBody{buf: buf, rest: [][]byte{buf.b[:len(buf.b)/3], nil, buf.b[len(buf.b)/3:]}}
	if _, err := late.Read(first); err == nil {
		t.Error("read a buffer that is back in its pool")
	}
}
