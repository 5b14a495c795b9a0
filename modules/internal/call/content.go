package call

import (
	"io"
	"net/http"
	"strings"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
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
	switch t := openai.MediaType(h["Content-Type"]); {
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
