package key

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// The domains keep keys of different kinds apart.
const (
	domainSession   = 's'
	domainOpening   = 'o'
	domainExplicit  = 'e'
	domainPrefix    = 'p'
	domainCanonical = 'c'
)

// A hasher makes a key of segments. Each segment is followed by its length
// and its tag, so that the hashed bytes, read from their end, can be cut into
// segments in one way only.
type hasher struct {
	digest   xxhash.Digest
	length   uint64 // of the segment so far
	segments int    // closed so far

	// State of a normalised segment.
	room  int  // bytes it may still take
	space bool // white space stands before the next character

	buf [128]byte // bytes for digest, gathered
	n   int
}

func newHasher(domain byte) hasher {
	var h hasher
	h.digest.Reset()
	h.byte(domain)
	h.length = 0
	return h
}

func (h *hasher) sum() uint64 {
	h.flush()
	return h.digest.Sum64()
}

func (h *hasher) flush() {
	_, _ = h.digest.Write(h.buf[:h.n])
	h.n = 0
}

func (h *hasher) byte(c byte) {
	if h.n == len(h.buf) {
		h.flush()
	}
	h.buf[h.n] = c
	h.n++
	h.length++
}

func (h *hasher) bytes(b []byte) {
	h.length += uint64(len(b))
	if len(b) <= len(h.buf)-h.n {
		h.n += copy(h.buf[h.n:], b)
		return
	}
	h.flush()
	_, _ = h.digest.Write(b)
}

func (h *hasher) string(s string) {
	h.length += uint64(len(s))
	h.flush()
	_, _ = h.digest.WriteString(s)
}

func (h *hasher) rune(r rune) {
	if r < utf8.RuneSelf {
		h.byte(byte(r))
		return
	}
	var b [utf8.UTFMax]byte
	h.bytes(b[:utf8.EncodeRune(b[:], r)])
}

// unquoted adds the meaning of raw, the inside of a JSON string.
func (h *hasher) unquoted(raw []byte) {
	for len(raw) > 0 {
		if raw[0] == '\\' {
			r, size := openai.NextRune(raw)
			h.rune(r)
			raw = raw[size:]
			continue
		}
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			i = len(raw)
		}
		h.bytes(raw[:i])
		raw = raw[i:]
	}
}

// end closes the segment.
func (h *hasher) end(tag byte) {
	var b [9]byte
	binary.LittleEndian.PutUint64(b[:], h.length)
	b[8] = tag
	h.bytes(b[:])
	h.length = 0
	h.segments++
}

// endText closes the segment unless it is empty.
func (h *hasher) endText(tag byte) bool {
	if h.length == 0 {
		return false
	}
	h.end(tag)
	return true
}
