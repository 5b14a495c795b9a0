package coding

import (
	"io"
	"net/http"
	"strings"
)

// A lenientReader undoes one coding.
type lenientReader struct {
	pool *pool
	from io.Reader
	dec  decoder // nil until the first read
	err  error   // of the beginning
}

// NewLenientReader returns a reader of what body holds under one content
// coding, or nil if there is no coding of this name. It gives all that can be
// decoded, of bare deflate too, and then an error that has no further meaning.
// How much that is it does not bound. Nothing is read yet. Closing it gives
// back the memory of the decoder; it does not close body.
func NewLenientReader(encoding string, body io.Reader) io.ReadCloser {
	pool := lenient[strings.ToLower(strings.Trim(encoding, " \t"))]
	if pool == nil {
		return nil
	}
	return &lenientReader{pool: pool, from: body}
}

// Read implements [io.Reader].
func (l *lenientReader) Read(p []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	if l.dec == nil {
		l.dec = l.pool.get()
		if l.err = l.dec.reset(l.from); l.err != nil {
			return 0, l.err
		}
	}
	return l.dec.Read(p)
}

// Close implements [io.Closer].
func (l *lenientReader) Close() error {
	if l.dec != nil {
		l.pool.put(l.dec)
	}
	*l = lenientReader{err: http.ErrBodyReadAfterClose}
	return nil
}

// Interface guard
var _ io.ReadCloser = (*lenientReader)(nil)
