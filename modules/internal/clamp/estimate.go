package clamp

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// What a message costs beside its text, and what a picture or a recording
// costs in place of its bytes.
const (
	messageTokens = 4
	mediaTokens   = 256
)

// Estimate returns about how many tokens the prompt of a request has: 2 for
// each 7 bytes of ASCII, 1 for each other character, 4 more for each message,
// 256 for each picture or recording, whatever its size, and 1 for each token
// that is given by its number. Of tools and documents the JSON counts, of
// messages only the strings in it. Of several prompts the longest counts.
//
// It takes time linear in the length of the body, and allocates nothing.
func Estimate(d *openai.Doc) int {
	var e estimate
	if messages := d.Field(openai.FieldMessages); d.Kind(messages) == openai.Array {
		e.conversation(d, messages)
	} else {
		e.conversation(d, d.Field(openai.FieldInput))
	}
	e.prompt(d, d.Field(openai.FieldPrompt))
	for _, f := range [...]openai.Field{
		openai.FieldSystem, openai.FieldInstructions, openai.FieldTools, openai.FieldDocuments,
		openai.FieldDocumentContext, openai.FieldDocumentContextCamel, openai.FieldContext,
	} {
		if s := d.Field(f); d.Kind(s) != openai.Null {
			e.text(d.Raw(s))
		}
	}
	return e.tokens()
}

// An estimate counts what a prompt consists of.
type estimate struct {
	ascii int // bytes
	runes int // other characters
	fixed int // tokens
}

func (e *estimate) tokens() int { return (2*e.ascii+6)/7 + e.runes + e.fixed }

// conversation counts the strings of messages, or of an input in their place.
func (e *estimate) conversation(d *openai.Doc, s openai.Span) {
	if !s.Present() {
		return
	}
	for v := d.Strings(s); v.Next(); {
		text, _ := d.Text(v.Value)
		switch string(d.Raw(v.Key)) {
		case "role":
			e.fixed += messageTokens
		case "type":
			switch string(text) {
			case "image_url", "input_image", "image", "input_audio", "audio_url", "video_url":
				e.fixed += mediaTokens
			}
		case "images": // Ollama's, which have no type
			e.fixed += mediaTokens
		case "data", "file_data":
		default:
			if !bytes.HasPrefix(text, []byte("data:")) {
				e.text(text)
			}
		}
	}
}

// prompt counts a prompt: text, tokens, or several of either.
func (e *estimate) prompt(d *openai.Doc, s openai.Span) {
	if d.Kind(s) != openai.Array {
		e.one(d, s)
		return
	}
	before := *e
	for p := d.Elements(s); p.Next(); {
		if d.Kind(p.Value) == openai.Number {
			*e = before
			e.ids(d.Raw(s))
			return
		}
		next := before
		next.one(d, p.Value)
		if next.tokens() > e.tokens() {
			*e = next
		}
	}
}

// one counts one of several prompts.
func (e *estimate) one(d *openai.Doc, s openai.Span) {
	switch d.Kind(s) {
	case openai.String:
		e.text(d.Raw(s))
	case openai.Array:
		e.ids(d.Raw(s))
	}
}

// ids counts the tokens of an array of numbers.
func (e *estimate) ids(raw []byte) { e.fixed += bytes.Count(raw, []byte(",")) + 1 }

// text counts characters, eight bytes at a time.
func (e *estimate) text(b []byte) {
	const highs = 0x8080808080808080
	high, leading := 0, 0
	n := len(b)
	for len(b) >= 8 {
		w := binary.LittleEndian.Uint64(b)
		if w&highs != 0 {
			high += bits.OnesCount64(w & highs)
			leading += bits.OnesCount64(w & (w << 1) & highs)
		}
		b = b[8:]
	}
	for _, c := range b {
		if c >= 0x80 {
			high++
			if c >= 0xc0 {
				leading++
			}
		}
	}
	e.ascii += n - high
	e.runes += leading
}
