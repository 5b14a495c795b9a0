package usage

import (
	"io"
	"iter"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/coding"
)

// A body may grow to maxGrowth times the bytes that came, and by maxGrown bytes
// more: the client waits while what it is sent is decoded.
const (
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
	d := coding.NewLenientReader(r.Encoding, s)
	if d == nil {
		return
	}
	defer d.Close()
	buf := make([]byte, 4<<10)
	var err error
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
	rest   func(struct{}) bool
}

// Read implements [io.Reader].
func (s *source) Read(b []byte) (int, error) {
	for len(s.p) == 0 {
		if s.last || s.closed {
			return 0, io.EOF
		}
		s.closed = !s.rest(struct{}{})
	}
	n := copy(b, s.p)
	s.p = s.p[n:]
	return n, nil
}

// Interface guard
var _ io.Reader = (*source)(nil)
