package rewrite

import (
	"bytes"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/sse"
)

// maxHeld is the longest event that is held back, in bytes.
const maxHeld = 64 << 10

// A hider holds an event back until it is whole.
type hider struct {
	held    []byte
	passing bool // the event is too long to be held
	lines   sse.Lines
	atStart bool // at the start of a line
	hidden  bool // the last event was
}

// appendShown appends the events of src to dst that are not hidden.
func (w *Rewriter) appendShown(dst, src []byte) []byte {
	h := w.hider
	start := 0 // of what src has of the event
	for i := 0; i < len(src); {
		if h.lines.SkipLF(src[i:]) {
			i++
			if start == i-1 && len(h.held) == 0 && !h.passing { // it belongs to the last event
				if !h.hidden {
					dst = w.appendNamed(dst, src[start:i])
				}
				start = i
			}
			continue
		}
		n := h.lines.End(src[i:])
		if n < 0 {
			h.atStart = false
			break
		}
		blank := n == 0 && h.atStart
		i += n + 1
		h.atStart = true
		if blank {
			dst = w.endEvent(dst, src[start:i])
			start = i
		}
	}
	return w.hold(dst, src[start:])
}

// hold keeps a part of an event, if it is not too long.
func (w *Rewriter) hold(dst, part []byte) []byte {
	h := w.hider
	if !h.passing && len(h.held)+len(part) <= maxHeld {
		h.held = append(h.held, part...)
		return dst
	}
	dst = w.appendNamed(dst, h.held)
	h.held, h.passing = h.held[:0], true
	return w.appendNamed(dst, part)
}

// endEvent takes the last part of an event.
func (w *Rewriter) endEvent(dst, part []byte) []byte {
	h := w.hider
	event := part
	if h.passing || len(h.held) > 0 || len(part) > maxHeld {
		dst = w.hold(dst, part)
		event = h.held
	}
	h.hidden = !h.passing && isUsage(event)
	if !h.passing && !h.hidden {
		dst = w.appendNamed(dst, event)
	}
	h.held, h.passing = h.held[:0], false
	return dst
}

var choicesKey = []byte(`"choices"`)

// isUsage reports whether event says nothing but what was used.
func isUsage(event []byte) bool {
	data := dataOf(event)
	for rest := data; ; { // the most of events have choices: parse no more of them
		i := bytes.Index(rest, choicesKey)
		if i < 0 {
			return false
		}
		rest = rest[i+len(choicesKey):]
		if isEmptyList(rest) {
			break
		}
	}
	if !gjson.ValidBytes(data) {
		return false
	}
	found := gjson.GetManyBytes(data, "choices", "usage")
	choices, used := found[0], found[1]
	return choices.IsArray() && len(choices.Array()) == 0 && used.Exists() && used.Type != gjson.Null
}

// isEmptyList reports whether behind a key there is an empty list.
func isEmptyList(rest []byte) bool {
	for _, c := range []byte(":[]") {
		rest = bytes.TrimLeft(rest, " \t\r\n")
		if len(rest) == 0 || rest[0] != c {
			return false
		}
		rest = rest[1:]
	}
	return true
}

// dataOf returns the data of an event.
func dataOf(event []byte) (data []byte) {
	for n := 0; len(event) > 0; {
		line := event
		if i := sse.End(event); i >= 0 {
			line, event = event[:i], event[i+1:]
		} else {
			event = nil
		}
		part, ok := bytes.CutPrefix(line, dataField)
		if !ok {
			continue
		}
		if n++; n == 1 {
			data = part
		} else {
			data = append(append(slices.Clip(data), '\n'), part...)
		}
	}
	return data
}
