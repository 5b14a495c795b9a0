package validate

import "github.com/flexinfer/caddy-flexinfer/modules/internal/openai"

// checkMessages checks a chat.
func checkMessages(d *openai.Doc, s openai.Span) *problem {
	if d.Kind(s) != openai.Array {
		return wrongType(d, s, "an array")
	}
	return checkEach(d, s, 1, checkMessage)
}

func checkMessage(d *openai.Doc, s openai.Span) *problem {
	if p := checkObject(d, s); p != nil {
		return p
	}
	var role, content openai.Span
	for m := d.Members(s); m.Next(); {
		switch {
		case m.KeyIs("role"):
			role = m.Value
		case m.KeyIs("content"):
			content = m.Value
		}
	}
	if !role.Present() {
		return missing.in("role")
	}
	if p := checkString(d, role); p != nil {
		return p.in("role")
	}
	var buf [maxRole]byte
	name, _ := d.AppendString(buf[:0], role, maxRole)
	switch string(name) {
	case "system", "developer", "user", "tool":
		if !content.Present() {
			return missing.in("content")
		}
	case "assistant", "function":
		// They have called a tool, or refused, or thought, and some have no
		// content then.
		if k := d.Kind(content); k == openai.Absent || k == openai.Null {
			return nil
		}
	default:
		return invalid("must be system, developer, user, assistant, tool or function").in("role")
	}
	return checkContent(d, content).in("content")
}

// maxRole is more than the length of the longest role.
const maxRole = 16

// checkContent checks what a message says: text, or parts of any type, since
// vendors have types of their own.
func checkContent(d *openai.Doc, s openai.Span) *problem {
	switch d.Kind(s) {
	case openai.String:
		return nil
	case openai.Array:
		return checkEach(d, s, 1, checkTyped)
	}
	return wrongType(d, s, "a string or an array")
}
