package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/usage"
)

// A watchedBody notes when an answer's body begins, what it says of tokens and
// how it ends. It never holds anything back.
type watchedBody struct {
	io.ReadCloser
	call   *call.Call
	answer *call.Answer
	usage  *usage.Reader // nil if the body cannot tell
	stream bool
	begun  bool
	done   bool
	atLine bool // in a stream, at the start of a line
	inNote bool // in a stream, within a comment
}

func watch(c *call.Call, res *http.Response) io.ReadCloser {
	contentType := res.Header.Get("Content-Type")
	b := &watchedBody{
		ReadCloser: res.Body, call: c, answer: c.Answer(),
		stream: strings.HasPrefix(contentType, "text/event-stream"), atLine: true,
	}
	success := res.StatusCode >= http.StatusOK && res.StatusCode < http.StatusMultipleChoices
	legible := res.Header.Get("Content-Encoding") == "" && (b.stream || strings.HasPrefix(contentType, "application/json"))
	if success && legible {
		b.usage = new(usage.Reader)
		if b.stream {
			b.usage.Format = usage.Events
		}
	}
	return b
}

// Read implements [io.Reader].
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.begun && n > 0 && b.speaks(p[:n]) {
		b.begun = true
		b.answer.TTFT = time.Since(b.call.Started())
		if b.stream {
			b.call.Model().Metrics.FirstToken(b.answer.TTFT)
		}
	}
	if b.usage != nil {
		b.usage.Feed(p[:n])
	}
	if err != nil {
		b.end(err)
	}
	return n, err
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
	whole := errors.Is(err, io.EOF)
	b.answer.Broken = err != nil && !whole && !errors.Is(err, context.Canceled) // which is the client's doing
	if b.usage != nil {
		defer b.usage.Close()
	}
	if b.usage != nil && whole {
		b.usage.End(nil)
		b.answer.Usage = b.usage.Tokens()
		if b.call.Completion() {
			b.call.Model().Metrics.Completed(b.call.Stream(), b.answer.Usage)
		}
	}
	b.call.Finished()
}

// speaks reports whether p holds more than comments and blank lines of a
// stream of events.
func (b *watchedBody) speaks(p []byte) bool {
	if !b.stream {
		return true
	}
	for len(p) > 0 {
		if b.inNote {
			i := bytes.IndexByte(p, '\n')
			if i < 0 {
				return false
			}
			b.inNote, b.atLine, p = false, true, p[i+1:]
			continue
		}
		switch {
		case p[0] == '\n' || p[0] == '\r':
			b.atLine = true
		case p[0] == ':' && b.atLine:
			b.inNote = true
		default:
			return true
		}
		p = p[1:]
	}
	return false
}
