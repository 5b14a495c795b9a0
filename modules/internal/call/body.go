package call

import (
	"errors"
	"io"
	"math/bits"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// A buffer holds a request's body. Its memory goes back to a pool when the
// call has ended and no attempt is still reading from it: net/http may go on
// writing a body after RoundTrip has returned. The buffer itself is used for
// one body only, so that a late reader finds it closed for good.
type buffer struct {
	b    []byte
	mem  *memory
	refs atomic.Int32
}

// memory is what pools hold.
type memory struct{ b []byte }

// Pooled memory comes in powers of two.
const (
	smallest = 12 // 4 KiB
	largest  = 26 // 64 MiB; a larger piece is left to the garbage collector
)

// small is the size up to which a body is copied out of its buffer, in bytes.
const small = 1 << smallest

var pools [largest + 1]sync.Pool

// newBuffer returns an empty buffer with room for at least n bytes.
func newBuffer(n int) *buffer {
	class := max(smallest, bits.Len(uint(max(n, 1)-1)))
	var mem *memory
	if class <= largest {
		mem, _ = pools[class].Get().(*memory)
	}
	if mem == nil {
		mem = &memory{b: make([]byte, 0, 1<<class)}
	}
	buf := &buffer{b: mem.b, mem: mem}
	buf.refs.Store(1)
	return buf
}

// retain takes one more reference, unless there is none any more.
func (buf *buffer) retain() bool {
	for {
		n := buf.refs.Load()
		if n == 0 {
			return false
		}
		if buf.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (buf *buffer) release() {
	if buf.refs.Add(-1) > 0 {
		return
	}
	if class := bits.Len(uint(cap(buf.mem.b))) - 1; class <= largest {
		pools[class].Put(buf.mem)
	}
}

// readBody reads r to its end, or until more than limit bytes have come. It
// reports how the reading ended: nil at the end of the body, errTooLarge, or
// r's error. Memory grows with what arrives, at most eight times as fast, and
// never with length, the announced length, which is negative if unknown.
func readBody(r io.Reader, length, limit int64) (*buffer, error) {
	buf := newBuffer(1 << smallest)
	for {
		if len(buf.b) == cap(buf.b) {
			buf = grow(buf, length, limit)
		}
		n, err := r.Read(buf.b[len(buf.b):cap(buf.b)])
		buf.b = buf.b[:len(buf.b)+n]
		switch {
		case int64(len(buf.b)) > limit:
			return buf, errTooLarge
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}

// grow returns a larger buffer with the same content.
func grow(buf *buffer, length, limit int64) *buffer {
	next := min(8*int64(cap(buf.b)), limit+1)
	// one byte more than announced, so that the end shows without growing
	if length > int64(len(buf.b)) && length < next {
		next = length + 1
	}
	larger := newBuffer(int(next))
	larger.b = append(larger.b, buf.b...)
	buf.release()
	return larger
}

var errTooLarge = errors.New("request body is too large")

func lengthOf(pieces [][]byte) (n int64) {
	for _, b := range pieces {
		n += int64(len(b))
	}
	return n
}

// An attemptBody is the body of one attempt: a fresh reader over the call's
// buffer. It holds on to the buffer from its first read until it is closed.
type attemptBody struct {
	buf  *buffer
	rest [][]byte // what was not read yet, in pieces

	mu     sync.Mutex
	held   bool // holds a reference
	busy   bool // somebody reads at this moment
	closed bool
}

// begin reports whether the buffer may be read now.
func (a *attemptBody) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	if !a.held {
		if !a.buf.retain() {
			a.closed = true
			return false
		}
		a.held = true
	}
	a.busy = true
	return true
}

func (a *attemptBody) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy = false
	a.drop()
}

// drop gives the reference back once nobody reads any more. Close may come
// from another goroutine in the middle of a read.
func (a *attemptBody) drop() {
	if a.closed && a.held && !a.busy {
		a.held = false
		a.buf.release()
	}
}

// Read implements [io.Reader].
func (a *attemptBody) Read(p []byte) (n int, err error) {
	if !a.begin() {
		return 0, http.ErrBodyReadAfterClose
	}
	defer a.end()
	for len(a.rest) > 0 {
		m := copy(p[n:], a.rest[0])
		n += m
		if a.rest[0] = a.rest[0][m:]; len(a.rest[0]) > 0 {
			break
		}
		a.rest = a.rest[1:]
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteNTo writes at most n bytes to w in one go, without copying them.
func (a *attemptBody) WriteNTo(w io.Writer, n int64) (int64, error) {
	if !a.begin() {
		return 0, http.ErrBodyReadAfterClose
	}
	defer a.end()
	var now net.Buffers
	for len(a.rest) > 0 && n > 0 {
		b := a.rest[0][:min(int64(len(a.rest[0])), n)]
		if len(b) > 0 {
			now = append(now, b)
			n -= int64(len(b))
		}
		if a.rest[0] = a.rest[0][len(b):]; len(a.rest[0]) == 0 {
			a.rest = a.rest[1:]
		}
	}
	return now.WriteTo(w)
}

// WriteTo implements [io.WriterTo].
func (a *attemptBody) WriteTo(w io.Writer) (int64, error) { return a.WriteNTo(w, 1<<62) }

// Close implements [io.Closer].
func (a *attemptBody) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.drop()
	return nil
}
