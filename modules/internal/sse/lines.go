// Package sse finds the lines of a stream of server-sent events that comes
// piece by piece.
package sse

import "bytes"

// Lines finds where the lines of a stream end: with LF, CR, or CR and LF. A CR
// ends a line at once, whether or not an LF follows, so that the lines are the
// same however the stream is cut. The zero Lines is at the start of a stream.
type Lines struct{ afterCR bool }

// SkipLF reports whether p, the next bytes of the stream, begins with the LF of
// a CR and LF whose CR has ended a line. It belongs to that end.
func (l *Lines) SkipLF(p []byte) bool {
	if !l.afterCR || len(p) == 0 {
		return false
	}
	l.afterCR = false
	return p[0] == '\n'
}

// End returns the index of the byte that ends the line which p, the next bytes
// of the stream, begins with or goes on with; -1 if it is not in p. p does not
// begin with what SkipLF would skip.
func (l *Lines) End(p []byte) int {
	i := End(p)
	l.afterCR = i >= 0 && p[i] == '\r'
	return i
}

// End returns the index of the first byte that ends a line, LF or CR, or -1.
func End(p []byte) int {
	// Hardly any stream has a CR. One with nothing but CRs must not be
	// searched for an LF to its end for each of them.
	const window = 2 << 10
	for from := 0; from < len(p); from += window {
		part := p[from:min(from+window, len(p))]
		lf := bytes.IndexByte(part, '\n')
		if lf >= 0 {
			part = part[:lf]
		}
		if cr := bytes.IndexByte(part, '\r'); cr >= 0 {
			return from + cr
		}
		if lf >= 0 {
			return from + lf
		}
	}
	return -1
}
