package coding

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// bomb returns size zeros under the coding.
func bomb(t testing.TB, size int64, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := encoder(t, &b, name)
	if _, err := io.CopyN(w, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// B5: a bomb is left when the limit is reached.
func TestB5Bombs(t *testing.T) {
	const limit = 256 << 10
	before := runtime.NumGoroutine()
	for _, name := range single {
		size := int64(4 << 20)
		if name == "gzip" { // whose reading is measured
			size = 16 << 20
		}
		raw := bomb(t, size, name)
		plain, read, err := decode(bytes.NewReader(raw), limit, name)
		if !errors.Is(err, ErrTooLarge) || len(plain) > limit {
			t.Errorf("%s: %d bytes, %v", name, len(plain), err)
		}
		if name == "gzip" && read > int64(len(raw))/64+8<<10 {
			t.Errorf("%s: read %d of %d bytes", name, read, len(raw))
		}
		// The bomb lies under another coding.
		plain, _, err = decode(bytes.NewReader(encode(t, raw, "gzip")), limit, name, "gzip")
		if !errors.Is(err, ErrTooLarge) || len(plain) > limit {
			t.Errorf("%s in gzip: %d bytes, %v", name, len(plain), err)
		}
		// What comes out holds the bytes of the next coding, without any
		// that count.
		_, _, err = decode(bytes.NewReader(raw), limit, "gzip", name)
		if refused := Refusal(err); refused == nil && !errors.Is(err, ErrTooLarge) {
			t.Errorf("gzip in %s: %v", name, err)
		}
	}
	// Endless bodies of nothing.
	for name, unit := range map[string][]byte{
		"gzip":    encode(t, nil, "gzip"),
		"zstd":    {0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4},
		"deflate": {0, 0, 0, 0xff, 0xff},
	} {
		head := []byte(nil)
		if name == "deflate" {
			head = []byte{0x78, 0x9c}
		}
		body := io.MultiReader(bytes.NewReader(head), &endless{unit: unit})
		plain, read, err := decode(body, limit, name)
		if !errors.Is(err, ErrTooLarge) || len(plain) != 0 || read > limit+64<<10 {
			t.Errorf("%s: %d bytes from %d, %v", name, len(plain), read, err)
		}
		// Under a coding that makes them small.
		_, read, err = decode(bytes.NewReader(encode(t, slices.Concat(head, bytes.Repeat(unit, limit)), "zstd")), limit, name, "zstd")
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s in zstd: %d bytes read, %v", name, read, err)
		}
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
}

// endless repeats unit.
type endless struct {
	unit []byte
	i    int
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.unit[e.i]
		e.i = (e.i + 1) % len(e.unit)
	}
	return len(p), nil
}

// A window of more than 8 MiB is not taken.
func TestB5Window(t *testing.T) {
	for size, ok := range map[int]bool{8 << 20: true, 16 << 20: false} {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(size), zstd.WithSingleSegment(false), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // no frame of known size
			_, _ = io.CopyN(w, zeros{}, 200<<10)
			_ = w.Flush()
		}
		_ = w.Close()
		_, _, err = decode(&b, 32<<20, "zstd")
		if ok != (err == nil) {
			t.Errorf("%d: %v", size, err)
		}
		if !ok {
			wantCorrupt(t, "window", err)
		}
	}
}
