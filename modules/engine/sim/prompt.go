package sim

import (
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"
)

// mediaTokens is what an image, a sound or a file takes of the prompt.
const mediaTokens = 64

var roleMarks = map[string]byte{
	"system":    markSystem,
	"developer": markDeveloper,
	"user":      markUser,
	"assistant": markAssistant,
	"tool":      markTool,
}

// A prompt is rendered as a chat template does it: the tools on offer, then the
// messages, each between a mark that names its role and one that ends it, then
// the mark after which the answer is to come. The next turn's prompt begins
// with this one and the answer.
type prompt []byte

func (p *prompt) mark(mark byte) { *p = appendMark(*p, mark) }

func (p *prompt) text(s string) { *p = append(*p, s...) }

func (p *prompt) tools(v gjson.Result) {
	if v.IsArray() && !empty(v) {
		p.mark(markTools)
		p.text(v.Raw)
		p.mark(markEnd)
	}
}

func (p *prompt) role(role string) {
	if mark, ok := roleMarks[role]; ok {
		p.mark(mark)
		return
	}
	p.mark(markRole)
	p.text(role)
	p.mark(markRole)
}

// content appends a message's content: text, or parts that are text or media.
func (p *prompt) content(param string, v gjson.Result) error {
	switch {
	case v.Type == gjson.Null:
	case v.Type == gjson.String:
		p.text(v.String())
	case v.IsArray():
		var err error
		v.ForEach(func(_, part gjson.Result) bool {
			err = p.part(param, part)
			return err == nil
		})
		return err
	default:
		return badRequest(param, "content must be a string or an array of parts")
	}
	return nil
}

func (p *prompt) part(param string, v gjson.Result) error {
	if v.Type == gjson.String {
		p.text(v.String())
		return nil
	}
	if !v.IsObject() {
		return badRequest(param, "a content part must be an object")
	}
	part := object(v)
	switch part["type"].String() {
	case "text", "input_text", "output_text":
		text, err := part.text("text")
		if err != nil {
			return err
		}
		p.text(text)
	case "tool_use", "tool_result", "thinking", "refusal":
		p.text(v.Raw)
	default:
		p.media(xxhash.Sum64String(v.Raw))
	}
	return nil
}

// media appends the tokens of an image, a sound or a file by its hash. Their
// numbers are none that text has.
func (p *prompt) media(seed uint64) {
	p.mark(markMedia)
	for i := range uint64(mediaTokens) {
		*p = appendToken(*p, 1<<52|mix(seed+i)>>12)
	}
}

// chat appends a chat as OpenAI's and Ollama's APIs have it, up to where the
// answer is to come.
func (p *prompt) chat(q request) error {
	p.tools(q["tools"])
	if err := p.messages("messages", q["messages"]); err != nil {
		return err
	}
	p.role("assistant")
	return nil
}

// messages appends messages of the shapes of OpenAI's chat and responses and of
// Anthropic's messages.
func (p *prompt) messages(param string, v gjson.Result) error {
	if !v.IsArray() || empty(v) {
		return badRequest(param, "%s must be an array of at least one message", param)
	}
	var err error
	v.ForEach(func(_, message gjson.Result) bool {
		err = p.message(param, message)
		return err == nil
	})
	return err
}

func (p *prompt) message(param string, v gjson.Result) error {
	if !v.IsObject() {
		return badRequest(param, "a message must be an object")
	}
	message := object(v)
	if kind := message["type"].String(); kind != "" && kind != "message" {
		// Calls and their results are items beside the messages in responses.
		p.role(kind)
		p.text(v.Raw)
		p.mark(markEnd)
		return nil
	}
	role, err := message.text("role")
	if err != nil {
		return err
	}
	if role == "" {
		return badRequest(param, "a message must have a role")
	}
	p.role(role)
	if err := p.content(param, message["content"]); err != nil {
		return err
	}
	message["images"].ForEach(func(_, image gjson.Result) bool { // Ollama's
		p.media(xxhash.Sum64String(image.Raw))
		return true
	})
	for _, name := range []string{"tool_calls", "tool_call_id", "name"} {
		if f := message[name]; f.Type != gjson.Null {
			p.text(f.Raw)
		}
	}
	p.mark(markEnd)
	return nil
}

func empty(array gjson.Result) bool {
	return strings.TrimSpace(array.Raw[1:len(array.Raw)-1]) == ""
}

// texts returns the prompts or inputs in v: a string, an array of strings, an
// array of token numbers, or an array of such arrays.
func texts(param string, v gjson.Result) ([]prompt, error) {
	wrong := func() ([]prompt, error) {
		return nil, badRequest(param, "%s must be a string, an array of strings, an array of token ids, or an array of arrays of token ids, and not empty", param)
	}
	if v.Type == gjson.String {
		if v.Str == "" {
			return wrong()
		}
		return []prompt{prompt(v.Str)}, nil
	}
	items := v.Array()
	if !v.IsArray() || len(items) == 0 {
		return wrong()
	}
	if items[0].Type == gjson.Number {
		p, ok := tokens(items)
		if !ok {
			return wrong()
		}
		return []prompt{p}, nil
	}
	prompts := make([]prompt, 0, len(items))
	for _, item := range items {
		p, ok := prompt(item.Str), item.Type == gjson.String
		if item.IsArray() {
			p, ok = tokens(item.Array())
		}
		if !ok || len(p) == 0 {
			return wrong()
		}
		prompts = append(prompts, p)
	}
	return prompts, nil
}

func tokens(ids []gjson.Result) (prompt, bool) {
	p := make(prompt, 0, 9*len(ids))
	for _, id := range ids {
		if id.Type != gjson.Number || id.Num < 0 || id.Num != float64(uint32(id.Num)) {
			return nil, false
		}
		p = appendToken(p, uint64(id.Num))
	}
	return p, true
}
