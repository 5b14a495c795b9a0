// Package rewrite edits an engine's answer as it passes by: it gives the model
// the name that the client asked for, and hides the usage that the client did
// not ask for.
package rewrite

import (
	"bytes"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/sse"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/usage"
)

// Options say what is edited.
type Options struct {
	// Model replaces the model's name in the answer: the string that is the
	// value of model at the top level of a JSON body, of each line, and of the
	// data of each event, there also within response (/v1/responses) and
	// message (/v1/messages). Empty leaves the names as they are.
	Model string

	// HideUsage drops the events of a stream that an engine sends because it
	// was asked for usage: those whose choices are an empty list and whose
	// usage is not null. A usage of null in the other events stays.
	HideUsage bool
}

// A Rewriter edits one answer, which is not encoded. All bytes that are not
// edited stay as they are, in their order. From where the answer is not the
// JSON that is expected, it passes unchanged: a JSON body to its end, a stream
// to the end of the event or line.
//
// What cannot be decided yet is held back: the value of model, up to 4 KiB,
// and with HideUsage an event to its end, up to 64 KiB. What is longer passes
// unchanged.
type Rewriter struct {
	format   usage.Format
	maps     bool
	document document

	// Where in a stream the bytes are that get their names.
	lines  sse.Lines
	prefix int  // how much of dataField the line begins with
	other  bool // the line has another field, or is a comment

	hider *hider // nil if nothing is hidden
}

var dataField = []byte("data:")

// New returns a rewriter of a body of that format.
func New(format usage.Format, o Options) *Rewriter {
	w := &Rewriter{format: format, maps: o.Model != ""}
	if w.maps {
		w.document = document{model: quote(o.Model), inner: format == usage.Events}
	}
	if o.HideUsage && format == usage.Events {
		w.hider = &hider{atStart: true}
	}
	return w
}

// Append appends to dst what becomes of the next bytes of the body, as far as
// that is decided. It does not keep src, which must not overlap dst.
func (w *Rewriter) Append(dst, src []byte) []byte {
	if w.hider != nil {
		return w.appendShown(dst, src)
	}
	return w.appendNamed(dst, src)
}

// Finish appends to dst what is left at the end of the body.
func (w *Rewriter) Finish(dst []byte) []byte {
	if h := w.hider; h != nil && len(h.held) > 0 {
		if !isUsage(h.held) {
			dst = w.appendNamed(dst, h.held)
		}
		h.held = nil
	}
	return w.document.release(dst)
}

// appendNamed appends src to dst, with the model's name.
func (w *Rewriter) appendNamed(dst, src []byte) []byte {
	switch {
	case !w.maps:
		return append(dst, src...)
	case w.format == usage.Events:
		return w.appendEvents(dst, src)
	case w.format == usage.Lines:
		return w.appendLines(dst, src)
	}
	return w.document.append(dst, src)
}

func (w *Rewriter) appendLines(dst, src []byte) []byte {
	for {
		i := bytes.IndexByte(src, '\n')
		if i < 0 {
			return w.document.append(dst, src)
		}
		dst = w.document.append(dst, src[:i])
		dst = append(w.document.release(dst), '\n')
		w.document.reset()
		src = src[i+1:]
	}
}

func (w *Rewriter) appendEvents(dst, src []byte) []byte {
	for len(src) > 0 {
		if w.lines.SkipLF(src) {
			dst = append(dst, '\n')
			src = src[1:]
			continue
		}
		i := w.lines.End(src)
		if i < 0 {
			return w.appendLine(dst, src)
		}
		dst = w.appendLine(dst, src[:i])
		dst = w.endLine(dst)
		dst = append(dst, src[i])
		src = src[i+1:]
	}
	return dst
}

// appendLine appends a part of a line of a stream of events.
func (w *Rewriter) appendLine(dst, part []byte) []byte {
	i := 0
	for i < len(part) && w.prefix < len(dataField) && !w.other {
		if part[i] != dataField[w.prefix] {
			w.other = true
			break
		}
		i++
		if w.prefix++; w.prefix == len(dataField) && w.document.state == done {
			w.document.reset() // the blank line between two events was forgotten
		}
	}
	dst = append(dst, part[:i]...)
	if w.other {
		return append(dst, part[i:]...)
	}
	return w.document.append(dst, part[i:])
}

// endLine takes the end of a line, which in a document is white space, or of
// an event.
func (w *Rewriter) endLine(dst []byte) []byte {
	switch {
	case w.prefix == len(dataField):
		dst = w.document.endLine(dst)
	case w.prefix == 0 && !w.other:
		w.document.reset()
	}
	w.prefix, w.other = 0, false
	return dst
}
