package transport

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A directConn is a connection to an endpoint that writes a request's body to
// the socket in one go, straight from the buffer that holds it. net/http would
// copy it piece by piece through a buffer that it allocates for each request.
type directConn struct {
	*net.TCPConn

	writes atomic.Int64

	over sync.Once
	gone chan struct{}             // closed when nothing more can be read
	lost atomic.Pointer[time.Time] // when that was found out

	mu   sync.Mutex
	idle *time.Timer // see idleFor
}

func newDirectConn(tcp *net.TCPConn) *directConn {
	return &directConn{TCPConn: tcp, gone: make(chan struct{})}
}

// Read implements [net.Conn].
func (c *directConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if err != nil {
		c.end()
	}
	return n, err
}

// Write implements [net.Conn].
func (c *directConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	n, err := c.TCPConn.Write(p)
	return n, c.linger(err)
}

// ReadFrom implements [io.ReaderFrom].
func (c *directConn) ReadFrom(r io.Reader) (n int64, err error) {
	c.writes.Add(1)
	if l, ok := r.(*io.LimitedReader); ok {
		if body, ok := l.R.(interface {
			WriteNTo(w io.Writer, n int64) (int64, error)
		}); ok {
			n, err = body.WriteNTo(c.TCPConn, l.N)
			l.N -= n
			return n, c.linger(err)
		}
	}
	n, err = c.TCPConn.ReadFrom(r)
	return n, c.linger(err)
}

// Close implements [net.Conn].
func (c *directConn) Close() error {
	c.end()
	return c.TCPConn.Close()
}

func (c *directConn) end() {
	c.over.Do(func() {
		now := time.Now()
		c.lost.Store(&now)
		close(c.gone)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.idle != nil {
			c.idle.Stop()
		}
	})
}

// lingerTime bounds the wait for an answer that was sent before the request
// was read to its end.
const lingerTime = 2 * time.Second

// linger holds back the failure of a write until what the endpoint sent before
// it closed the connection has been read. An engine that refuses an upload
// answers first and closes then; net/http forgets the answer if it sees the
// write fail.
func (c *directConn) linger(err error) error {
	if err != nil {
		late := time.NewTimer(lingerTime)
		defer late.Stop()
		select {
		case <-c.gone:
		case <-late.C:
		}
	}
	return err
}

// idleFor closes the connection in d unless it is used again before.
func (c *directConn) idleFor(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost.Load() != nil {
		return
	}
	if c.idle != nil {
		c.idle.Stop()
	}
	writes := c.writes.Load()
	c.idle = time.AfterFunc(d, func() {
		if c.writes.Load() == writes {
			_ = c.Close()
		}
	})
}
