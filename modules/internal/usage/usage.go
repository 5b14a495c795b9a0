// Package usage reads what an engine counted out of an answer that passes by.
// It copies what it must and holds nothing back.
package usage

import (
	"bytes"
	"strings"
	"sync"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/sse"
)

// A Format is how an answer's body is made up.
type Format uint8

const (
	// JSON is one JSON document.
	JSON Format = iota

	// Events are server-sent events, each with a JSON document.
	Events

	// Lines are lines of one JSON document each, as Ollama streams them.
	Lines
)

// Tokens is what an engine said of the tokens of one answer.
type Tokens struct {
	Prompt, Completion, Cached int

	// Known and CachedKnown report whether the engine spoke of tokens at
	// all, and of cached ones.
	Known, CachedKnown bool
}

// A Reader looks for the usage in an answer's body. The body is given to Feed
// piece by piece and its last piece, if it gets that far, to End. A reader that
// was fed must be ended or closed. The zero Reader reads a plain JSON body.
//
// Of a body, of an event and of a line the last usage counts, and of a stream
// the last event or line that speaks of usage. A piece of JSON longer than
// 128 KiB is looked at in its last 64 KiB: engines put the usage behind the
// text.
type Reader struct {
	// Format is the body's format.
	Format Format

	// Encoding is the body's Content-Encoding: gzip, deflate, br or zstd, in
	// any case. Nothing is read from a body that is encoded in another way,
	// or more than once.
	Encoding string

	// WantID is whether to look for the id of an answer of /v1/responses.
	WantID bool

	mu     sync.Mutex // a body may be closed while it is read
	tokens Tokens
	finish string
	id     string
	line   tail // of a stream, the line that is not whole yet; else the body
	event  tail // the data of the event, if it has more than one line
	lines  sse.Lines
	closed bool
	feeder *feeder // nil if the body is not encoded
}

// Feed takes the next bytes of the body. It does not keep p.
func (r *Reader) Feed(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || len(p) == 0:
	case r.plain():
		r.read(p)
	default:
		r.readEncoded(p, false)
	}
}

// End takes the last bytes of a body that is whole, none if they were fed
// before, and closes the reader. Only then do Tokens and Finish have a
// meaning. A JSON body that is given to End at once is not copied.
func (r *Reader) End(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return
	case r.plain():
		r.readLast(p)
	default:
		r.readEncoded(p, true)
	}
	r.tokens.Cached = min(r.tokens.Cached, r.tokens.Prompt)
	r.close()
}

// Close gives up what the reader holds. It may be called at any time, and more
// than once.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.close()
}

func (r *Reader) close() {
	r.closed = true
	if r.feeder != nil {
		r.feeder.stop()
	}
	r.line.reset()
	r.event.reset()
}

func (r *Reader) plain() bool { return Plain(r.Encoding) }

// Plain reports whether a Content-Encoding stands for none at all.
func Plain(encoding string) bool { return encoding == "" || strings.EqualFold(encoding, "identity") }

// Tokens returns what the engine counted.
func (r *Reader) Tokens() Tokens { return r.tokens }

// Finish returns the finish_reason of the first choice of a JSON body, or of
// another if the body is too long to be kept whole. It is empty if there is
// none, and for streams.
func (r *Reader) Finish() string { return r.finish }

// ID returns the id of an answer of /v1/responses: that of a JSON body after
// End, that of a stream once its first event was fed. It is empty as long as
// there is none, and if it is longer than 256 bytes.
func (r *Reader) ID() string { return r.id }

// read takes the next decoded bytes.
func (r *Reader) read(p []byte) {
	switch r.Format {
	case Events:
		r.readEvents(p)
	case Lines:
		r.readLines(p)
	default:
		r.keep(&r.line, p)
	}
}

// readLast takes the last decoded bytes.
func (r *Reader) readLast(p []byte) {
	if r.Format == JSON {
		if r.line.empty() && len(p) <= maxKept {
			r.readBody(p, false)
			return
		}
		r.keep(&r.line, p)
		r.readBody(r.line.bytes(), r.line.cut)
		return
	}
	r.read(p)
	last := r.line.bytes() // without its end
	if r.Format == Lines {
		r.readOllama(last)
		return
	}
	r.readLine(last, r.line.cut)
	r.readLine(nil, false) // nor has the event
}

func (r *Reader) readLines(p []byte) {
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			r.keep(&r.line, p)
			return
		}
		line := p[:i]
		p = p[i+1:]
		if !r.line.empty() || len(line) > maxKept {
			r.keep(&r.line, line)
			line = r.line.bytes()
		}
		r.readOllama(line)
		r.line.reset()
	}
}

func (r *Reader) readEvents(p []byte) {
	for len(p) > 0 {
		if r.lines.SkipLF(p) {
			p = p[1:]
			continue
		}
		i := r.lines.End(p)
		if i < 0 {
			r.keep(&r.line, p)
			return
		}
		line, cut := p[:i], false
		p = p[i+1:]
		if !r.line.empty() || len(line) > maxKept {
			r.keep(&r.line, line)
			line, cut = r.line.bytes(), r.line.cut
		}
		r.readLine(line, cut)
		r.line.reset()
	}
}

var dataField = []byte("data:")

// readLine reads a line of a stream of events. Of a line that is cut only the
// end of its data is left.
func (r *Reader) readLine(line []byte, cut bool) {
	if len(line) == 0 {
		if !r.event.empty() {
			r.readEvent(r.event.bytes())
			r.event.reset()
		}
		return
	}
	if !cut {
		var ok bool
		if line, ok = bytes.CutPrefix(line, dataField); !ok {
			return
		}
	} else if !r.line.data {
		return
	}
	if r.event.empty() && (cut || isObject(line)) {
		r.readEvent(line)
		return
	}
	r.keep(&r.event, line)
	r.keep(&r.event, []byte{'\n'})
}

// isObject reports whether line looks like a whole JSON object.
func isObject(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 1 && line[0] == '{' && line[len(line)-1] == '}'
}
