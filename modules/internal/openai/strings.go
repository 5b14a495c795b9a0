package openai

import "bytes"

// Strings goes through the strings inside of a value, at any depth, other
// than keys:
//
//	for s := d.Strings(v); s.Next(); {
//		use(s.Key, s.Value)
//	}
//
// A value that is a string itself is the only one. Strings takes time linear
// in the length of the value.
type Strings struct {
	// Key is the key that came last, its quotes left off: the string's own,
	// or that of the array it is in. It is the zero Span if there was none.
	Key Span
	// Value is the current string, with its quotes.
	Value Span

	b []byte
	i int
}

// Strings returns a cursor over the strings of the value at s.
func (d *Doc) Strings(s Span) Strings {
	return Strings{b: d.body[:s.End], i: s.Start}
}

// Next moves to the next string. It returns false when there is none.
func (s *Strings) Next() bool {
	for {
		n := bytes.IndexByte(s.b[s.i:], '"')
		if n < 0 {
			return false
		}
		start := s.i + n
		end := skipString(s.b, start+1)
		if end < 0 {
			return false
		}
		s.i = end
		if i := skipSpace(s.b, end); i < len(s.b) && s.b[i] == ':' {
			s.Key, s.i = Span{start + 1, end - 1}, i+1
			continue
		}
		s.Value = Span{start, end}
		return true
	}
}
