package harness

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A Conn is a client that writes bytes to the gateway itself, for what HTTP
// libraries do not send.
type Conn struct {
	*net.TCPConn
	br *bufio.Reader
}

// Dial connects to the gateway's site.
func (g *Gateway) Dial(tb testing.TB) *Conn {
	tb.Helper()
	conn, err := net.DialTimeout("tcp", g.Addr, Patience)
	if err != nil {
		tb.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(Patience))
	tb.Cleanup(func() { _ = conn.Close() })
	return &Conn{conn.(*net.TCPConn), bufio.NewReader(conn)}
}

// Send writes bytes.
func (c *Conn) Send(tb testing.TB, raw string) {
	tb.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		tb.Fatalf("sending: %v", err)
	}
}

// Response reads a whole response.
func (c *Conn) Response(tb testing.TB) *Response {
	tb.Helper()
	res := c.Head(tb)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatalf("reading the body of a response: %v", err)
	}
	return &Response{Status: res.StatusCode, Header: res.Header, Body: body}
}

// Head reads the head of a response, such as that of an upgrade.
func (c *Conn) Head(tb testing.TB) *http.Response {
	tb.Helper()
	res, err := http.ReadResponse(c.br, nil)
	if err != nil {
		tb.Fatalf("reading a response: %v", err)
	}
	return res
}

// Line reads a line.
func (c *Conn) Line(tb testing.TB) string {
	tb.Helper()
	line, err := c.br.ReadString('\n')
	if err != nil {
		tb.Fatalf("reading a line: %v", err)
	}
	return line
}

// Reset tears the connection down.
func (c *Conn) Reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// A RawConn is a connection of an upstream that does not even read requests.
type RawConn struct {
	net.Conn
	br *bufio.Reader
}

// NewRawUpstream listens in the place of an engine, and returns its address.
// Each connection is closed when serve returns.
func NewRawUpstream(tb testing.TB, serve func(*RawConn)) string {
	tb.Helper()
	ln, err := net.Listen("tcp", Loopback(0))
	if err != nil {
		tb.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(Patience))
				serve(&RawConn{conn, bufio.NewReader(conn)})
			})
		}
	})
	tb.Cleanup(func() {
		_ = ln.Close()
		serving.Wait()
	})
	return ln.Addr().String()
}

// ReadHead reads the head of a request and leaves its body where it is.
func (c *RawConn) ReadHead() {
	for {
		line, err := c.br.ReadString('\n')
		if err != nil || line == "\r\n" {
			return
		}
	}
}

// Write writes bytes of an answer.
func (c *RawConn) Write(raw string) { _, _ = io.WriteString(c.Conn, raw) }
