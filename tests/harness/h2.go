package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An H2Conn is a connection of an HTTP/2 server without TLS in the place of an
// engine. The test writes its frames, which HTTP libraries write as they see
// fit.
type H2Conn struct {
	*http2.Framer
	bodies map[uint32]*bytes.Buffer
}

// NewH2Upstream listens in the place of an engine, and returns its address.
// Each connection is closed when serve returns.
func NewH2Upstream(tb testing.TB, serve func(*H2Conn)) string {
	tb.Helper()
	return NewRawUpstream(tb, func(conn *RawConn) {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(conn.br, preface); err != nil || string(preface) != http2.ClientPreface {
			return
		}
		c := &H2Conn{Framer: http2.NewFramer(conn.Conn, conn.br), bodies: make(map[uint32]*bytes.Buffer)}
		c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		if c.WriteSettings() == nil {
			serve(c)
		}
	})
}

// Begun returns the next stream on which a request begins, whose body may be
// on its way yet; 0 if none comes any more.
func (c *H2Conn) Begun() uint32 {
	for {
		stream, _, err := c.next()
		if err != nil {
			return 0
		}
		if stream != 0 && c.bodies[stream].Len() == 0 {
			return stream
		}
	}
}

// Request returns the next stream whose request has come whole, and its body;
// 0 if none comes any more.
func (c *H2Conn) Request() (stream uint32, body []byte) {
	for {
		stream, ended, err := c.next()
		if err != nil {
			return 0, nil
		}
		if ended {
			body := c.bodies[stream].Bytes()
			delete(c.bodies, stream)
			return stream, body
		}
	}
}

// next reads a frame and does what the protocol asks for. It returns the stream
// that the frame is of if that is one of a request.
func (c *H2Conn) next() (stream uint32, ended bool, err error) {
	frame, err := c.ReadFrame()
	if err != nil {
		return 0, false, err
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			err = c.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = c.WritePing(true, f.Data)
		}
	case *http2.MetaHeadersFrame:
		c.bodies[f.StreamID] = new(bytes.Buffer)
		return f.StreamID, f.StreamEnded(), nil
	case *http2.DataFrame:
		body := c.bodies[f.StreamID]
		if n := f.Length; n > 0 {
			err = c.WriteWindowUpdate(0, n)
			if body != nil {
				err = errors.Join(err, c.WriteWindowUpdate(f.StreamID, n))
			}
		}
		if body == nil { // the stream was reset
			return 0, false, err
		}
		body.Write(f.Data())
		return f.StreamID, f.StreamEnded(), err
	}
	return 0, false, err
}

// Reset resets a stream, of which no more is read.
func (c *H2Conn) Reset(stream uint32, code http2.ErrCode) {
	delete(c.bodies, stream)
	_ = c.WriteRSTStream(stream, code)
}

// Start writes the head of an answer.
func (c *H2Conn) Start(stream uint32, status int, contentType string) {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":status", Value: strconv.Itoa(status)},
		{Name: "content-type", Value: contentType},
	} {
		_ = enc.WriteField(f)
	}
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
}

// Respond writes a whole answer.
func (c *H2Conn) Respond(stream uint32, body string) {
	c.Start(stream, http.StatusOK, "application/json")
	_ = c.WriteData(stream, true, fmt.Append(nil, body))
}
