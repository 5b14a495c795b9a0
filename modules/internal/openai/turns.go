package openai

import "bytes"

// Role is who speaks in a turn.
type Role uint8

// The roles. Their names are compared without regard to case.
const (
	RoleNone      Role = iota // the turn has no role
	RoleUser                  // user
	RoleAssistant             // assistant
	RoleSystem                // system
	RoleDeveloper             // developer
	RoleOther                 // any other string: tool, function …
)

// A Turn is an element of messages, or of input.
type Turn struct {
	Role Role

	// Opening marks the turns up to and including the first one of the user:
	// what a conversation begins with on every turn. All turns are if the
	// user has none.
	Opening bool

	// Name is the value of role, absent without one.
	Name Span

	// Content is the value of content. It is the whole element if that has
	// neither role nor content, like the items of input that are no messages.
	Content Span

	answer bool
}

// maxTurns is how many turns a Doc remembers. Openings have two or three;
// for the rare one with more, the messages are read a second time.
const maxTurns = 12

// turnList holds what the scan found in an array of turns: those of the
// opening, and those of system and developer wherever they are.
type turnList struct {
	start    int // of the array; 0: none was scanned
	n        int // turns to be held, also those that found no room
	opened   bool
	answered bool
	turns    [maxTurns]Turn
}

func (l *turnList) reset(start int) {
	l.start, l.n, l.opened, l.answered = start, 0, false, false
}

func (l *turnList) add(t Turn) {
	l.answered = l.answered || t.answer
	if !t.matters(&l.opened) {
		return
	}
	if l.n < maxTurns {
		l.turns[l.n] = t
	}
	l.n++
}

// matters reports whether keys are made of t, and marks it if it belongs to
// the opening. opened carries over whether the user has spoken.
func (t *Turn) matters(opened *bool) bool {
	t.Opening = !*opened
	*opened = *opened || t.Role == RoleUser
	return t.Opening || t.Role == RoleSystem || t.Role == RoleDeveloper
}

// conversation returns the array of turns: messages, else input.
func (d *Doc) conversation() Span {
	for _, f := range [...]Field{FieldMessages, FieldInput} {
		if s := d.fields[f]; d.Kind(s) == Array {
			return s
		}
	}
	return Span{}
}

// hasTurns reports whether the turns of an array under f would be those of
// the conversation, as far as the scan knows yet.
func (d *Doc) hasTurns(f Field) bool {
	return f == FieldMessages || f == FieldInput && d.Kind(d.fields[FieldMessages]) != Array
}

// scanTurns is skipValue for the array at i, and notes its turns.
func (d *Doc) scanTurns(i int) int {
	b := d.body
	d.turns.reset(i)
	i++
	for {
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i++
		case ']':
			return i + 1
		case '{':
			t, end, ok := readTurn(b, i)
			if !ok {
				return skipNested(b, end, 2)
			}
			d.turns.add(t)
			i = end
		default: // strings or numbers to embed, or nothing sensible
			return skipNested(b, i, 1)
		}
	}
}

// readTurn reads the object at i. If that is malformed, ok is false, and end
// is where it went wrong.
func readTurn(b []byte, i int) (t Turn, end int, ok bool) {
	var kind Span
	m := Members{b: b, i: i + 1}
	for m.Next() {
		switch key := b[m.Key.Start:m.Key.End]; {
		case keyIs(key, "role"):
			t.Name = m.Value
		case keyIs(key, "content"):
			t.Content = m.Value
		case keyIs(key, "type"):
			kind = m.Value
		}
	}
	t.Role = roleOf(b[t.Name.Start:t.Name.End])
	t.answer = t.Role == RoleAssistant
	if t.Role == RoleNone {
		t.answer = isOutput(b[kind.Start:kind.End])
		if !t.Content.Present() {
			t.Content = Span{i, m.i}
		}
	}
	return t, m.i, m.closed
}

// roleOf returns the role that a JSON value means.
func roleOf(value []byte) Role {
	if len(value) < 2 || value[0] != '"' {
		return RoleNone
	}
	var buf [16]byte
	name := value[1 : len(value)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		name, _ = appendUnquoted(buf[:0], name, len(buf))
	}
	switch len(name) {
	case len("user"):
		if equalFold(name, "user") {
			return RoleUser
		}
	case len("assistant"): // and developer
		if equalFold(name, "assistant") {
			return RoleAssistant
		}
		if equalFold(name, "developer") {
			return RoleDeveloper
		}
	case len("system"):
		if equalFold(name, "system") {
			return RoleSystem
		}
	}
	return RoleOther
}

// equalFold reports whether b is lower, which consists of lower-case letters,
// in any case.
func equalFold(b []byte, lower string) bool {
	for i := range b {
		if b[i]|0x20 != lower[i] {
			return false
		}
	}
	return true
}

// isOutput reports whether value is the type of an item of input that comes
// from an earlier answer: function_call and its like with their outputs,
// reasoning, item_reference.
func isOutput(value []byte) bool {
	return bytes.HasSuffix(value, []byte(`_call"`)) ||
		bytes.HasSuffix(value, []byte(`_output"`)) ||
		string(value) == `"reasoning"` ||
		string(value) == `"item_reference"`
}

// Turns goes through the turns that keys are made of, in their order: those
// of the opening, and all of system and developer.
//
//	for t := d.Turns(); t.Next(); {
//		use(t.Turn)
//	}
type Turns struct {
	// Turn is the current turn.
	Turn

	d      *Doc
	i      int // index in the list, or position in the body
	listed bool
	opened bool
}

// Turns returns a cursor over the turns of messages, if that is an array,
// else over those of input.
func (d *Doc) Turns() Turns {
	s := d.conversation()
	switch {
	case !s.Present():
		return Turns{d: d, listed: true, i: maxTurns}
	case d.turns.start == s.Start && d.turns.n <= maxTurns:
		return Turns{d: d, listed: true}
	}
	return Turns{d: d, i: s.Start + 1}
}

// Next moves to the next turn. It returns false when there is none.
func (t *Turns) Next() bool {
	if t.listed {
		if l := &t.d.turns; t.i < min(l.n, maxTurns) {
			t.Turn = l.turns[t.i]
			t.i++
			return true
		}
		return false
	}
	for t.step() {
		if t.Turn.matters(&t.opened) {
			return true
		}
	}
	return false
}

// step reads the next turn of the body, whatever it is.
func (t *Turns) step() bool {
	b := t.d.body
	i := skipSpace(b, t.i)
	for i < len(b) && b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	if i >= len(b) || b[i] != '{' {
		return false
	}
	turn, end, ok := readTurn(b, i)
	t.Turn, t.i = turn, end
	return ok
}

// Continues reports whether the body is a later turn of a conversation: the
// assistant has spoken in it, or it refers to an earlier response.
func (d *Doc) Continues() bool {
	if d.fields[FieldPreviousResponseID].Len() > 2 && d.Kind(d.fields[FieldPreviousResponseID]) == String {
		return true
	}
	s := d.conversation()
	switch s.Start {
	case 0:
		return false
	case d.turns.start:
		return d.turns.answered
	}
	for t := (Turns{d: d, i: s.Start + 1}); t.step(); {
		if t.answer {
			return true
		}
	}
	return false
}
