package coding

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// encode applies codings in their order.
func encode(t testing.TB, plain []byte, names ...string) []byte {
	t.Helper()
	for _, name := range names {
		var b bytes.Buffer
		w := encoder(t, &b, name)
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		plain = b.Bytes()
	}
	return plain
}

func encoder(t testing.TB, w io.Writer, name string) io.WriteCloser {
	t.Helper()
	switch name {
	case "gzip", "x-gzip":
		z := gzip.NewWriter(w)
		z.Name, z.Comment, z.Extra = "name", "comment", []byte("extra")
		return z
	case "deflate":
		return zlib.NewWriter(w)
	case "br":
		return brotli.NewWriter(w)
	case "zstd":
		z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
		if err != nil {
			t.Fatal(err)
		}
		return z
	}
	t.Fatalf("no encoder for %s", name)
	return nil
}

// decode returns what there is under the codings, and the bytes read of raw.
func decode(raw io.Reader, limit int64, encodings ...string) (plain []byte, read int64, err error) {
	count := &counter{r: raw}
	r, err := NewReader(encodings, count, limit)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	plain, err = io.ReadAll(r)
	return plain, count.n, err
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

var single = []string{"gzip", "deflate", "br", "zstd"}

func chat(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"user","content":"`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "line %d of %x\\n", i, i*i*2654435761)
	}
	b.WriteString(`"}]}`)
	return []byte(b.String())
}

// B5: every coding, spelt in every way, gives what was encoded.
func TestB5Codings(t *testing.T) {
	plain := chat(140 << 10) // more than a block of zstd's
	tests := []struct {
		encodings []string
		applied   []string
	}{
		{nil, nil},
		{[]string{"identity"}, nil},
		{[]string{""}, nil},
		{[]string{"gzip"}, []string{"gzip"}},
		{[]string{"GZIP"}, []string{"gzip"}},
		{[]string{"x-gzip"}, []string{"gzip"}},
		{[]string{"zstd"}, []string{"zstd"}},
		{[]string{"br"}, []string{"br"}},
		{[]string{"Deflate"}, []string{"deflate"}},
		{[]string{"gzip, gzip"}, []string{"gzip", "gzip"}},
		{[]string{"gzip,br"}, []string{"gzip", "br"}},
		{[]string{"gzip", "br\t,zstd"}, []string{"gzip", "br", "zstd"}},
		{[]string{" , identity, gzip ,, IDENTITY"}, []string{"gzip"}},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.encodings, ";"), func(t *testing.T) {
			raw := encode(t, plain, tt.applied...)
			for range 2 { // with fresh and with used decoders
				got, _, err := decode(iotest.HalfReader(bytes.NewReader(raw)), 1<<20, tt.encodings...)
				if err != nil || !bytes.Equal(got, plain) {
					t.Fatalf("%d bytes, %v", len(got), err)
				}
			}
			raw = encode(t, plain[:10<<10], tt.applied...)
			got, _, err := decode(iotest.OneByteReader(bytes.NewReader(raw)), 1<<20, tt.encodings...)
			if err != nil || !bytes.Equal(got, plain[:10<<10]) {
				t.Fatalf("bytewise, %d bytes, %v", len(got), err)
			}
		})
	}
}

