// Package coding decodes the content codings of bodies.
//
// A request says how its body is encoded in Content-Encoding, once or several
// times over. [NewReader] undoes it as the body is read, in bounded memory
// and work whatever the body holds. [NewLenientReader] is for looking into an
// answer that goes to the client as it is.
package coding

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
)

// Accepted lists the codings that are decoded, as Accept-Encoding has it.
// Some have a second name: x-gzip. identity stands for none at all.
const Accepted = "gzip, zstd, br, deflate"

// most is how many codings a body may have, one upon the other.
const most = 3

// ErrTooLarge is the error of a body that has more bytes than the limit,
// before, between or after its codings.
var ErrTooLarge = errors.New("request body is too large")

// An UnsupportedError says that a body cannot be decoded, in words for the
// client.
type UnsupportedError struct {
	// Coding is the name of the coding, empty if there are too many of them.
	Coding string
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	if e.Coding == "" {
		return fmt.Sprintf("the body has more than %d content codings", most)
	}
	return "the content coding " + refusal.Quote(e.Coding) + " is not supported"
}

// A CorruptError says that a body is not what its Content-Encoding says, in
// words for the client.
type CorruptError struct {
	// Coding is the coding's name.
	Coding string

	// Err is what the decoder found, io.ErrUnexpectedEOF if the end is
	// missing.
	Err error
}

// Error implements error.
func (e *CorruptError) Error() string {
	if errors.Is(e.Err, io.ErrUnexpectedEOF) {
		return "the body ends in the middle of its content coding " + e.Coding
	}
	return "the body is not valid in its content coding " + e.Coding
}

// Unwrap returns what the decoder found.
func (e *CorruptError) Unwrap() error { return e.Err }

// Refusal returns the answer to a request whose body gave err, nil if err
// does not come from a coding. [ErrTooLarge] is left to the caller.
func Refusal(err error) *refusal.Refusal {
	if unsupported, ok := errors.AsType[*UnsupportedError](err); ok {
		return refusal.UnsupportedCoding(unsupported.Error(), Accepted)
	}
	if corrupt, ok := errors.AsType[*CorruptError](err); ok {
		return refusal.BadCoding(corrupt.Error())
	}
	return nil
}

// Encoded reports whether a request with header h may have an encoded body.
func Encoded(h http.Header) bool { return len(h["Content-Encoding"]) > 0 }

// A Reader reads a body without its content codings.
type Reader struct {
	stages []*stage // from the body inwards
	source source   // what is left after them
}

// NewReader returns a reader of what body holds under the codings that
// encodings, the values of Content-Encoding, list in the order in which they
// were applied. The error is an [*UnsupportedError]; nothing is read yet.
//
// The reader's own errors are a [*CorruptError] and [ErrTooLarge]; those of
// body pass through. It reads at most limit bytes and one buffer from body,
// and gives at most limit bytes. For each coding it holds, until it is closed,
// a window whose size the body announces: of up to 8 MiB for zstd, 16 MiB for
// br, 32 KiB for the others.
func NewReader(encodings []string, body io.Reader, limit int64) (*Reader, error) {
	var names []string
	for _, list := range encodings {
		for name := range strings.SplitSeq(list, ",") {
			name = strings.ToLower(strings.Trim(name, " \t"))
			switch _, known := codings[name]; {
			case name == "", name == "identity":
				continue
			case !known:
				return nil, &UnsupportedError{name}
			case len(names) == most:
				return nil, &UnsupportedError{}
			}
			names = append(names, name)
		}
	}
	r := &Reader{source: source{left: limit}}
	for _, name := range slices.Backward(names) {
		s := &stage{name: name, from: source{r: body, left: limit}}
		r.stages = append(r.stages, s)
		body = s
	}
	r.source.r = body
	return r, nil
}

// Read implements [io.Reader].
func (r *Reader) Read(p []byte) (int, error) { return r.source.Read(p) }

// Close gives back the memory of the decoders. It does not close the body.
func (r *Reader) Close() error {
	for _, s := range r.stages {
		s.close()
	}
	r.source = source{err: http.ErrBodyReadAfterClose}
	return nil
}

// A source reads at most left bytes from r, and notes how that went.
type source struct {
	r    io.Reader
	left int64
	some bool // there was a byte
	err  error
}

// Read implements [io.Reader].
func (s *source) Read(p []byte) (n int, err error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err = s.r.Read(p)
	s.some = s.some || n > 0
	if s.left -= int64(n); s.left < 0 {
		n, err = 0, ErrTooLarge
	}
	s.err = err
	return n, err
}

// A stage undoes one coding.
type stage struct {
	name string
	from source
	dec  decoder
	err  error
}

// Read implements [io.Reader].
func (s *stage) Read(p []byte) (n int, err error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.dec == nil {
		s.dec = codings[s.name].get()
		err = noEOF(s.dec.reset(&s.from))
	}
	if err == nil {
		n, err = s.dec.Read(p)
	}
	switch {
	case err == nil:
	case s.from.err != nil && !errors.Is(s.from.err, io.EOF):
		s.err = s.from.err
	case errors.Is(err, io.EOF) && s.from.some:
		s.err = io.EOF
	default:
		s.err = &CorruptError{s.name, noEOF(err)}
	}
	return n, s.err
}

func (s *stage) close() {
	if s.dec != nil {
		codings[s.name].put(s.dec)
		s.dec = nil
	}
	s.from, s.err = source{}, http.ErrBodyReadAfterClose
}

// noEOF returns err as it is where no end may be.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Interface guard
var _ io.ReadCloser = (*Reader)(nil)
