package usage

import (
	"bytes"
	"sync"
)

const (
	// maxKept is the longest piece of JSON, in bytes, that is kept whole.
	maxKept = 2 * maxTail

	// maxTail is how much is kept of the end of a longer one, in bytes.
	maxTail = 64 << 10

	// usual is the size, in bytes, that is enough for most of answers.
	usual = 16 << 10
)

// A tail is a piece of JSON that came in parts, or the end of a long one.
type tail struct {
	buf  *buffer
	cut  bool // the beginning is gone
	data bool // and was that of a line with data
}

type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{make([]byte, 0, 4<<10)} }}

// grow makes room for n bytes: enough for most of answers, or else for all that
// is ever kept.
func (b *buffer) grow(n int) {
	need, size := len(b.b)+n, usual
	if need <= cap(b.b) {
		return
	}
	if need > usual {
		size = maxKept
	}
	b.b = append(make([]byte, 0, size), b.b...)
}

func (t *tail) empty() bool { return t.buf == nil }

// bytes returns what is looked at: the same however the piece came.
func (t *tail) bytes() []byte {
	switch {
	case t.buf == nil:
		return nil
	case t.cut:
		return t.buf.b[len(t.buf.b)-maxTail:]
	}
	return t.buf.b
}

func (t *tail) reset() {
	if t.buf != nil {
		t.buf.b = t.buf.b[:0]
		buffers.Put(t.buf)
	}
	*t = tail{}
}

// keep appends p to t. What is cut off has been looked at for what stands at
// the beginning of an answer.
func (r *Reader) keep(t *tail, p []byte) {
	if t.buf == nil && len(p) > 0 {
		t.buf = buffers.Get().(*buffer)
	}
	for len(p) > 0 {
		if len(t.buf.b) == maxKept {
			if !t.cut {
				r.readHead(t)
				t.cut = true
			}
			from := maxKept - maxTail
			if skip := len(p) - maxTail; skip > 0 {
				from, p = maxKept, p[skip:]
			}
			t.buf.b = t.buf.b[:copy(t.buf.b, t.buf.b[from:])]
		}
		n := min(len(p), maxKept-len(t.buf.b))
		t.buf.grow(n)
		t.buf.b = append(t.buf.b, p[:n]...)
		p = p[n:]
	}
}

// readHead reads the first maxKept bytes of a longer piece.
func (r *Reader) readHead(t *tail) {
	head := t.buf.b
	switch r.Format {
	case JSON:
		r.readFinish(head)
		r.readID(head)
	case Events:
		if t == &r.line {
			head, t.data = bytes.CutPrefix(head, dataField)
		}
		if t.data || t == &r.event {
			r.readID(head)
		}
	}
}
