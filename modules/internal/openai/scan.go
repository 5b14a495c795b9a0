package openai

import "bytes"

var byteOrderMark = []byte("\xef\xbb\xbf")

// Scan reads body into d, which forgets what it held. The error, always a
// *[SyntaxError], says why body is not one closed JSON object; what d holds
// then has no meaning. Scan takes time linear in len(body), whatever body
// holds, and allocates only for an error. d keeps body.
func (d *Doc) Scan(body []byte) error {
	d.body, d.object, d.nrest = body, Span{}, 0
	d.fields, d.counts = [numFields]Span{}, [numFields]uint8{}
	d.turns.reset(0)

	i := 0
	if bytes.HasPrefix(body, byteOrderMark) {
		i = len(byteOrderMark)
	}
	i = skipSpace(body, i)
	switch {
	case i == len(body):
		return &SyntaxError{i, problemEmpty}
	case body[i] != '{':
		return &SyntaxError{i, problemNoObject}
	}
	start := i
	i, problem := d.scanMembers(i + 1)
	if problem != "" {
		return &SyntaxError{min(i, len(body)), problem}
	}
	d.object = Span{start, i}
	if i = skipSpace(body, i); i < len(body) {
		return &SyntaxError{i, problemTrailing}
	}
	return nil
}

// scanMembers reads the members of the top-level object; i is behind its {.
// It returns the position behind its }, or where it went wrong and how.
func (d *Doc) scanMembers(i int) (int, string) {
	b := d.body
	if i = skipSpace(b, i); i < len(b) && b[i] == '}' {
		return i + 1, ""
	}
	for {
		if i = skipSpace(b, i); i >= len(b) {
			return i, problemUnclosed
		}
		if b[i] != '"' {
			return i, problemKey
		}
		keyStart := i + 1
		if i = skipString(b, keyStart); i < 0 {
			return len(b), problemUnclosed
		}
		key := Span{keyStart, i - 1}
		field, ok := topLevelField(b[key.Start:key.End])
		if !ok {
			return keyStart, problemKeyText
		}
		if i = skipSpace(b, i); i >= len(b) {
			return i, problemUnclosed
		}
		if b[i] != ':' {
			return i, problemColon
		}
		if i = skipSpace(b, i+1); i >= len(b) {
			return i, problemUnclosed
		}
		value := Span{i, 0}
		if d.hasTurns(field) && b[i] == '[' {
			i = d.scanTurns(i)
		} else {
			i = skipValue(b, i)
		}
		switch i {
		case -1:
			return len(b), problemUnclosed
		case value.Start:
			return i, problemValue
		}
		value.End = i
		d.note(field, key, value)

		if i = skipSpace(b, i); i >= len(b) {
			return i, problemUnclosed
		}
		switch b[i] {
		case ',':
			i++
		case '}':
			return i + 1, ""
		default:
			return i, problemComma
		}
	}
}

// note remembers a member of the top level.
func (d *Doc) note(f Field, key, value Span) {
	if f == fieldOther {
		if d.nrest < maxRest {
			d.rest[d.nrest] = member{key, value}
		}
		d.nrest++
		return
	}
	d.fields[f] = value
	if d.counts[f] < 255 {
		d.counts[f]++
	}
}

// maxFieldLen is more than the length of the longest field's key.
const maxFieldLen = 32

// topLevelField returns the field that raw, a key as it is spelt in the body,
// names. It reports whether the spelling is JSON: unlike values, the keys of
// the top level are ours to judge.
func topLevelField(raw []byte) (Field, bool) {
	escaped := false
	for _, c := range raw {
		if c < ' ' {
			return fieldOther, false
		}
		escaped = escaped || c == '\\'
	}
	if !escaped {
		return fieldOf(raw), true
	}
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			i++
			continue
		}
		_, n, ok := unescape(raw[i:])
		if !ok {
			return fieldOther, false
		}
		i += n
	}
	var buf [maxFieldLen]byte
	key, ok := appendUnquoted(buf[:0], raw, maxFieldLen)
	if !ok {
		return fieldOther, true
	}
	return fieldOf(key), true
}
