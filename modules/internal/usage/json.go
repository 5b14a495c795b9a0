package usage

import (
	"bytes"
	"math"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
)

// A key is what to look for in JSON: a member's name in quotes. Within a string
// the quotes would be escaped.
type key struct {
	text  []byte
	pivot int // the byte of text that is rare in answers
}

var (
	usageKey      = key{[]byte(`"usage"`), len(`"usa`)}
	finishKey     = key{[]byte(`"finish_reason"`), len(`"finish`)}
	evalKey       = key{[]byte(`"eval_count"`), len(`"eval`)}
	promptEvalKey = key{[]byte(`"prompt_eval_count"`), len(`"prompt`)}
	anyEvalKey    = key{[]byte(`eval_count"`), len(`eval`)}
)

const (
	// maxID is the longest id of an answer that is taken, in bytes.
	maxID = 256

	// maxFinish is the longest finish_reason that is taken, in bytes.
	maxFinish = 64
)

// readBody reads a JSON body. Of one that is cut only the end is left.
func (r *Reader) readBody(body []byte, cut bool) {
	if !r.readUsage(body) {
		r.readOllama(body)
	}
	if !cut {
		r.readID(body)
	}
	if r.finish == "" { // not in the beginning that was cut off
		r.readFinish(body)
	}
}

// readEvent reads the data of an event.
func (r *Reader) readEvent(data []byte) {
	if usageKey.index(data) >= 0 {
		r.readUsage(data)
	}
	r.readID(data)
}

// readUsage looks for the last usage in a piece of JSON, wherever the API puts
// it: at the top, or in the response or message that an event is about.
func (r *Reader) readUsage(piece []byte) bool {
	for i := len(piece); ; {
		if i = usageKey.lastIndex(piece[:i]); i < 0 {
			return false
		}
		if r.takeUsage(usageKey.value(piece[i:])) {
			return true
		}
	}
}

// takeUsage reads a usage object. An event may tell a part of it only.
func (r *Reader) takeUsage(value []byte) (found bool) {
	gjson.Parse(view(object(value))).ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "prompt_tokens", "input_tokens":
			found = count(value, &r.tokens.Prompt, &r.tokens.Known) || found
		case "completion_tokens", "output_tokens":
			found = count(value, &r.tokens.Completion, &r.tokens.Known) || found
		case "cache_read_input_tokens":
			found = count(value, &r.tokens.Cached, &r.tokens.CachedKnown) || found
		case "prompt_tokens_details", "input_tokens_details":
			if value.IsObject() {
				found = count(value.Get("cached_tokens"), &r.tokens.Cached, &r.tokens.CachedKnown) || found
			}
		}
		return true
	})
	return found
}

// readOllama reads the counts of an answer of Ollama's, at its top level.
func (r *Reader) readOllama(piece []byte) {
	if anyEvalKey.index(piece) < 0 {
		return
	}
	if i := promptEvalKey.lastIndex(piece); i >= 0 {
		count(scalar(promptEvalKey.value(piece[i:])), &r.tokens.Prompt, &r.tokens.Known)
	}
	if i := evalKey.lastIndex(piece); i >= 0 {
		count(scalar(evalKey.value(piece[i:])), &r.tokens.Completion, &r.tokens.Known)
	}
}

// readFinish looks for the first finish_reason, if it may stand in a header.
func (r *Reader) readFinish(piece []byte) {
	i := finishKey.index(piece)
	if i < 0 {
		return
	}
	reason := scalar(finishKey.value(piece[i:]))
	if reason.Type != gjson.String || len(reason.Str) > maxFinish {
		return
	}
	for _, c := range []byte(reason.Str) {
		if c <= ' ' || c > '~' {
			return
		}
	}
	switch reason.Str {
	case "stop":
		r.finish = "stop"
	case "length":
		r.finish = "length"
	case "tool_calls":
		r.finish = "tool_calls"
	default:
		r.finish = strings.Clone(reason.Str)
	}
}

// readID looks for the id of an answer of /v1/responses in the beginning of a
// body or event.
func (r *Reader) readID(piece []byte) {
	if !r.WantID || r.id != "" {
		return
	}
	var id gjson.Result
	switch {
	case r.Format == Events:
		id = gjson.Get(view(piece), "response.id")
	case gjson.Get(view(piece), "object").Str == "response":
		id = gjson.Get(view(piece), "id")
	}
	if id.Type == gjson.String && len(id.Str) <= maxID {
		r.id = strings.Clone(id.Str)
	}
}

// count stores a number of tokens in n, if value is one, and reports that.
func count(value gjson.Result, n *int, known *bool) bool {
	if value.Type != gjson.Number || !(value.Num >= 0 && value.Num <= math.MaxInt32) {
		return false
	}
	*n, *known = int(value.Num), true
	return true
}

// index returns the index of the first k in piece, or -1. It does what
// [bytes.Index] does, which is slow where each other byte is a quote.
func (k key) index(piece []byte) int {
	for i, fails := k.pivot, 0; i < len(piece); i++ {
		next := bytes.IndexByte(piece[i:], k.text[k.pivot])
		if next < 0 {
			return -1
		}
		i += next
		if bytes.HasPrefix(piece[i-k.pivot:], k.text) {
			return i - k.pivot
		}
		if fails++; fails > 8+i/16 { // not so rare here
			from := i + 1 - k.pivot
			if next = bytes.Index(piece[from:], k.text); next < 0 {
				return -1
			}
			return from + next
		}
	}
	return -1
}

// lastIndex returns the index of the last k in piece, or -1.
func (k key) lastIndex(piece []byte) int {
	const near = 512 // bytes.LastIndex is slow
	from := max(0, len(piece)-near)
	if i := bytes.LastIndex(piece[from:], k.text); i >= 0 {
		return from + i
	}
	last := -1
	for rest := piece[:min(len(piece), from+len(k.text)-1)]; ; {
		i := k.index(rest[last+1:])
		if i < 0 {
			return last
		}
		last += 1 + i
	}
}

// value returns the value of the member that member begins with, and what is
// behind it.
func (k key) value(member []byte) []byte {
	rest := bytes.TrimLeft(member[len(k.text):], " \t\r\n")
	if len(rest) == 0 || rest[0] != ':' {
		return nil
	}
	return bytes.TrimLeft(rest[1:], " \t\r\n")
}

// scalar returns the short value that b begins with.
func scalar(b []byte) gjson.Result {
	return gjson.Parse(view(b[:min(len(b), maxFinish+2)]))
}

// object returns the object that b begins with, or nil.
func object(b []byte) []byte {
	if len(b) == 0 || b[0] != '{' {
		return nil
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return b[:i+1]
			}
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		}
	}
	return nil
}

// view returns b as a string, for as long as b is not changed: nothing of it
// is kept.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
