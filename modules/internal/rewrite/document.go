package rewrite

import (
	"bytes"
	"encoding/json"
	"strconv"
)

const (
	// maxValue is the longest value that is replaced, in bytes, with its
	// quotes.
	maxValue = 4 << 10

	// maxKey is the longest spelling of a key that matters: each byte of
	// response escaped.
	maxKey = 6 * len("response")
)

// A state is where in a document a scan is.
type state uint8

const (
	begin       state = iota // before the document
	firstMember              // behind { of an object whose members are looked at
	nextMember               // behind a comma there
	inKey                    // in a key there
	colon                    // behind that key
	value                    // behind its colon
	inModel                  // in the string to replace
	inString                 // in another string
	inScalar                 // in a number or literal
	inNested                 // in an object or array that is passed over
	inNestedString
	comma // behind a value
	done  // behind the document
	lost  // it is not what was expected
)

// What a member is.
const (
	otherMember  = iota
	modelMember  // its value is replaced if it is a string
	parentMember // its value is an object that may have a model
)

// A document is scanned for the places where the model's name stands. Only the
// members at these places are looked at; what lies inside other values is not
// judged.
type document struct {
	model []byte // the name to put there, in quotes
	inner bool   // it may be one level down, too

	state   state
	depth   int8  // of the object whose members are looked at: 1 or 2
	member  uint8 // what the member is
	escaped bool  // in a string, the next byte is
	nesting int   // in inNested
	keyLen  int
	key     [maxKey]byte // what came of the key
	held    []byte       // what came of the string to replace
}

func quote(name string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(name) // a string is always encoded
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

// reset prepares for the next document.
func (d *document) reset() { d.state, d.escaped, d.held = begin, false, d.held[:0] }

// release appends to dst what is held, unchanged.
func (d *document) release(dst []byte) []byte {
	dst = append(dst, d.held...)
	d.held = d.held[:0]
	return dst
}

// endLine takes a line end, which cannot be in a string.
func (d *document) endLine(dst []byte) []byte {
	switch d.state {
	case inKey, inModel, inString, inNestedString:
		d.state = lost
	case inScalar:
		d.state = comma
	}
	return d.release(dst)
}

// append appends the next bytes of the document to dst.
func (d *document) append(dst, p []byte) []byte {
	from := 0 // what is before is in dst
	for i := 0; i < len(p); {
		switch d.state {
		case done, lost:
			i = len(p)
		case inKey:
			n, closed := d.skipString(p[i:])
			d.readKey(p[i:i+n], closed)
			i += n
		case inModel:
			n, closed := d.skipString(p[i:])
			i += n
			dst = d.replace(dst, p[from:i], closed)
			from = i
		case inString:
			n, closed := d.skipString(p[i:])
			if i += n; closed {
				d.state = comma
			}
		case inNested, inNestedString:
			i += d.skipNested(p[i:])
		case inScalar:
			for i < len(p) && kinds[p[i]] == scalar {
				i++
			}
			if i < len(p) {
				d.state = comma
			}
		default:
			if c := p[i]; kinds[c] != space {
				d.step(c)
				if d.state == inModel {
					dst = append(dst, p[from:i]...)
					from = i
					if i+1 == len(p) {
						dst = d.replace(dst, p[from:], false)
						from = len(p)
					}
				}
			}
			i++
		}
	}
	return append(dst, p[from:]...)
}

// step takes a byte between strings and scalars.
func (d *document) step(c byte) {
	next := lost
	switch d.state {
	case begin:
		if c == '{' {
			d.depth, next = 1, firstMember
		}
	case firstMember, nextMember:
		switch {
		case c == '"':
			d.keyLen, next = 0, inKey
		case c == '}' && d.state == firstMember:
			next = d.up()
		}
	case colon:
		if c == ':' {
			next = value
		}
	case value:
		next = d.stepValue(c)
	case comma:
		switch c {
		case ',':
			next = nextMember
		case '}':
			next = d.up()
		}
	}
	d.state = next
}

// stepValue takes the first byte of a member's value.
func (d *document) stepValue(c byte) state {
	switch {
	case c == '"' && d.member == modelMember:
		return inModel
	case c == '"':
		return inString
	case c == '{' && d.member == parentMember:
		d.depth = 2
		return firstMember
	case c == '{' || c == '[':
		d.nesting = 1
		return inNested
	case kinds[c] == scalar:
		return inScalar
	}
	return lost
}

// up leaves an object whose members were looked at.
func (d *document) up() state {
	if d.depth--; d.depth == 0 {
		return done
	}
	return comma
}

// readKey takes a part of a key, with the closing quote if it is the last.
func (d *document) readKey(part []byte, last bool) {
	if !last {
		if d.keyLen += len(part); d.keyLen <= maxKey {
			copy(d.key[d.keyLen-len(part):], part)
		}
		return
	}
	part = part[:len(part)-1]
	if d.keyLen > 0 {
		if d.keyLen += len(part); d.keyLen <= maxKey {
			copy(d.key[d.keyLen-len(part):], part)
			part = d.key[:d.keyLen]
		} else {
			part = nil
		}
	}
	d.state, d.member = colon, otherMember
	if len(part) > maxKey {
		return
	}
	var buf [maxKey]byte
	switch string(unescape(buf[:0], part)) {
	case "model":
		d.member = modelMember
	case "response", "message":
		if d.inner && d.depth == 1 {
			d.member = parentMember
		}
	}
}

// unescape returns raw without its escapes, or nil if it has one that is not
// of an ASCII letter. It may use buf.
func unescape(buf, raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '\\' {
			if len(raw) < i+6 || raw[i+1] != 'u' {
				return nil
			}
			r, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 7)
			if err != nil {
				return nil
			}
			c = byte(r)
			i += 5
		}
		buf = append(buf, c)
	}
	return buf
}

