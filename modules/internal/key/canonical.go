package key

import (
	"bytes"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// The tags of the canonical context's segments.
const (
	tagModel byte = iota
	tagAdapter
	tagSalt
	tagTools
	tagSystem
	tagMedia
	tagDocument
	tagPromptText
	tagPromptTokens
)

// canonical returns the key of the canonical context. There is none without
// tools, system message, document or plain prompt: model, adapter and salt
// alone are what thousands of unlike requests have in common.
func (c *Config) canonical(model, adapter string, d *openai.Doc) (hash uint64, ok bool) {
	h := newHasher(domainCanonical)
	if model != "" {
		h.string(model)
	} else if raw, ok := d.Text(d.Field(openai.FieldModel)); ok {
		h.unquoted(raw)
	}
	h.end(tagModel)
	h.string(adapter)
	h.end(tagAdapter)
	if raw, ok := d.Text(d.Field(openai.FieldCacheSalt)); ok {
		h.unquoted(raw)
	}
	h.end(tagSalt)

	tools := d.Field(openai.FieldTools)
	if e := d.Elements(tools); e.Next() {
		h.bytes(d.Raw(tools))
		h.end(tagTools)
		ok = true
	}
	turns, system := c.system(&h, d)
	document := c.document(&h, d)
	if !turns && !system && !document {
		ok = c.promptHead(&h, d) || ok
	}
	return h.sum(), ok || system || document
}

// system adds the system messages: the fields system and instructions, and
// all messages of system and developer, each a segment of its own. It reports
// whether there are messages at all, and whether one of system was found.
func (c *Config) system(h *hasher, d *openai.Doc) (turns, found bool) {
	limit := bound(c.SystemMax, defaultSystemMax)
	for _, f := range [...]openai.Field{openai.FieldSystem, openai.FieldInstructions} {
		found = h.normalised(d, d.Field(f), tagSystem, limit) || found
	}
	for t := d.Turns(); t.Next(); turns = true {
		if t.Role == openai.RoleSystem || t.Role == openai.RoleDeveloper {
			found = h.normalised(d, t.Content, tagSystem, limit) || found
		}
	}
	return turns, found
}

// document adds the document context: the first of its fields that has text,
// else the first of documents that has.
func (c *Config) document(h *hasher, d *openai.Doc) (found bool) {
	limit := bound(c.DocumentMax, defaultDocumentMax)
	for _, f := range [...]openai.Field{
		openai.FieldDocumentContext, openai.FieldDocumentContextCamel, openai.FieldContext,
	} {
		if h.normalised(d, d.Field(f), tagDocument, limit) {
			return true
		}
	}
	for e := d.Elements(d.Field(openai.FieldDocuments)); e.Next(); {
		if h.normalised(d, e.Value, tagDocument, limit) {
			return true
		}
	}
	return false
}

// promptHead adds the head of a prompt that is not made of messages. A string
// under input is not among them: it may be the first turn of a conversation
// over /v1/responses, which is a session's matter.
func (c *Config) promptHead(h *hasher, d *openai.Doc) bool {
	raw, isText := prompt(d)
	limit := bound(c.SystemMax, defaultSystemMax)
	if isText {
		h.normalise(limit)
		h.text(raw)
		return h.endText(tagPromptText)
	}
	if len(raw) == 0 {
		return false
	}
	h.bytes(raw[:min(len(raw), limit)])
	h.end(tagPromptTokens)
	return true
}

// maxNesting is how deep text may lie in a content: in a list of objects with
// lists of parts it is at the fifth level. It bounds the work, since what lies
// deeper is read once for each level.
const maxNesting = 5

// normalised adds the text at s, at most limit bytes of it, as a segment. In
// system messages what is no text counts, too, by its bytes. It reports
// whether there was anything to add.
func (h *hasher) normalised(d *openai.Doc, s openai.Span, tag byte, limit int) bool {
	h.normalise(limit)
	before := h.segments
	h.content(d, s, tag, maxNesting)
	h.endText(tag)
	return h.segments > before
}

// content adds the text at s: a string, an object that has text, or a list of
// these. It returns false if the segment is full.
func (h *hasher) content(d *openai.Doc, s openai.Span, tag byte, nesting int) bool {
	if nesting == 0 {
		return true
	}
	switch d.Kind(s) {
	case openai.String:
		raw, _ := d.Text(s)
		if h.length == 0 {
			raw = withoutBilling(raw)
		}
		return h.text(raw)
	case openai.Array:
		for e := d.Elements(s); e.Next(); {
			h.space = true
			if !h.content(d, e.Value, tag, nesting-1) {
				return false
			}
		}
	case openai.Object:
		if text := textOf(d, s); text.Present() {
			return h.content(d, text, tag, nesting-1)
		}
		if tag != tagSystem {
			return true
		}
		h.endText(tag)
		for m := d.Members(s); m.Next(); {
			if isPayload(d, &m) {
				h.bytes(d.Raw(m.Value))
				h.end(tagMedia)
			}
		}
	}
	return true
}

// textOf returns the value of an object's member that holds its text.
func textOf(d *openai.Doc, s openai.Span) openai.Span {
	names := [...]string{"text", "content", "value", "page_content", "parts"}
	var values [len(names)]openai.Span
	for m := d.Members(s); m.Next(); {
		for i, name := range names {
			if m.KeyIs(name) {
				values[i] = m.Value
			}
		}
	}
	for _, v := range values {
		switch d.Kind(v) {
		case openai.String, openai.Array, openai.Object:
			return v
		}
	}
	return openai.Span{}
}

// isPayload reports whether a member of a part is what the part shows to the
// model. Its type says nothing that the payload does not, and clients move
// cache_control from one turn to the next.
func isPayload(d *openai.Doc, m *openai.Members) bool {
	return d.Kind(m.Value) != openai.Null && !m.KeyIs("type") && !m.KeyIs("cache_control")
}

var billing = []byte("x-anthropic-billing-header:")

// withoutBilling returns raw without the line that Claude Code puts before
// its system prompt. The line is different in every request, and engines
// leave it out of the prompt for that reason.
func withoutBilling(raw []byte) []byte {
	if !bytes.HasPrefix(raw, billing) {
		return raw
	}
	_, rest, _ := bytes.Cut(raw, []byte(`\n`))
	return rest
}
