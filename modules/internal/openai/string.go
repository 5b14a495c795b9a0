package openai

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// String returns the string at s, decoded as encoding/json does it: invalid
// UTF-8 and lone surrogates become U+FFFD. ok is false if s is not a string,
// if the string is malformed, or if it has more than limit bytes, decoded.
func (d *Doc) String(s Span, limit int) (value string, ok bool) {
	raw, ok := d.Text(s)
	if !ok {
		return "", false
	}
	if len(raw) <= limit && simple(raw) {
		return string(raw), true
	}
	var buf [256]byte
	decoded, ok := appendUnquoted(buf[:0], raw, limit)
	return string(decoded), ok
}

// AppendString appends the string at s to dst. It is [Doc.String] for callers
// that have a buffer; dst is returned unchanged if ok is false.
func (d *Doc) AppendString(dst []byte, s Span, limit int) (_ []byte, ok bool) {
	raw, ok := d.Text(s)
	if !ok {
		return dst, false
	}
	return appendUnquoted(dst, raw, limit)
}

// Text returns what stands between the quotes of the string at s, with its
// escapes, which need not be well-formed; ok is false if s is not a string.
func (d *Doc) Text(s Span) (raw []byte, ok bool) {
	// Only the inside of a malformed value can end in a string's middle.
	if s.Len() < 2 || d.body[s.Start] != '"' || d.body[s.End-1] != '"' {
		return nil, false
	}
	return d.body[s.Start+1 : s.End-1], true
}

// Model returns the model that the body names, of at most limit bytes. The
// error is [ErrNoModel], [ErrModelType] or [ErrModelTooLong].
func (d *Doc) Model(limit int) (string, error) {
	s := d.fields[FieldModel]
	if !s.Present() {
		return "", ErrNoModel
	}
	if d.Kind(s) != String {
		return "", ErrModelType
	}
	name, ok := d.String(s, limit)
	switch {
	case !ok && s.Len()-2 > limit:
		return "", ErrModelTooLong
	case !ok:
		return "", ErrModelType
	case strings.TrimSpace(name) == "":
		return "", ErrNoModel
	}
	return name, nil
}

// simple reports whether raw means itself: it has no escapes, is valid UTF-8
// and printable.
func simple(raw []byte) bool {
	ascii := true
	for _, c := range raw {
		if c < ' ' || c == '\\' {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.Valid(raw)
}

// appendUnquoted appends the meaning of raw, the inside of a JSON string, to
// dst, unless it is malformed or has more than limit bytes. Then dst is
// returned as it was. The work is bounded by limit, too.
func appendUnquoted(dst, raw []byte, limit int) (_ []byte, ok bool) {
	n := len(dst)
	for i := 0; i < len(raw); {
		r, size := rune(raw[i]), 1
		switch {
		case r == '\\':
			if r, size, ok = unescape(raw[i:]); !ok {
				return dst[:n], false
			}
		case r < ' ' || r == '"':
			return dst[:n], false
		case r >= utf8.RuneSelf:
			r, size = utf8.DecodeRune(raw[i:])
		}
		i += size
		dst = utf8.AppendRune(dst, r)
		if len(dst)-n > limit {
			return dst[:n], false
		}
	}
	return dst, true
}

// NextRune returns the first rune of raw, the inside of a JSON string, and
// the number of bytes that spell it. It takes malformed escapes for the
// characters they consist of, and invalid UTF-8 for U+FFFD. It returns 0, 0
// for an empty raw.
func NextRune(raw []byte) (r rune, size int) {
	if len(raw) == 0 {
		return 0, 0
	}
	switch c := raw[0]; {
	case c == '\\':
		r, size, ok := unescape(raw)
		if !ok {
			return '\\', 1
		}
		return r, size
	case c < utf8.RuneSelf:
		return rune(c), 1
	}
	return utf8.DecodeRune(raw)
}

// unescape reads the escape that raw begins with. A lone surrogate is U+FFFD.
func unescape(raw []byte) (r rune, size int, ok bool) {
	if len(raw) < 2 {
		return 0, 0, false
	}
	switch c := raw[1]; c {
	case '"', '\\', '/':
		return rune(c), 2, true
	case 'b':
		return '\b', 2, true
	case 'f':
		return '\f', 2, true
	case 'n':
		return '\n', 2, true
	case 'r':
		return '\r', 2, true
	case 't':
		return '\t', 2, true
	case 'u':
		r, ok = hex4(raw)
		if !ok || !utf16.IsSurrogate(r) {
			return r, 6, ok
		}
		if low, ok := hex4(raw[6:]); ok {
			if r := utf16.DecodeRune(r, low); r != utf8.RuneError {
				return r, 12, true
			}
		}
		return utf8.RuneError, 6, true
	}
	return 0, 0, false
}

// hex4 returns the number in an escape of the form \uXXXX.
func hex4(raw []byte) (r rune, ok bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	for _, c := range raw[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
