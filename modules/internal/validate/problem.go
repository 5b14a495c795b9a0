package validate

import (
	"strconv"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// A problem is what is wrong with a value. It learns where the value is on
// the way out: a path is made for what is refused only.
type problem struct {
	code  string
	param string // the path so far: [2].role
	text  string // goes on behind the path
}

// The codes of problems.
const (
	codeMissing = "missing_required_field"
	codeType    = "invalid_type"
	codeValue   = "invalid_value"
)

var missing = &problem{code: codeMissing, text: "is missing"}

func invalid(text string) *problem { return &problem{code: codeValue, text: text} }

func wrongType(d *openai.Doc, s openai.Span, want string) *problem {
	return &problem{code: codeType, text: "must be " + want + ", not " + kindOf(d, s)}
}

func kindOf(d *openai.Doc, s openai.Span) string {
	switch d.Kind(s) {
	case openai.Null:
		return "null"
	case openai.Bool:
		return "a boolean"
	case openai.String:
		return "a string"
	case openai.Array:
		return "an array"
	case openai.Object:
		return "an object"
	}
	if _, ok := d.Decimal(s); ok {
		return "a number"
	}
	return "malformed"
}

// in returns the problem of an object whose member called name has p.
func (p *problem) in(name string) *problem {
	if p == nil {
		return nil
	}
	path := name
	if p.param != "" && p.param[0] != '[' {
		path += "."
	}
	return &problem{p.code, path + p.param, p.text}
}

// at returns the problem of an array whose element n has p.
func (p *problem) at(n int) *problem {
	path := "[" + strconv.Itoa(n) + "]"
	if p.param != "" && p.param[0] != '[' {
		path += "."
	}
	return &problem{p.code, path + p.param, p.text}
}
