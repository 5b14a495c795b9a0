package openai

import (
	"bytes"
	"strings"
)

// Members goes through the members of an object:
//
//	for m := d.Members(s); m.Next(); {
//		use(m.Key, m.Value)
//	}
//
// It ends early where the object is malformed.
type Members struct {
	// Key is the current key, its quotes left off.
	Key Span
	// Value is the current value.
	Value Span

	b      []byte
	i      int // behind the current value; where it ended, at the end
	closed bool
}

// Members returns a cursor over the members of the object at s, over none if
// s is something else.
func (d *Doc) Members(s Span) Members {
	if d.Kind(s) != Object {
		return Members{}
	}
	return Members{b: d.body[:s.End], i: s.Start + 1}
}

// Next moves to the next member. It returns false when there is none.
func (m *Members) Next() bool {
	b := m.b
	i := skipSpace(b, m.i)
	if i < len(b) && b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	if i >= len(b) || b[i] != '"' {
		m.i = i
		if i < len(b) && b[i] == '}' {
			m.i, m.closed = i+1, true
		}
		return false
	}
	key := i + 1
	if i = skipString(b, key); i < 0 {
		m.i = len(b)
		return false
	}
	m.Key = Span{key, i - 1}
	if i < len(b) && b[i] != ':' {
		i = skipSpace(b, i)
	}
	if i >= len(b) || b[i] != ':' {
		m.i = i
		return false
	}
	if i = skipSpace(b, i+1); i >= len(b) {
		m.i = i
		return false
	}
	value := i
	switch i = skipValue(b, value); i {
	case -1:
		m.i = len(b)
		return false
	case value:
		m.i = i
		return false
	}
	m.Value = Span{value, i}
	m.i = i
	return true
}

// KeyIs reports whether the current key is name, however it is spelt.
func (m *Members) KeyIs(name string) bool {
	return keyIs(m.b[m.Key.Start:m.Key.End], name)
}

func keyIs(raw []byte, name string) bool {
	if len(raw) <= len(name) || bytes.IndexByte(raw, '\\') < 0 {
		return string(raw) == name
	}
	var buf [64]byte
	key, ok := appendUnquoted(buf[:0], raw, len(name))
	return ok && string(key) == name
}

// Elements goes through the elements of an array, like [Members] through the
// members of an object.
type Elements struct {
	// Value is the current element.
	Value Span

	b []byte
	i int
}

// Elements returns a cursor over the elements of the array at s, over none if
// s is something else.
func (d *Doc) Elements(s Span) Elements {
	if d.Kind(s) != Array {
		return Elements{}
	}
	return Elements{b: d.body[:s.End], i: s.Start + 1}
}

// Next moves to the next element. It returns false when there is none.
func (e *Elements) Next() bool {
	b := e.b
	i := skipSpace(b, e.i)
	if i < len(b) && b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	if i >= len(b) {
		return false
	}
	end := skipValue(b, i)
	if end <= i {
		return false
	}
	e.Value, e.i = Span{i, end}, end
	return true
}

// Lookup returns the value at path, which names members of nested objects
// from the top level down, with dots between them: metadata.user_id. Of
// several members of one name the last counts. It returns the zero Span if
// there is no such value.
func (d *Doc) Lookup(path string) Span {
	name, path, more := strings.Cut(path, ".")
	s := d.member(name)
	for more && s.Present() {
		name, path, more = strings.Cut(path, ".")
		s = d.last(s, name)
	}
	return s
}

// member returns the value of the last member of the top level called name.
func (d *Doc) member(name string) Span {
	if f := fieldOf([]byte(name)); f != fieldOther {
		return d.fields[f]
	}
	if d.nrest > maxRest {
		return d.last(d.object, name)
	}
	for i := d.nrest - 1; i >= 0; i-- {
		if m := d.rest[i]; keyIs(d.body[m.key.Start:m.key.End], name) {
			return m.value
		}
	}
	return Span{}
}

// last returns the value of the last member of the object at s called name.
func (d *Doc) last(s Span, name string) (value Span) {
	for m := d.Members(s); m.Next(); {
		if m.KeyIs(name) {
			value = m.Value
		}
	}
	return value
}
