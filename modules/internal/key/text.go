package key

import (
	"encoding/binary"
	"unicode"
	"unicode/utf8"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// normalise begins a segment of normalised text of at most limit bytes.
func (h *hasher) normalise(limit int) { h.room, h.space = limit, false }

// text adds raw, the inside of a JSON string, in normalised form: trimmed,
// with one space for each run of white space, in lower case, cut at the end
// of a rune. It returns false if the segment is full.
func (h *hasher) text(raw []byte) bool {
	for i := 0; i < len(raw); {
		if n := h.words(raw[i:]); n > 0 {
			i += n
			continue
		}
		if raw[i] == ' ' {
			h.space = true
			i++
			continue
		}
		r, size := openai.NextRune(raw[i:])
		i += size
		if r = lower(r); r == isSpace {
			h.space = true
			continue
		}
		due := h.space && h.length > 0
		size = utf8.RuneLen(r)
		if due {
			size++
		}
		if size > h.room {
			h.room = 0
			return false
		}
		h.room -= size
		if due {
			h.byte(' ')
		}
		h.space = false
		h.rune(r)
	}
	return true
}

// isSpace stands for any white space; it is no rune.
const isSpace = -1

// lowers is lower for the scripts of two bytes and less per character, where
// the tables of package unicode have to be searched.
var lowers = func() (t [0x800]rune) {
	for r := range rune(len(t)) {
		t[r] = unicode.ToLower(r)
		if unicode.IsSpace(r) {
			t[r] = isSpace
		}
	}
	return t
}()

// lower returns r in lower case, or isSpace.
func lower(r rune) rune {
	switch {
	case r < rune(len(lowers)):
		return lowers[r]
	case 0x3001 <= r && r <= 0x9fff, 0xac00 <= r && r <= 0xd7a3: // of East Asia, without either
		return r
	case unicode.IsSpace(r):
		return isSpace
	}
	return unicode.ToLower(r)
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// words adds text eight bytes at a time, as far as they are printable ASCII
// with single spaces, and returns how much of raw that was. It leaves to
// others what comes near the end of the room.
func (h *hasher) words(raw []byte) (i int) {
	for i+8 <= len(raw) && h.room > 8 {
		w := binary.LittleEndian.Uint64(raw[i:])
		backslash := w ^ '\\'*ones
		if (w|(w-' '*ones)|(backslash-ones)&^backslash)&highs != 0 {
			break
		}
		// No byte has its top bit set, so that nothing is carried from one
		// to the next below.
		spaces := ^((w ^ ' '*ones) + 0x7f*ones) & highs
		if spaces&(spaces<<8) != 0 || spaces&0x80 != 0 && (h.space || h.length == 0) {
			break
		}
		capitals := (w + (0x80-'A')*ones) &^ (w + (0x7f-'Z')*ones) & highs

		if len(h.buf)-h.n < 9 {
			h.flush()
		}
		due := 0
		if h.space && h.length > 0 {
			due = 1
		}
		h.buf[h.n] = ' '
		binary.LittleEndian.PutUint64(h.buf[h.n+due:], w|capitals>>2)
		last := int(spaces >> 63)
		n := due + 8 - last
		h.n += n
		h.room -= n
		h.length += uint64(n)
		h.space = last == 1
		i += 8
	}
	return i
}
