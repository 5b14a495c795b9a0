package call

import (
	"math/rand/v2"
	"strconv"
	"time"
)

// RequestIDHeader is the field that request ids are in, to the client and to
// endpoints.
const RequestIDHeader = "X-Request-Id"

// maxRequestID is the longest id that is taken from a client, in bytes.
const maxRequestID = 128

// RequestID returns the id of the request: the client's own, or a new one of
// the time in nanoseconds and four hex digits.
func (c *Call) RequestID() string {
	if c.id != "" {
		return c.id
	}
	if v := c.header[RequestIDHeader]; len(v) > 0 && goodID(v[0]) {
		c.id = v[0]
		return c.id
	}
	var b [32]byte
	id := strconv.AppendInt(b[:0], time.Now().UnixNano(), 10)
	c.id = string(appendHex(id, rand.Uint32()>>16, 4))
	return c.id
}

// AttemptID returns a new id for an attempt: the request's, a dash and eight
// hex digits. Engines use it as a key of their own, so that it must not come
// twice, whatever clients send.
func (c *Call) AttemptID() string {
	var b [maxRequestID + 9]byte
	return string(appendHex(append(append(b[:0], c.RequestID()...), '-'), rand.Uint32(), 8))
}

func appendHex(b []byte, v uint32, digits int) []byte {
	const hex = "0123456789abcdef"
	for i := digits - 1; i >= 0; i-- {
		b = append(b, hex[v>>(4*i)&15])
	}
	return b
}

// goodID reports whether a client's id may go into headers and logs.
func goodID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}
