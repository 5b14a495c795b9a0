package validate

import "github.com/flexinfer/caddy-flexinfer/modules/internal/openai"

// checkPrompt checks what is to be completed or embedded: a string, an array
// of strings, an array of token ids, or an array of arrays of those (B8).
func checkPrompt(d *openai.Doc, s openai.Span) *problem {
	switch d.Kind(s) {
	case openai.String:
		return nil
	case openai.Array:
	default:
		return wrongType(d, s, "a string or an array")
	}
	element := checkString // the first element says what they all are
	e := d.Elements(s)
	if e.Next() {
		switch d.Kind(e.Value) {
		case openai.String:
		case openai.Number:
			element = checkToken
		case openai.Array:
			element = checkTokens
		default:
			return wrongType(d, e.Value, "a string, a token id or an array of token ids").at(0)
		}
	}
	return checkEach(d, s, 1, element)
}

func checkToken(d *openai.Doc, s openai.Span) *problem {
	n, ok := d.Decimal(s)
	switch {
	case !ok:
		return wrongType(d, s, "a token id")
	case !n.Whole() || n.Compare(0) < 0:
		return invalid("must be a token id, an integer of at least 0")
	}
	return nil
}

func checkTokens(d *openai.Doc, s openai.Span) *problem {
	if d.Kind(s) != openai.Array {
		return wrongType(d, s, "an array of token ids")
	}
	return checkEach(d, s, 1, checkToken)
}
