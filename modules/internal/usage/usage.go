// Package usage reads what an engine counted out of an answer that passes by.
// It copies what it must and holds nothing back.
package usage

import (
	"bytes"
	"math"

	"github.com/tidwall/gjson"
)

// Tokens is what an engine said of the tokens of one answer.
type Tokens struct {
	Prompt, Completion, Cached int

	// Known and CachedKnown report whether the engine spoke of tokens at
	// all, and of cached ones.
	Known, CachedKnown bool
}

// A Reader looks for the usage in an answer's body. The zero Reader reads a
// JSON body; one with Stream set reads server-sent events, of which the last
// that speaks of usage counts.
type Reader struct {
	Stream bool

	tokens Tokens
	kept   []byte // of a stream, the line that is not whole yet
	cut    bool   // kept is not the beginning
}

const (
	// maxLine is the longest line of a stream that is looked at, in bytes.
	maxLine = 1 << 20

	// maxTail is how much of the end of a JSON body is kept at least, in
	// bytes. Engines put the usage behind the text.
	maxTail = 64 << 10
)

var (
	mark = []byte(`"usage"`)
	data = []byte("data:")
)

// Feed takes the next bytes of the body. It does not keep p.
func (r *Reader) Feed(p []byte) {
	if !r.Stream {
		r.keepTail(p)
		return
	}
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			r.keepLine(p)
			return
		}
		line := p[:i]
		p = p[i+1:]
		if len(r.kept) > 0 {
			r.keepLine(line)
			line = r.kept
			r.kept = r.kept[:0]
		}
		if !r.cut {
			r.readLine(line)
		}
		r.cut = false
	}
}

func (r *Reader) keepLine(p []byte) {
	if r.cut || len(r.kept)+len(p) > maxLine {
		r.cut = true
		p = p[:min(len(p), 1)] // what is kept is not looked at any more
		if len(r.kept) > 0 {
			return
		}
	}
	r.kept = append(r.kept, p...)
}

func (r *Reader) readLine(line []byte) {
	payload, ok := bytes.CutPrefix(line, data)
	if ok {
		r.read(payload)
	}
}

func (r *Reader) keepTail(p []byte) {
	if len(p) > maxTail {
		p, r.cut = p[len(p)-maxTail:], true
		r.kept = r.kept[:0]
	}
	if len(r.kept)+len(p) > 2*maxTail {
		r.cut = true
		r.kept = append(r.kept[:0], r.kept[len(r.kept)-(maxTail-len(p)):]...)
	}
	r.kept = append(r.kept, p...)
}

// Tokens returns what was found, once the body has ended.
func (r *Reader) Tokens() Tokens {
	switch {
	case r.Stream && len(r.kept) > 0 && !r.cut:
		r.readLine(r.kept) // a last line without its end
	case !r.Stream:
		r.read(r.kept)
	}
	r.kept = nil
	r.tokens.Cached = min(r.tokens.Cached, r.tokens.Prompt)
	return r.tokens
}

// read looks for the last usage in a piece of JSON, wherever the API puts it:
// at the top, or in the response or message that an event is about. Within a
// string the quotes of the mark would be escaped.
func (r *Reader) read(piece []byte) {
	i := bytes.LastIndex(piece, mark)
	if i < 0 {
		return
	}
	rest := bytes.TrimLeft(piece[i+len(mark):], " \t\r\n")
	if len(rest) > 0 && rest[0] == ':' {
		r.take(gjson.ParseBytes(rest[1:]))
	}
}

// take reads a usage object. An event may tell a part of it only.
func (r *Reader) take(u gjson.Result) {
	if !u.IsObject() {
		return
	}
	u.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "prompt_tokens", "input_tokens":
			r.tokens.Known = count(value, &r.tokens.Prompt) || r.tokens.Known
		case "completion_tokens", "output_tokens":
			r.tokens.Known = count(value, &r.tokens.Completion) || r.tokens.Known
		case "cache_read_input_tokens":
			r.tokens.CachedKnown = count(value, &r.tokens.Cached) || r.tokens.CachedKnown
		case "prompt_tokens_details", "input_tokens_details":
			if value.IsObject() {
				r.tokens.CachedKnown = count(value.Get("cached_tokens"), &r.tokens.Cached) || r.tokens.CachedKnown
			}
		}
		return true
	})
}

// count stores a number of tokens in n, if value is one.
func count(value gjson.Result, n *int) bool {
	if value.Type != gjson.Number || value.Num < 0 || value.Num > math.MaxInt32 {
		return false
	}
	*n = int(value.Num)
	return true
}
