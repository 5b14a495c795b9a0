package transport

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/rewrite"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/usage"
)

// A watchedBody notes when an answer's body begins, what it says of tokens and
// how it ends, and gives the model the name that the client knows it by. It
// holds nothing back but what it is about to change.
type watchedBody struct {
	io.ReadCloser
	attempt *attempt
	res     *http.Response
	usage   *usage.Reader     // nil if the body cannot tell
	rewrite *rewrite.Rewriter // nil if nothing is to be changed
	stream  bool
	events  bool // the stream is one of server-sent events

	begun  bool
	done   bool
	inNote bool // in a stream of events, within a comment
	tells  bool // its end is told in trailers

	buf, out []byte // what was rewritten, and what of it was not read yet
	err      error  // that follows it
}

// watch returns a body for the client in the place of res's own.
func (a *attempt) watch(res *http.Response) *watchedBody {
	c := a.call
	b := &a.body
	*b = watchedBody{ReadCloser: res.Body, attempt: a, res: res}
	res.Body = b
	var format usage.Format
	switch t := openai.MediaType(res.Header["Content-Type"]); {
	case t == "application/json", strings.HasSuffix(t, "+json"):
		format = usage.JSON
	case t == "text/event-stream":
		format, b.stream, b.events = usage.Events, true, true
	case t == "application/x-ndjson":
		format, b.stream = usage.Lines, true
	default:
		return b
	}
	if b.ReadCloser == http.NoBody || res.StatusCode == http.StatusPartialContent {
		return b
	}
	if b.stream && a.cancel == nil { // nobody said that it would be one
		a.cancel = func(error) { _ = b.ReadCloser.Close() }
		a.watchdog.start(a, a.model.Policy.FirstByte)
	}
	if res.StatusCode >= http.StatusOK && res.StatusCode < http.StatusMultipleChoices {
		encoding := strings.Join(res.Header["Content-Encoding"], ",")
		b.usage = &a.usage
		b.usage.Format, b.usage.Encoding, b.usage.WantID = format, encoding, c.Binds()
		if model, hide := c.Renamed(), c.HidesUsage() && b.events; (model != "" || hide) && usage.Plain(encoding) {
			b.rewrite = rewrite.New(format, rewrite.Options{Model: model, HideUsage: hide})
			res.ContentLength = -1 // it is another one
			call.DropDigests(res.Header)
			for _, field := range []string{"Content-Length", "Etag", "Accept-Ranges"} {
				delete(res.Header, field)
			}
		}
	}
	return b
}

// Read implements [io.Reader].
func (b *watchedBody) Read(p []byte) (int, error) {
	for len(b.out) == 0 && b.err == nil && len(p) > 0 {
		n, err := b.read(p)
		if b.rewrite == nil {
			return n, err
		}
		b.buf = b.rewrite.Append(b.buf[:0], p[:n])
		if b.err = err; err != nil {
			b.buf = b.rewrite.Finish(b.buf)
		}
		b.out = b.buf
	}
	n := copy(p, b.out)
	if b.out = b.out[n:]; len(b.out) == 0 {
		return n, b.err
	}
	return n, nil
}

// read is Read for what the endpoint sends.
func (b *watchedBody) read(p []byte) (int, error) {
	n, err := b.receive(p)
	switch {
	case b.usage == nil:
	case errors.Is(err, io.EOF):
		b.usage.End(p[:n])
	default:
		b.usage.Feed(p[:n])
		if id := b.usage.ID(); id != "" {
			b.attempt.call.Bind(id, b.attempt.endpoint)
		}
	}
	if err != nil {
		b.end(err)
	}
	return n, err
}

// receive is read for those who see to the end and the usage themselves.
func (b *watchedBody) receive(p []byte) (int, error) {
	w := &b.attempt.watchdog
	w.wait()
	n, err := b.ReadCloser.Read(p)
	w.got()
	if !b.begun && n > 0 && b.speaks(p[:n]) {
		b.begin()
	}
	return n, err
}

// begin takes note of the first byte.
func (b *watchedBody) begin() {
	b.begun = true
	a := b.attempt
	ans := a.call.Answer()
	ans.TTFT = time.Since(a.call.Started())
	if b.stream {
		a.model.Metrics.FirstToken(ans.TTFT)
	}
	a.watchdog.flow()
	if a.fine && !a.endpoint.Health().Healthy() {
		a.endpoint.Health().Succeeded() // its end may be far
	}
}

// Close implements [io.Closer]. The answer may be given up in the middle.
func (b *watchedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(nil)
	return err
}

// end takes note of the end of the body: err is io.EOF if it is whole, nil if
// nobody wants the rest of it.
func (b *watchedBody) end(err error) {
	if b.done {
		return
	}
	b.done = true
	a := b.attempt
	whole := errors.Is(err, io.EOF)
	ans := a.call.Answer()
	ans.Broken = err != nil && !whole && a.client.Err() == nil
	switch {
	case ans.Broken:
		a.blame()
	case whole && a.fine:
		a.endpoint.Health().Succeeded()
	}
	if b.usage != nil {
		b.usage.Close()
		if whole {
			ans.Usage = b.usage.Tokens()
			if id := b.usage.ID(); id != "" {
				a.call.Bind(id, a.endpoint)
			}
			if a.call.Completion() {
				a.model.Metrics.Completed(b.stream, ans.Usage)
			}
		}
	}
	if len(b.res.Trailer) > 0 {
		b.tell()
	}
	if conn := a.tcpConn(); whole && a.idle > 0 && conn != nil && b.res.ProtoMajor == 1 {
		conn.idleFor(a.idle)
	}
	a.end()
	a.call.Finished(a.lease)
}

// speaks reports whether p holds more than comments and blank lines of a
// stream of events.
func (b *watchedBody) speaks(p []byte) bool {
	if !b.events {
		return true
	}
	for len(p) > 0 {
		if b.inNote {
			i := bytes.IndexAny(p, "\r\n")
			if i < 0 {
				return false
			}
			b.inNote, p = false, p[i+1:]
			continue
		}
		switch p[0] {
		case '\n', '\r':
		case ':':
			b.inNote = true
		default:
			return true
		}
		p = p[1:]
	}
	return false
}
