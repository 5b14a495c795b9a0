package call

import (
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// Queued returns the time between the call's being admitted and its first
// attempt, or the end of its wait if it waited in vain; 0 if it did neither.
func (c *Call) Queued() time.Duration {
	end := c.dialled
	if end.IsZero() {
		end = c.refused
	}
	if end.IsZero() || c.admitted.IsZero() {
		return 0
	}
	return end.Sub(c.admitted)
}

// Dialled returns the time at which the first attempt began.
func (c *Call) Dialled() time.Time { return c.dialled }

// Stream reports whether the request asks for a stream. Ollama's own API
// streams unless it is told otherwise.
func (c *Call) Stream() bool {
	d := c.doc
	if d == nil {
		return false
	}
	v, ok := d.Bool(d.Field(openai.FieldStream))
	if !ok && (c.path == "/api/chat" || c.path == "/api/generate") {
		return true
	}
	return v && ok
}

// completions are the paths, less what is in front of them, that generate
// text.
var completions = []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", responsesPath, "/api/chat", "/api/generate"}

// Completion reports whether the request asks for a completion.
func (c *Call) Completion() bool {
	if c.method != http.MethodPost {
		return false
	}
	for _, path := range completions {
		if strings.HasSuffix(c.path, path) {
			return true
		}
	}
	return false
}

// speaksOpenAI reports whether the request asks for a completion in the API in
// which the usage of streams has to be asked for.
func (c *Call) speaksOpenAI() bool {
	return c.Completion() && strings.HasSuffix(c.path, "/completions")
}

// TakesTrailers reports whether the client wants to see trailers.
func (c *Call) TakesTrailers() bool {
	return httpguts.HeaderValuesContainsToken(c.header["Te"], "trailers")
}

// WantsHitRate reports whether the client asks for the hit rate of the
// endpoint's prefix cache.
func (c *Call) WantsHitRate() bool {
	v := c.header["X-Flexinfer-Want-Prefix-Hit"]
	if len(v) == 0 {
		return false
	}
	switch strings.ToLower(strings.TrimSpace(v[0])) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}
