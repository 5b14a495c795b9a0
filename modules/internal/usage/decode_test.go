package usage

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

type encoder interface {
	io.WriteCloser
	Flush() error
}

var encoders = map[string]func(io.Writer) encoder{
	"gzip": func(w io.Writer) encoder { return gzip.NewWriter(w) },
	"zlib": func(w io.Writer) encoder { return zlib.NewWriter(w) },
	"flate": func(w io.Writer) encoder {
		e, _ := flate.NewWriter(w, 6)
		return e
	},
	"br": func(w io.Writer) encoder { return brotli.NewWriter(w) },
	"zstd": func(w io.Writer) encoder {
		e, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
		return e
	},
}

var spellings = map[string]string{"gzip": "GZip", "zlib": "deflate", "flate": "Deflate", "br": "br", "zstd": " zstd"}

// encode encodes body, and flushes after each event.
func encode(t testing.TB, coding, body string) string {
	t.Helper()
	var b bytes.Buffer
	e := encoders[coding](&b)
	for part := range strings.SplitAfterSeq(body, "\n\n") {
		if _, err := io.WriteString(e, part); err != nil {
			t.Fatal(err)
		}
		e.Flush()
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// S1: a compressed answer says the same, however it is cut into pieces.
func TestEncodings(t *testing.T) {
	body := fmt.Sprintf(`{"object":"response","id":"resp_1","text":%q,"usage":{"prompt_tokens":7}}`, strings.Repeat("word ", 30_000))
	for coding, spelling := range spellings {
		t.Run(coding, func(t *testing.T) {
			for _, tt := range []struct {
				format Format
				body   string
			}{{Events, chatStream}, {Events, responsesStream}, {JSON, body}, {Lines, ollamaStream}, {JSON, ""}} {
				want := read(tt.format, "", tt.body)
				encoded := encode(t, coding, tt.body)
				if got := read(tt.format, spelling, encoded); got != want {
					t.Fatalf("%.40q: got %+v, want %+v", tt.body, got, want)
				}
				n := 0
				cuts(encoded, func(pieces ...string) {
					if n++; len(tt.body) > 2000 && len(pieces) == 2 && n%5 > 0 {
						return // enough of a long one
					}
					if got := read(tt.format, spelling, pieces...); got != want {
						t.Fatalf("%.40q in %d pieces: got %+v, want %+v", tt.body, len(pieces), got, want)
					}
				})
			}
		})
	}
}

// The id of a stream is there as soon as the engine has flushed it.
func TestEncodedIDAtOnce(t *testing.T) {
	first, _, _ := strings.Cut(responsesStream, "\n\n")
	for coding, spelling := range spellings {
		var b bytes.Buffer
		e := encoders[coding](&b)
		io.WriteString(e, first+"\n\n")
		e.Flush()
		r := Reader{Format: Events, Encoding: spelling, WantID: true}
		r.Feed(b.Bytes())
		if got := r.ID(); got != "resp_1" {
			t.Errorf("%s: got %q", coding, got)
		}
		r.Close()
		e.Close()
	}
}

func TestEncodingOddities(t *testing.T) {
	var none found
	zipped := encode(t, "gzip", chatStream)
	chat := read(Events, "", chatStream)
	for _, tt := range []struct {
		name, encoding, body string
		want                 found
	}{
		{"identity", "Identity", chatStream, chat},
		{"x-gzip", "x-gzip", zipped, chat},
		{"unknown", "compress", zipped, none},
		{"twice", "gzip, gzip", encode(t, "gzip", zipped), none},
		{"a lie", "gzip", chatStream, none},
		{"a lie of zstd", "zstd", chatStream, none},
		{"a lie of br", "br", chatStream, none},
		{"a lie of deflate", "deflate", chatStream, none},
		{"two members", "gzip", encode(t, "gzip", chatStream[:50]) + encode(t, "gzip", chatStream[50:]), chat},
		{"bytes behind", "gzip", zipped + "more", chat},
		{"no checksum", "gzip", zipped[:len(zipped)-8], chat},
		{"empty", "gzip", "", none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cuts(tt.body, func(pieces ...string) {
				if got := read(Events, tt.encoding, pieces...); got != tt.want {
					t.Fatalf("got %+v, want %+v", got, tt.want)
				}
			})
		})
	}
}

// A body that grows without measure is not decoded to its end.
func TestBomb(t *testing.T) {
	for _, coding := range []string{"gzip", "zstd", "br"} {
		var b bytes.Buffer
		e := encoders[coding](&b)
		zeros := make([]byte, 1<<20)
		for range 24 {
			e.Write(zeros)
		}
		io.WriteString(e, "\n"+chatStream)
		e.Close()
		if got := read(Events, coding, b.String(), ""); got.Known {
			t.Errorf("%s: %d bytes were decoded whole", coding, b.Len())
		}
	}
}

// Whenever a reader is closed, nothing of it goes on.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	for coding, spelling := range spellings {
		encoded := []byte(encode(t, coding, chatStream))
		for i := 0; i <= len(encoded); i += 5 {
			r := Reader{Format: Events, Encoding: spelling}
			r.Feed(encoded[:i])
			r.Close()
			r.Feed(encoded[i:])
			r.End(encoded)
			r.Close()
			if r.line.buf != nil || r.event.buf != nil {
				t.Fatal("keeps a buffer")
			}
		}
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

// A body may be closed while another goroutine reads it.
func TestCloseMeanwhile(t *testing.T) {
	encoded := []byte(encode(t, "gzip", strings.Repeat(chatStream, 50)))
	for _, encoding := range []string{"", "gzip"} {
		for range 20 {
			r := Reader{Format: Events, Encoding: encoding}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for _, c := range encoded {
					r.Feed([]byte{c})
				}
				r.End(nil)
			}()
			runtime.Gosched()
			r.Close()
			<-done
		}
	}
}

func FuzzEncoded(f *testing.F) {
	for coding, spelling := range spellings {
		f.Add([]byte(encode(f, coding, chatStream)), spelling, 10)
	}
	f.Fuzz(func(t *testing.T, body []byte, encoding string, at int) {
		at = min(max(at, 0), len(body))
		whole := read(Events, encoding, string(body))
		if parts := read(Events, encoding, string(body[:at]), string(body[at:])); whole != parts {
			t.Errorf("whole %+v, in two parts %+v", whole, parts)
		}
	})
}

func BenchmarkEncoded(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	var stream strings.Builder
	for range 200 {
		stream.WriteString(strings.Replace(chunk, "words", fmt.Sprint(random.Uint64()), 1))
	}
	for coding, spelling := range spellings {
		p := []byte(encode(b, coding, stream.String()))
		b.Run(coding, func(b *testing.B) {
			b.SetBytes(int64(stream.Len()))
			b.ReportAllocs()
			for b.Loop() {
				r := Reader{Format: Events, Encoding: spelling}
				for i := 0; i < len(p); i += 100 {
					r.Feed(p[i:min(i+100, len(p))])
				}
				r.End(nil)
			}
		})
	}
}
