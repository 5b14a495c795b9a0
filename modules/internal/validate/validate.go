// Package validate checks the shape of requests as OpenAI's API does, before
// an engine sees them. It covers chat, completions and embeddings, and in
// them the fields that matter most. Other fields, and those that vendors add,
// pass. So does JSON that is malformed inside of a field, unless it shows:
// that is the engine's to judge.
package validate

import (
	"strconv"
	"strings"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
)

// Request returns the refusal of a request for path with the body d, or nil
// if it may pass, as all requests for other paths do. It takes time linear in
// the length of the body, and allocates only to refuse.
func Request(path string, d *openai.Doc) *refusal.Refusal {
	var p *problem
	switch {
	case strings.HasSuffix(path, "/v1/chat/completions"):
		p = chat.check(d)
	case strings.HasSuffix(path, "/v1/completions"):
		p = completion.check(d)
	case strings.HasSuffix(path, "/v1/embeddings"):
		p = embedding.check(d)
	}
	if p == nil {
		return nil
	}
	r := refusal.BadRequest(p.code, p.param+" "+p.text)
	r.Param = p.param
	return r
}

// A check says what is wrong with the value at s, or returns nil.
type check func(d *openai.Doc, s openai.Span) *problem

// A rule says what a field must be if there is one. Null stands for none,
// unless notNull is set.
type rule struct {
	name    string
	check   check
	notNull bool
}

// An api is what the requests for a path must be.
type api struct {
	// required names fields of which a body must have one: OpenAI's, then
	// vendors' for the same.
	required []string
	rules    []rule
}

// maxRules is the most rules an api has.
const maxRules = 12

var (
	chat = api{
		required: []string{"messages"},
		rules: []rule{
			{name: "messages", check: checkMessages, notNull: true},
			{name: "temperature", check: between(0, 2)},
			{name: "top_p", check: between(0, 1)},
			{name: "frequency_penalty", check: between(-2, 2)},
			{name: "presence_penalty", check: between(-2, 2)},
			{name: "n", check: atLeast(1)},
			{name: "max_tokens", check: atLeast(1)},
			{name: "max_completion_tokens", check: atLeast(1)},
			{name: "stream", check: checkBool},
			{name: "stream_options", check: checkObject},
			{name: "stop", check: checkStop},
			{name: "tools", check: checkTools},
		},
	}
	completion = api{
		required: []string{"prompt", "prompt_embeds"},
		rules: []rule{
			{name: "prompt", check: checkPrompt},
			{name: "temperature", check: between(0, 2)},
			{name: "top_p", check: between(0, 1)},
			{name: "frequency_penalty", check: between(-2, 2)},
			{name: "presence_penalty", check: between(-2, 2)},
			{name: "n", check: atLeast(1)},
			{name: "max_tokens", check: atLeast(0)}, // with echo and logprobs
			{name: "stream", check: checkBool},
			{name: "stream_options", check: checkObject},
			{name: "stop", check: checkStop},
		},
	}
	embedding = api{
		required: []string{"input", "messages"},
		rules: []rule{
			{name: "input", check: checkPrompt, notNull: true},
			{name: "dimensions", check: atLeast(1)},
			{name: "encoding_format", check: checkString},
		},
	}
)

func (a *api) check(d *openai.Doc) *problem {
	var found [maxRules]openai.Span // the last one of each name counts
	for m := d.Members(d.Object()); m.Next(); {
		for i := range a.rules {
			if m.KeyIs(a.rules[i].name) {
				found[i] = m.Value
				break
			}
		}
	}
	has := false
	for _, name := range a.required {
		has = has || d.Lookup(name).Present()
	}
	if !has {
		return missing.in(a.required[0])
	}
	for i, r := range a.rules {
		switch d.Kind(found[i]) {
		case openai.Absent:
			continue
		case openai.Null:
			if !r.notNull {
				continue
			}
		}
		if p := r.check(d, found[i]); p != nil {
			return p.in(r.name)
		}
	}
	return nil
}

// between checks a number.
func between(least, most int) check {
	return func(d *openai.Doc, s openai.Span) *problem {
		n, ok := d.Decimal(s)
		switch {
		case !ok:
			return wrongType(d, s, "a number")
		case n.Compare(least) < 0 || n.Compare(most) > 0:
			return invalid("must be between " + strconv.Itoa(least) + " and " + strconv.Itoa(most))
		}
		return nil
	}
}

// atLeast checks an integer.
func atLeast(least int) check {
	return func(d *openai.Doc, s openai.Span) *problem {
		n, ok := d.Decimal(s)
		switch {
		case !ok:
			return wrongType(d, s, "an integer")
		case !n.Whole():
			return &problem{code: codeType, text: "must be an integer, not a fraction"}
		case n.Compare(least) < 0:
			return invalid("must be at least " + strconv.Itoa(least))
		}
		return nil
	}
}

func checkBool(d *openai.Doc, s openai.Span) *problem {
	if _, ok := d.Bool(s); !ok {
		return wrongType(d, s, "a boolean")
	}
	return nil
}

func checkString(d *openai.Doc, s openai.Span) *problem {
	if d.Kind(s) != openai.String {
		return wrongType(d, s, "a string")
	}
	return nil
}

func checkObject(d *openai.Doc, s openai.Span) *problem {
	if d.Kind(s) != openai.Object {
		return wrongType(d, s, "an object")
	}
	return nil
}

// checkTyped checks an object that says in type what it is.
func checkTyped(d *openai.Doc, s openai.Span) *problem {
	if p := checkObject(d, s); p != nil {
		return p
	}
	var kind openai.Span
	for m := d.Members(s); m.Next(); {
		if m.KeyIs("type") {
			kind = m.Value
		}
	}
	if !kind.Present() {
		return missing.in("type")
	}
	return checkString(d, kind).in("type")
}

// checkEach checks the elements of an array, of which there must be least.
func checkEach(d *openai.Doc, s openai.Span, least int, element check) *problem {
	n := 0
	for e := d.Elements(s); e.Next(); n++ {
		if p := element(d, e.Value); p != nil {
			return p.at(n)
		}
	}
	if n < least {
		return invalid("must not be an empty array")
	}
	return nil
}

// checkStop checks what ends a completion.
func checkStop(d *openai.Doc, s openai.Span) *problem {
	const most = 4
	switch d.Kind(s) {
	case openai.String:
		return nil
	case openai.Array:
	default:
		return wrongType(d, s, "a string or an array of strings")
	}
	n := 0
	for e := d.Elements(s); e.Next(); n++ {
		if n == most {
			return invalid("must have at most " + strconv.Itoa(most) + " elements")
		}
	}
	return checkEach(d, s, 0, checkString)
}

// checkTools checks no more than that each tool says what it is: what else it
// has differs from one type to the next (B13).
func checkTools(d *openai.Doc, s openai.Span) *problem {
	if d.Kind(s) != openai.Array {
		return wrongType(d, s, "an array")
	}
	return checkEach(d, s, 0, checkTyped)
}