// replace takes a part of the string to replace, with the closing quote if it
// is the last. Its first part begins with the opening quote.
func (d *document) replace(dst, part []byte, last bool) []byte {
	size := len(d.held) + len(part)
	switch {
	case size > maxValue:
		d.state = inString
		if last {
			d.state = comma
		}
		dst = d.release(dst)
		return append(dst, part...)
	case !last:
		d.held = append(d.held, part...)
		return dst
	}
	d.state = comma
	if hasControl(d.held) || hasControl(part) {
		d.state = lost
		dst = d.release(dst)
		return append(dst, part...)
	}
	d.held = d.held[:0]
	return append(dst, d.model...)
}

func hasControl(b []byte) bool {
	for _, c := range b {
		if c < ' ' {
			return true
		}
	}
	return false
}

// skipString returns how many bytes of p belong to the string that p is a part
// of, with the closing quote, and whether that was there.
func (d *document) skipString(p []byte) (n int, closed bool) {
	if d.escaped {
		n, d.escaped = 1, false
	}
	for {
		end := len(p)
		i := bytes.IndexByte(p[n:], '"')
		switch {
		case i == 0 || i > 0 && p[n+i-1] != '\\':
			return n + i + 1, true
		case i > 0:
			end = n + i
		}
		slash := end
		for slash > n && p[slash-1] == '\\' {
			slash--
		}
		odd := (end-slash)%2 == 1
		if i < 0 {
			d.escaped = odd
			return end, false
		}
		n = end + 1
		if !odd {
			return n, true
		}
	}
}

// skipNested returns how many bytes of p belong to the object or array that p
// is a part of.
func (d *document) skipNested(p []byte) (i int) {
	if d.state == inNestedString {
		var closed bool
		if i, closed = d.skipString(p); !closed {
			return i
		}
		d.state = inNested
	}
	for i < len(p) {
		kind := kinds[p[i]]
		i++
		switch {
		case kind < quoteMark:
		case kind == opening:
			d.nesting++
		case kind == closing:
			if d.nesting--; d.nesting == 0 {
				d.state = comma
				return i
			}
		default:
			n, closed := d.skipString(p[i:])
			if i += n; !closed {
				d.state = inNestedString
				return i
			}
		}
	}
	return i
}

// Kinds of bytes. What is from quoteMark on matters in nested values.
const (
	other = iota
	space
	scalar
	quoteMark
	opening
	closing
)

var kinds = func() (k [256]uint8) {
	for _, of := range []struct {
		kind  uint8
		bytes string
	}{
		{space, " \t\r\n"}, {quoteMark, `"`}, {opening, "{["}, {closing, "}]"},
		{scalar, "+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"},
	} {
		for _, c := range []byte(of.bytes) {
			k[c] = of.kind
		}
	}
	return k
}()
