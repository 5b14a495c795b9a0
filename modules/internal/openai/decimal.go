package openai

import (
	"bytes"
	"strconv"
)

// A Decimal is a number of any size and precision, as the body spells it.
type Decimal struct {
	negative bool
	digits   []byte // from the first to the last that is not 0, perhaps with a point among them
	order    int64  // the value is 0.digits × 10^order
}

// maxExponent is more than the digits that a body can have.
const maxExponent = 1 << 40

// Decimal returns the number at s; ok is false if s is no JSON number.
func (d *Doc) Decimal(s Span) (n Decimal, ok bool) {
	raw := d.Raw(s)
	if len(raw) > 0 && raw[0] == '-' {
		n.negative = true
		raw = raw[1:]
	}
	mantissa, whole := raw, countDigits(raw)
	if whole == 0 || whole > 1 && raw[0] == '0' {
		return Decimal{}, false
	}
	raw = raw[whole:]
	if len(raw) > 0 && raw[0] == '.' {
		fraction := countDigits(raw[1:])
		if fraction == 0 {
			return Decimal{}, false
		}
		raw = raw[1+fraction:]
	}
	mantissa = mantissa[:len(mantissa)-len(raw)]
	exponent, ok := readExponent(raw)
	if !ok {
		return Decimal{}, false
	}
	digits := bytes.TrimLeft(mantissa, "0.")
	leading := len(mantissa) - len(digits)
	n.digits = bytes.TrimRight(digits, "0.")
	n.order = int64(whole-leading) + exponent
	if leading > whole { // the point is no digit
		n.order++
	}
	return n, true
}

func countDigits(b []byte) (n int) {
	for n < len(b) && '0' <= b[n] && b[n] <= '9' {
		n++
	}
	return n
}

// readExponent reads what follows a number's digits.
func readExponent(raw []byte) (exponent int64, ok bool) {
	if len(raw) == 0 {
		return 0, true
	}
	if raw[0]|0x20 != 'e' {
		return 0, false
	}
	raw = raw[1:]
	sign := int64(1)
	if len(raw) > 0 && (raw[0] == '+' || raw[0] == '-') {
		if raw[0] == '-' {
			sign = -1
		}
		raw = raw[1:]
	}
	if len(raw) == 0 || countDigits(raw) < len(raw) {
		return 0, false
	}
	for _, c := range raw {
		exponent = min(10*exponent+int64(c-'0'), maxExponent)
	}
	return sign * exponent, true
}

// Compare returns -1, 0 or 1 as n is less than, equal to, or greater than i.
func (n Decimal) Compare(i int) int {
	sign := 1
	switch {
	case len(n.digits) == 0: // 0, or -0
		switch {
		case i > 0:
			return -1
		case i < 0:
			return 1
		}
		return 0
	case n.negative && i >= 0:
		return -1
	case !n.negative && i <= 0:
		return 1
	case n.negative:
		sign = -1
	}
	var buf [20]byte
	other := bytes.TrimLeft(strconv.AppendInt(buf[:0], int64(i), 10), "-")
	switch length := int64(len(other)); {
	case n.order > length:
		return sign
	case n.order < length:
		return -sign
	}
	for _, c := range n.digits {
		if c == '.' {
			continue
		}
		o := byte('0')
		if len(other) > 0 {
			o, other = other[0], other[1:]
		}
		switch {
		case c > o:
			return sign
		case c < o:
			return -sign
		}
	}
	if len(bytes.TrimLeft(other, "0")) > 0 {
		return -sign
	}
	return 0
}

// Whole reports whether n has no fraction, however it is spelt: 1.0 and 1e3.
func (n Decimal) Whole() bool {
	significant := int64(len(n.digits))
	if bytes.IndexByte(n.digits, '.') >= 0 {
		significant--
	}
	return significant == 0 || significant <= n.order
}
