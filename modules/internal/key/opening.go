package key

import (
	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// maxPrompt is how many bytes of a plain prompt tell its session. A client
// that keeps a conversation in one growing prompt stays where it is from the
// turn on that is longer.
const maxPrompt = 2048

// The tags of the opening's segments. Those of roles follow tagRole.
const (
	tagText byte = iota
	tagPart
	tagPrompt
	tagRoleName
	tagRole
)

// openingKey returns the key of the conversation's opening: the roles and the
// contents up to and including the first message of the user. Text counts as
// it is spelt in the body, other parts by their payloads, so that it makes no
// difference whether a text is a string or a part, and where cache_control
// stands. There is no key if nothing is said.
func openingKey(d *openai.Doc) (hash uint64, ok bool) {
	h := newHasher(domainOpening)
	said := h.message(d, openai.RoleSystem, openai.Span{}, d.Field(openai.FieldSystem))
	said = h.message(d, openai.RoleSystem, openai.Span{}, d.Field(openai.FieldInstructions)) || said

	turns := false
	for t := d.Turns(); t.Next() && t.Opening; turns = true {
		said = h.message(d, t.Role, t.Name, t.Content) || said
	}
	if turns {
		return h.sum(), said
	}
	if s := d.Field(openai.FieldInput); d.Kind(s) == openai.String {
		said := h.message(d, openai.RoleUser, openai.Span{}, s)
		return h.sum(), said
	}
	raw, _ := prompt(d)
	h.bytes(raw[:min(len(raw), maxPrompt)])
	h.end(tagPrompt)
	return h.sum(), len(raw) > 0
}

// message adds one message. It reports whether it says anything; a message of
// nobody that says nothing is not there.
func (h *hasher) message(d *openai.Doc, role openai.Role, name, content openai.Span) (said bool) {
	if !content.Present() && !name.Present() {
		return false
	}
	system := role == openai.RoleSystem || role == openai.RoleDeveloper
	switch d.Kind(content) {
	case openai.Array:
		for e := d.Elements(content); e.Next(); {
			said = h.part(d, e.Value, system) || said
		}
	default:
		said = h.part(d, content, system)
	}
	if role == openai.RoleOther {
		h.bytes(d.Raw(name))
		h.end(tagRoleName)
	}
	h.end(tagRole + byte(role))
	return said
}

// part adds one part of a message's content.
func (h *hasher) part(d *openai.Doc, s openai.Span, system bool) (said bool) {
	switch d.Kind(s) {
	case openai.String:
		raw, _ := d.Text(s)
		if system {
			raw = withoutBilling(raw)
		}
		h.bytes(raw)
		return h.endText(tagText)
	case openai.Object:
		for m := d.Members(s); m.Next(); {
			switch {
			case !isPayload(d, &m):
			case m.KeyIs("text") && d.Kind(m.Value) == openai.String:
				said = h.part(d, m.Value, system) || said
			default:
				h.bytes(d.Raw(m.Value))
				h.end(tagPart)
				said = true
			}
		}
	case openai.Absent, openai.Null:
	default:
		h.bytes(d.Raw(s))
		h.end(tagPart)
		said = true
	}
	return said
}

// soFar returns what Ollama's /api/generate goes on with: the array of the
// tokens of the conversation so far, which it puts before the prompt. In the
// first turn there is none; a document under the same name is no array of
// numbers.
func soFar(d *openai.Doc) openai.Span {
	s := d.Field(openai.FieldContext)
	if e := d.Elements(s); e.Next() && d.Kind(e.Value) == openai.Number {
		return s
	}
	return openai.Span{}
}

// prompt returns the head of a prompt that is not made of messages: of the
// conversation so far, else of the field prompt, else of an array under input.
// It is the inside of the first string that is not empty, or, where isText is
// false, the array of the first token ids.
func prompt(d *openai.Doc) (raw []byte, isText bool) {
	if s := soFar(d); s.Present() {
		return d.Raw(s), false
	}
	s := d.Field(openai.FieldPrompt)
	if raw, ok := d.Text(s); ok {
		return raw, true
	}
	if d.Kind(s) != openai.Array {
		s = d.Field(openai.FieldInput)
	}
	for e := d.Elements(s); e.Next(); {
		switch d.Kind(e.Value) {
		case openai.String:
			if raw, _ := d.Text(e.Value); len(raw) > 0 {
				return raw, true
			}
		case openai.Array:
			if ids := d.Elements(e.Value); ids.Next() {
				return d.Raw(e.Value), false
			}
		case openai.Number:
			return d.Raw(s), false
		}
	}
	return nil, false
}
