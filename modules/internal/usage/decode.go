package usage

import (
	"bufio"
	"io"
	"iter"
	"strings"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

const (
	// maxWindow is the window, in bytes, that a decoder of the content coding
	// zstd must have and need not exceed (RFC 9659).
	maxWindow = 8 << 20

	// A body may grow to maxGrowth times the bytes that came, and by maxGrown
	// bytes more: the client waits while what it is sent is decoded.
	maxGrowth = 256
	maxGrown  = 16 << 20
)

// A feeder decodes a copy of a body for its reader. Decoders pull, but the
// body is pushed: they run as a coroutine that rests where they want more.
type feeder struct {
	source source
	resume func() (struct{}, bool)
	stop   func()
}

// readEncoded takes the next bytes of an encoded body.
func (r *Reader) readEncoded(p []byte, last bool) {
	f := r.feeder
	if f == nil {
		f = new(feeder)
		f.resume, f.stop = iter.Pull(func(rest func(struct{}) bool) {
			f.source.rest = rest
			r.decode(&f.source)
		})
		r.feeder = f
	}
	f.source.p, f.source.last = p, last
	f.source.came += len(p)
	f.resume()
	f.source.p = nil
}

// decode reads the body that comes from s, up to its end or to where it is no
// good.
func (r *Reader) decode(s *source) {
	pool := codings[strings.ToLower(strings.TrimSpace(r.Encoding))]
	if pool == nil {
		return
	}
	d := pool.Get().(decoder)
	defer func() {
		_ = d.Reset(new(source)) // let go of s
		pool.Put(d)
	}()
	err := d.Reset(s)
	buf := make([]byte, 4<<10)
	for grown := 0; err == nil && grown <= maxGrown+maxGrowth*s.came; {
		var n int
		n, err = d.Read(buf)
		r.read(buf[:n])
		grown += n
	}
	if !s.closed {
		r.readLast(nil)
	}
}

// A source is what a decoder reads from.
type source struct {
	p      []byte
	came   int
	last   bool
	closed bool
	rest   func(struct{}) bool // nil if no more will come
}

// Read implements [io.Reader].
func (s *source) Read(b []byte) (int, error) {
	for len(s.p) == 0 {
		if s.last || s.closed || s.rest == nil {
			return 0, io.EOF
		}
		s.closed = !s.rest(struct{}{})
	}
	n := copy(b, s.p)
	s.p = s.p[n:]
	return n, nil
}

// A decoder can be used again.
type decoder interface {
	io.Reader
	Reset(from io.Reader) error
}

var (
	gzips    = sync.Pool{New: func() any { return new(gzip.Reader) }}
	deflates = sync.Pool{New: func() any { return new(deflate) }}
	brotlis  = sync.Pool{New: func() any { return brotli.NewReader(nil) }}
	zstds    = sync.Pool{New: newZstd}

	// codings are the content codings by their names.
	codings = map[string]*sync.Pool{
		"gzip": &gzips, "x-gzip": &gzips, "deflate": &deflates, "br": &brotlis, "zstd": &zstds,
	}
)

func newZstd() any {
	// With a concurrency of 1 it has no goroutines that somebody must stop.
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		panic(err) // not with these options
	}
	return d
}

// deflate is the zlib format, as the name says in HTTP, or the bare deflate
// that some servers send.
type deflate struct {
	in  *bufio.Reader
	out io.Reader
}

// Reset implements [decoder].
func (d *deflate) Reset(from io.Reader) (err error) {
	d.in, d.out = bufio.NewReader(from), nil // which held on to another body
	head, err := d.in.Peek(2)
	if err != nil {
		return err
	}
	if head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		d.out, err = zlib.NewReader(d.in)
	} else {
		d.out = flate.NewReader(d.in)
	}
	return err
}

// Read implements [decoder].
func (d *deflate) Read(p []byte) (int, error) { return d.out.Read(p) }

// Interface guards
var (
	_ decoder = (*gzip.Reader)(nil)
	_ decoder = (*deflate)(nil)
	_ decoder = (*brotli.Reader)(nil)
	_ decoder = (*zstd.Decoder)(nil)
)
