package sim

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// A rendered prompt is UTF-8 text between marks. A mark opens with a byte that
// no UTF-8 text holds, so that a message cannot counterfeit one.
const (
	markByte  = 0xFF // and one byte: a special token, such as the start of a message
	tokenByte = 0xFE // and eight bytes: a token given by its number
)

const (
	markSystem    = 's'
	markDeveloper = 'd'
	markUser      = 'u'
	markAssistant = 'a'
	markTool      = 't'
	markRole      = 'r' // any other role: its name follows
	markTools     = 'f' // the tools on offer
	markMedia     = 'm' // an image, audio or a file
	markEnd       = 'e'
)

// wordBytes bounds a token that is part of a word. With the space before it,
// English prose comes to about four bytes per token.
const wordBytes = 5

func appendMark(b []byte, mark byte) []byte { return append(b, markByte, mark) }

func appendToken(b []byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, tokenByte), id)
}

// kinds says of each byte what it can be part of.
var kinds = func() (kinds [256]kind) {
	for c := range kinds {
		switch {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
			kinds[c] = space
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c >= 0x80 && c < tokenByte:
			kinds[c] = letter
		case c >= tokenByte:
			kinds[c] = mark
		}
	}
	return kinds
}()

type kind uint8

const (
	punctuation kind = iota
	letter
	space
	mark
)

// nextToken returns where the token that begins at b[i] ends. It looks at most
// two bytes further, so text that goes on changes no token but the last.
func nextToken(b []byte, i int) int {
	first := b[i]
	i++
	switch kind := kinds[first]; {
	case kind == letter:
		for end := min(i+wordBytes-1, len(b)); i < end && kinds[b[i]] == letter; i++ {
		}
	case first == ' ' && i < len(b) && kinds[b[i]] == letter:
		for end := min(i+wordBytes, len(b)); i < end && kinds[b[i]] == letter; i++ {
		}
	case kind == space:
		// A space before a word belongs to the word.
		for end := min(i+wordBytes, len(b)); i < end && kinds[b[i]] == space && (b[i] != ' ' || i+1 == len(b) || kinds[b[i+1]] != letter); i++ {
		}
	case first == markByte:
		return min(i+1, len(b))
	case first == tokenByte:
		return min(i+8, len(b))
	default:
		for end := min(i+2, len(b)); i < end && kinds[b[i]] == punctuation; i++ {
		}
	}
	return i
}

// A chain cuts a growing text into blocks of tokens. A block is known by a hash
// of its bytes and of all blocks before it, so that equal hashes mean equal
// text from the beginning.
type chain struct {
	blockSize int
	text      []byte
	tokens    int
	blocks    []uint64 // full ones

	parent uint64
	pos    int // end of the last token
	start  int // of the block that is not full
	digest xxhash.Digest
}

// grow takes in the text appended since it was last called.
func (c *chain) grow() {
	if c.blocks == nil {
		c.blocks = make([]uint64, 0, len(c.text)/(4*c.blockSize)+4)
	}
	for c.pos < len(c.text) {
		c.pos = nextToken(c.text, c.pos)
		if c.tokens++; c.tokens%c.blockSize == 0 {
			c.digest.ResetWithSeed(c.parent)
			_, _ = c.digest.Write(c.text[c.start:c.pos])
			c.parent = c.digest.Sum64()
			c.blocks = append(c.blocks, c.parent)
			c.start = c.pos
		}
	}
}
