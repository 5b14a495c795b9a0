package call

import (
	"io"
	"net/http"
	"strings"
)

// contentType is what a body's Content-Type says, as far as it matters here.
type contentType uint8

const (
	typeOther contentType = iota
	typeJSON
	typeForm
)

// mediaType reads the Content-Type header. Parameters and case do not matter.
func mediaType(h http.Header) contentType {
	v := h["Content-Type"]
	if len(v) == 0 {
		return typeOther
	}
	if v[0] == "application/json" { // nearly always
		return typeJSON
	}
	t, _, _ := strings.Cut(v[0], ";")
	t = strings.ToLower(strings.TrimSpace(t))
	switch {
	case t == "application/json", strings.HasPrefix(t, "application/") && strings.HasSuffix(t, "+json"):
		return typeJSON
	case t == "multipart/form-data":
		return typeForm
	}
	return typeOther
}

// A resumedBody reads on where another reader stopped.
type resumedBody struct {
	io.Reader
	io.Closer
}