// Members of gzip and frames of zstd follow each other in one body.
func TestB5Concatenated(t *testing.T) {
	for _, name := range []string{"gzip", "zstd"} {
		raw := slices.Concat(encode(t, []byte("ab"), name), encode(t, nil, name), encode(t, []byte("cd"), name))
		if got, _, err := decode(bytes.NewReader(raw), 1000, name); err != nil || string(got) != "abcd" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestB5Unsupported(t *testing.T) {
	for _, tt := range []struct{ encodings, coding string }{
		{"compress", "compress"},
		{"gzip, snappy", "snappy"},
		{"gzip;q=1", "gzip;q=1"},
		{"*", "*"},
		{"aws-chunked", "aws-chunked"},
		{"gzip gzip", "gzip gzip"},
		{"gzip,gzip,gzip,gzip", ""},
	} {
		_, read, err := decode(strings.NewReader("x"), 100, tt.encodings)
		unsupported, ok := errors.AsType[*UnsupportedError](err)
		if !ok || unsupported.Coding != tt.coding || read != 0 {
			t.Errorf("%s: %v, %d bytes read", tt.encodings, err, read)
		}
		refused := Refusal(fmt.Errorf("wrapped: %w", err))
		if refused == nil || refused.Status != http.StatusUnsupportedMediaType || refused.Header.Get("Accept-Encoding") != Accepted {
			t.Errorf("%s: refused with %+v", tt.encodings, refused)
		}
	}
	_, _, err := decode(nil, 100, strings.Repeat("x", 1<<20)+"\x00")
	if refused := Refusal(err); refused == nil || len(refused.Message) > 300 {
		t.Errorf("a long name is refused with %.400v", refused)
	}
}

func wantCorrupt(t *testing.T, what string, err error) {
	t.Helper()
	if _, ok := errors.AsType[*CorruptError](err); !ok {
		t.Errorf("%s: %v", what, err)
	}
	if refused := Refusal(err); refused == nil || refused.Status != http.StatusBadRequest {
		t.Errorf("%s: refused with %+v", what, refused)
	}
}

// B5: bodies that are not what the header says.
func TestB5Corrupt(t *testing.T) {
	plain := chat(200)
	for _, name := range single {
		raw := encode(t, plain, name)
		for what, body := range map[string][]byte{
			"lie":      plain,
			"zeros":    make([]byte, 1000),
			"trailing": append(bytes.Clone(raw), 'x'),
			"more":     append(bytes.Clone(raw), plain...),
			"padded":   append(bytes.Clone(raw), make([]byte, 512)...),
		} {
			_, _, err := decode(bytes.NewReader(body), 1<<20, name)
			wantCorrupt(t, name+": "+what, err)
			_, _, err = decode(iotest.OneByteReader(bytes.NewReader(body)), 1<<20, name)
			wantCorrupt(t, name+": "+what+", bytewise", err)
		}
		for n := range raw {
			_, _, err := decode(bytes.NewReader(raw[:n]), 1<<20, name)
			wantCorrupt(t, fmt.Sprintf("%s: cut at %d of %d", name, n, len(raw)), err)
			if n > 20 && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s: cut at %d of %d: %v", name, n, len(raw), err)
			}
		}
		// The second coding is cut while the first one is whole.
		for n := range raw {
			_, _, err := decode(bytes.NewReader(encode(t, raw[:n], "gzip")), 1<<20, name, "gzip")
			wantCorrupt(t, fmt.Sprintf("%s in gzip: cut at %d", name, n), err)
		}
	}
	for name, twice := range map[string][]byte{"gzip": encode(t, plain, "gzip"), "zstd": encode(t, plain, "zstd")} {
		for n := 1; n < len(twice); n++ {
			_, _, err := decode(bytes.NewReader(slices.Concat(twice, twice[:n])), 1<<20, name)
			wantCorrupt(t, fmt.Sprintf("%s: second part cut at %d", name, n), err)
		}
	}
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, 5)
	_, _ = w.Write(plain)
	_ = w.Close()
	_, _, err := decode(&b, 1<<20, "deflate")
	wantCorrupt(t, "deflate without zlib's header", err)
}

// What goes wrong with the body itself is no fault of the coding.
func TestReadErrors(t *testing.T) {
	for _, name := range single {
		raw := encode(t, chat(100<<10), name)
		for _, broken := range []error{io.ErrUnexpectedEOF, errors.New("broken")} {
			for _, n := range []int{0, 1, 5, len(raw) / 2, len(raw)} {
				body := func() io.Reader { return io.MultiReader(bytes.NewReader(raw[:n]), iotest.ErrReader(broken)) }
				if _, _, err := decode(body(), 1<<20, name); err != broken { //nolint:errorlint // not even wrapped
					t.Errorf("%s broken at %d: %v, want %v", name, n, err, broken)
				}
			}
			if Refusal(broken) != nil {
				t.Errorf("%v is refused as a coding", broken)
			}
		}
	}
}

