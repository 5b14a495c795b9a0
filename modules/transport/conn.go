package transport

import (
	"io"
	"net"
)

// A directConn writes a request's body to the socket in one go, straight from
// the buffer that holds it. net/http would copy it piece by piece through a
// buffer that it allocates for each request.
type directConn struct{ *net.TCPConn }

// ReadFrom implements [io.ReaderFrom].
func (c *directConn) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if body, ok := l.R.(interface {
			WriteNTo(w io.Writer, n int64) (int64, error)
		}); ok {
			n, err := body.WriteNTo(c.TCPConn, l.N)
			l.N -= n
			return n, err
		}
	}
	return c.TCPConn.ReadFrom(r)
}
