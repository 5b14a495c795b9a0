package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// The functions of this file move over JSON text without looking at what it
// means. They take a position and return the one behind what they skipped,
// or -1 if the text ends first. None of them recurses, and each byte is
// looked at a bounded number of times whatever the text.

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// zeros marks the zero bytes of x with their top bits. Only the lowest mark
// is exact, the ones above it may be false.
func zeros(x uint64) uint64 { return (x - ones) &^ x & highs }

// skipSpace returns the position of the first byte at or after i that is not
// JSON white space, len(b) if there is none.
func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipString skips the rest of a string; i is behind its opening quote.
func skipString(b []byte, i int) int {
	start := i
	// Keys and roles mostly end within 16 bytes.
	if i+16 <= len(b) {
		m := zeros(binary.LittleEndian.Uint64(b[i:]) ^ '"'*ones)
		if m == 0 {
			i += 8
			m = zeros(binary.LittleEndian.Uint64(b[i:]) ^ '"'*ones)
		}
		if m != 0 {
			if i += bits.TrailingZeros64(m) >> 3; b[i-1] != '\\' {
				return i + 1
			}
		}
	}
	// indexQuote begins anew, since a run of backslashes may have been cut.
	i = start + indexQuote(b[start:])
	for { // not often: within the last bytes of b, or without indexQuote
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		i += n
		if b[i-1] != '\\' {
			return i + 1
		}
		// A quote behind an odd number of backslashes is escaped. The run
		// ends at the previous quote at the latest, so that the backslashes
		// of a string are counted once in all.
		k := i - 1
		for b[k-1] == '\\' {
			k--
		}
		i++
		if (i-k)&1 != 0 {
			return i
		}
	}
}

// skipNested skips to behind the bracket that closes the depth innermost
// brackets open at i. Kinds of brackets are not told apart.
func skipNested(b []byte, i, depth int) int {
	for i < len(b) {
		switch nesting[b[i]] {
		case separator:
			i++
		case quote:
			if i = skipString(b, i+1); i < 0 {
				return -1
			}
		case opening:
			i++
			depth++
		case closing:
			i++
			if depth--; depth == 0 {
				return i
			}
		default:
			i = skipPlain(b, i+1)
		}
	}
	return -1
}

// skipPlain skips numbers, literals, white space and separators. It may stop
// among them.
func skipPlain(b []byte, i int) int {
	for i+8 <= len(b) {
		// Setting 0x20 makes [ and { one, and ] and }; setting 0x06 too
		// makes the four one. It stops at some bytes for nothing, but at
		// none that JSON has outside of strings.
		w := binary.LittleEndian.Uint64(b[i:]) | 0x20*ones
		if m := zeros(w^'"'*ones) | zeros((w|0x06*ones)^0x7f*ones); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	return i
}

// What the bytes outside of strings are to skipNested.
const (
	other uint8 = iota
	separator
	quote
	opening
	closing
)

var nesting = [256]uint8{
	',': separator, ':': separator, '"': quote,
	'{': opening, '[': opening, '}': closing, ']': closing,
}

// skipValue skips the value that begins at i, which is not white space. It
// returns i if no value begins there.
func skipValue(b []byte, i int) int {
	switch b[i] {
	case '"':
		return skipString(b, i+1)
	case '{', '[':
		return skipNested(b, i+1, 1)
	}
	for i < len(b) && !delimiter[b[i]] {
		i++
	}
	return i
}

// delimiter tells the bytes that end a number or a literal.
var delimiter = [256]bool{
	' ': true, '\n': true, '\r': true, '\t': true,
	',': true, ':': true, '"': true,
	'{': true, '}': true, '[': true, ']': true,
}
