package harness

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
)

// An Exchange is one request and the answer that the test writes to it.
type Exchange struct {
	*Received
	Upstream *Upstream

	// Nth is the place of the request among those of its connection, from 1.
	Nth int

	conn    net.Conn
	br      *bufio.Reader
	ended   bool
	stopped bool // the connection serves no further request
	gone    chan struct{}
	peeked  chan struct{}
}

// End says that the answer is on its way: from then on the upstream does not
// count the request as in flight. Whoever writes the last byte calls it before.
func (x *Exchange) End() {
	if !x.ended {
		x.ended = true
		x.Upstream.inflight.Add(-1)
	}
}

// Write writes bytes of the answer as they are.
func (x *Exchange) Write(raw string) { _, _ = io.WriteString(x.conn, raw) }

// Respond writes a whole answer.
func (x *Exchange) Respond(status int, contentType, body string) {
	x.End()
	x.Write(fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		status, http.StatusText(status), contentType, len(body), body))
}

// Answer answers with the upstream's address.
func Answer(x *Exchange) {
	x.Respond(http.StatusOK, "application/json", fmt.Sprintf(`{"upstream":%q}`, x.Upstream.Addr))
}

// StartStream writes the head of an answer in chunks.
func (x *Exchange) StartStream(contentType string) {
	x.Write("HTTP/1.1 200 OK\r\nContent-Type: " + contentType + "\r\nTransfer-Encoding: chunked\r\n\r\n")
}

// Chunk writes a chunk of a stream.
func (x *Exchange) Chunk(data string) { x.Write(fmt.Sprintf("%x\r\n%s\r\n", len(data), data)) }

// EndStream writes the end of a stream.
func (x *Exchange) EndStream() {
	x.End()
	x.Write("0\r\n\r\n")
}

// Reset tears the connection down.
func (x *Exchange) Reset() {
	x.End()
	x.stopped = true
	if tcp, ok := x.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = x.conn.Close()
}

// Close closes the connection.
func (x *Exchange) Close() {
	x.End()
	x.stopped = true
	_ = x.conn.Close()
}

// Echo sends back whatever comes on the connection, to its end.
func (x *Exchange) Echo() {
	x.stopped = true
	_, _ = io.Copy(x.conn, x.br)
}

// Gone returns a channel that is closed when the gateway closes the connection.
func (x *Exchange) Gone() <-chan struct{} {
	if x.gone == nil {
		x.gone, x.peeked = make(chan struct{}), make(chan struct{})
		go func() {
			defer close(x.peeked)
			if _, err := x.br.Peek(1); err != nil {
				close(x.gone)
			}
		}()
	}
	return x.gone
}

// waitUnwatched waits until nobody reads the connection for Gone, and reports
// whether another request is there to be read.
func (x *Exchange) waitUnwatched() bool {
	if x.peeked == nil {
		return true
	}
	<-x.peeked
	select {
	case <-x.gone:
		return false
	default:
		return true
	}
}

// A Gate holds exchanges until it is opened.
type Gate struct {
	open chan struct{}
	held atomic.Int64
	ctx  context.Context
}

// NewGate returns a closed gate. It opens at the end of the test.
func NewGate(tb testing.TB) *Gate {
	return &Gate{open: make(chan struct{}), ctx: tb.Context()}
}

// Open lets all exchanges through. It is called once.
func (g *Gate) Open() { close(g.open) }

// Held returns how many exchanges wait.
func (g *Gate) Held() int { return int(g.held.Load()) }

// Wait holds x back. It reports whether the gateway still wants an answer.
func (g *Gate) Wait(x *Exchange) bool {
	g.held.Add(1)
	defer g.held.Add(-1)
	select {
	case <-g.open:
		return true
	case <-x.Gone():
		return false
	case <-g.ctx.Done():
		return false
	}
}

// Then returns what answers requests with handle once the gate is open.
func (g *Gate) Then(handle func(*Exchange)) func(*Exchange) {
	return func(x *Exchange) {
		if g.Wait(x) {
			handle(x)
		}
	}
}
