// Package clamp cuts the number of tokens that a request asks for down to
// what fits into the model's context window.
package clamp

import (
	"strconv"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// fields are the spellings of the limit, in the order in which a change is
// reported.
var fields = [...]struct {
	field openai.Field
	name  string
}{
	{openai.FieldMaxTokens, "max_tokens"},
	{openai.FieldMaxCompletionTokens, "max_completion_tokens"},
	{openai.FieldMaxOutputTokens, "max_output_tokens"},
}

// A Change tells of a limit that was cut down. The zero Change tells of none.
type Change struct {
	// Old is the number as the request spells it, or the beginning of a very
	// long one. It consists of digits and of the signs of JSON's numbers.
	Old string

	// New is the number that the engine gets.
	New int
}

// maxOld bounds the length of Change.Old.
const maxOld = 40

// String returns the change as the header X-FlexInfer-MaxTokens-Clamped has it.
func (c Change) String() string { return c.Old + "->" + strconv.Itoa(c.New) }

// Cap returns how many tokens may be asked for of a model whose context
// window has window tokens, of which reserve are for the prompt.
func Cap(window, reserve int) int { return max(1, window-reserve) }

// Edits appends the edits that put most in the place of every limit above it.
// Of several members of one name each is cut, since engines differ in which
// one they take. Only numbers are limits, and nothing is added where there is
// none. The change is that of the first spelling that was cut, in its last
// member that was.
func Edits(edits []openai.Edit, d *openai.Doc, most int) ([]openai.Edit, Change) {
	var old openai.Span
	var with []byte
	replace := func(s openai.Span) bool {
		n, ok := d.Decimal(s)
		if !ok || n.Compare(most) <= 0 {
			return false
		}
		if with == nil {
			with = strconv.AppendInt(nil, int64(most), 10)
		}
		edits = append(edits, openai.Edit{Span: s, With: with})
		return true
	}
	for _, f := range fields {
		var last openai.Span
		switch d.Count(f.field) {
		case 0:
		case 1:
			if s := d.Field(f.field); replace(s) {
				last = s
			}
		default:
			for m := d.Members(d.Object()); m.Next(); {
				if m.KeyIs(f.name) && replace(m.Value) {
					last = m.Value
				}
			}
		}
		if !old.Present() {
			old = last
		}
	}
	if !old.Present() {
		return edits, Change{}
	}
	text := d.Raw(old)
	if len(text) > maxOld {
		text = append(text[:maxOld-len("..."):maxOld-len("...")], "..."...)
	}
	return edits, Change{string(text), most}
}