// S1: an answer is looked into as far as it can be decoded, in what some
// servers call deflate too.
func TestLenient(t *testing.T) {
	plain := chat(20 << 10)
	var bare bytes.Buffer
	w, _ := flate.NewWriter(&bare, 5)
	_, _ = w.Write(plain)
	_ = w.Close()
	type test struct {
		name, encoding string
		raw            []byte
	}
	tests := []test{
		{"bare deflate", "deflate", bare.Bytes()},
		{"two members", "gzip", slices.Concat(encode(t, plain[:100], "gzip"), encode(t, plain[100:], "gzip"))},
		{"other name", "\tX-GZip ", encode(t, plain, "gzip")},
	}
	for _, name := range single {
		raw := encode(t, plain, name)
		tests = append(tests, test{name, name, raw}, test{name + " and more", name, append(bytes.Clone(raw), "more"...)})
	}
	for _, tt := range tests {
		for range 3 { // with fresh and with used decoders, in each other's places
			r := NewLenientReader(tt.encoding, iotest.HalfReader(bytes.NewReader(tt.raw)))
			if got, err := io.ReadAll(r); !bytes.Equal(got, plain) {
				t.Errorf("%s: %d of %d bytes, %v", tt.name, len(got), len(plain), err)
			}
			r.Close()
			r.Close()
			if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Errorf("%s: %d, %v once closed", tt.name, n, err)
			}
		}
	}
	for _, encoding := range []string{"", "identity", "compress", "gzip, gzip"} {
		if NewLenientReader(encoding, nil) != nil {
			t.Errorf("%q is decoded", encoding)
		}
	}
	for _, name := range single { // what is cut gives what there was
		raw := encode(t, plain, name)
		r := NewLenientReader(name, bytes.NewReader(raw[:len(raw)/2]))
		if got, err := io.ReadAll(r); err == nil || !bytes.HasPrefix(plain, got) {
			t.Errorf("%s: %d bytes, %v of a half", name, len(got), err)
		}
		r.Close()
	}
}

func TestLimit(t *testing.T) {
	plain := chat(10 << 10)
	for _, name := range append([]string{"identity"}, single...) {
		raw := plain
		if name != "identity" {
			raw = encode(t, plain, name)
		}
		size := int64(len(plain))
		if got, _, err := decode(bytes.NewReader(raw), size, name); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s at the limit: %d bytes, %v", name, len(got), err)
		}
		if got, _, err := decode(bytes.NewReader(raw), size-1, name); !errors.Is(err, ErrTooLarge) || int64(len(got)) >= size {
			t.Errorf("%s above the limit: %d bytes, %v", name, len(got), err)
		}
	}
}

func TestClose(t *testing.T) {
	for _, name := range append([]string{"identity"}, single...) {
		r, err := NewReader([]string{name}, zeros{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = r.Read(make([]byte, 1))
		r.Close()
		r.Close()
		if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

func TestEncoded(t *testing.T) {
	h := http.Header{"Content-Type": {"application/json"}}
	if Encoded(h) || Encoded(nil) {
		t.Error("encoded without the header")
	}
	if n := testing.AllocsPerRun(10, func() { Encoded(h) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	h.Set("content-encoding", "gzip")
	if !Encoded(h) {
		t.Error("not encoded")
	}
}

// FuzzReader feeds arbitrary bytes: nothing panics, hangs, or gives more than
// the limit, used decoders give what fresh ones do, and the lenient reader
// gives whatever the strict one does.
func FuzzReader(f *testing.F) {
	for _, name := range single {
		f.Add(name, encode(f, chat(300), name))
		f.Add(name+",gzip", encode(f, []byte("x"), name, "gzip"))
	}
	f.Fuzz(func(t *testing.T, encodings string, raw []byte) {
		const limit = 64 << 10
		plain, _, err := decode(bytes.NewReader(raw), limit, encodings)
		if len(plain) > limit {
			t.Fatalf("%d bytes", len(plain))
		}
		if err != nil && Refusal(err) == nil && !errors.Is(err, ErrTooLarge) {
			t.Fatalf("error %v", err)
		}
		again, _, err2 := decode(iotest.OneByteReader(bytes.NewReader(raw)), limit, encodings)
		if (err == nil) != (err2 == nil) || err == nil && !bytes.Equal(plain, again) {
			t.Fatalf("%d bytes, %v; then %d bytes, %v", len(plain), err, len(again), err2)
		}
		if r := NewLenientReader(encodings, bytes.NewReader(raw)); r != nil {
			got := make([]byte, len(plain))
			if n, lenientErr := io.ReadFull(r, got); !bytes.Equal(got, plain) {
				t.Fatalf("leniently %d of %d bytes, %v", n, len(plain), lenientErr)
			}
			r.Close()
		}
		for _, name := range single {
			if got, _, err := decode(bytes.NewReader(encode(t, raw, name)), 1<<20, name); err != nil || !bytes.Equal(got, raw) {
				t.Fatalf("%s: %d of %d bytes, %v", name, len(got), len(raw), err)
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	plain := chat(100 << 10)
	buf := make([]byte, 128<<10)
	for _, name := range single {
		raw := encode(b, plain, name)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			encodings := []string{name}
			for b.Loop() {
				r, err := NewReader(encodings, bytes.NewReader(raw), 1<<20)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.ReadFull(r, buf); n != len(plain) {
					b.Fatal(n, err)
				}
				r.Close()
			}
		})
	}
}
