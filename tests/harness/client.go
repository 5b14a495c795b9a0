package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A Response is an answer that was read to its end.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// String shows the response in a message.
func (r *Response) String() string { return fmt.Sprintf("%d %s", r.Status, clip(r.Body)) }

// Route returns the parts of the header X-Flexinfer-Route.
func (r *Response) Route() map[string]string {
	parts := make(map[string]string)
	for part := range strings.FieldsSeq(r.Header.Get("X-Flexinfer-Route")) {
		name, value, _ := strings.Cut(part, "=")
		parts[name] = value
	}
	return parts
}

// An APIError is an error in the shape of OpenAI's API.
type APIError struct {
	Error struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Param   string `json:"param"`
		Code    string `json:"code"`
	} `json:"error"`
}

// Refusal returns the error in the body, which has to be of OpenAI's shape.
func (r *Response) Refusal(tb testing.TB) APIError {
	tb.Helper()
	if ct := r.Header.Get("Content-Type"); ct != "application/json" {
		tb.Errorf("an error has the Content-Type %q, want application/json: %s", ct, r)
	}
	e := Decode[APIError](tb, r.Body)
	if e.Error.Message == "" || e.Error.Type == "" || e.Error.Code == "" {
		tb.Errorf("an error lacks a message, a type or a code: %s", r)
	}
	return e
}

// NewRequest returns a request to the gateway. Headers are pairs of a name and
// a value; a body is JSON unless they say otherwise. A name may be there
// twice.
func (g *Gateway) NewRequest(ctx context.Context, method, path, body string, headers ...string) (*http.Request, error) {
	return newRequest(ctx, method, g.URL+path, body, headers...)
}

func newRequest(ctx context.Context, method, url, body string, headers ...string) (*http.Request, error) {
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	if body != "" && req.Header["Content-Type"] == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// Try makes a request and reads the answer to its end. It may be called from
// any goroutine.
func (g *Gateway) Try(ctx context.Context, method, path, body string, headers ...string) (*Response, error) {
	req, err := g.NewRequest(ctx, method, path, body, headers...)
	if err != nil {
		return nil, err
	}
	return do(g.Client, req)
}

// TryFresh is Try on a connection of its own.
func (g *Gateway) TryFresh(ctx context.Context, method, path, body string, headers ...string) (*Response, error) {
	req, err := g.NewRequest(ctx, method, path, body, headers...)
	if err != nil {
		return nil, err
	}
	return do(g.Fresh, req)
}

// TryTwice is TryFresh while the configuration is reloaded. A reload of Caddy
// replaces the listener, and closes connections that were made to the old one
// and not served yet; clients send again what was lost that way.
func (g *Gateway) TryTwice(ctx context.Context, method, path, body string, headers ...string) (*Response, error) {
	res, err := g.TryFresh(ctx, method, path, body, headers...)
	if res == nil && err != nil {
		res, err = g.TryFresh(ctx, method, path, body, headers...)
	}
	return res, err
}

// Do is Try for the test's own goroutine.
func (g *Gateway) Do(tb testing.TB, method, path, body string, headers ...string) *Response {
	tb.Helper()
	res, err := g.Try(tb.Context(), method, path, body, headers...)
	if err != nil {
		tb.Fatalf("%s %s: %v", method, path, err)
	}
	return res
}

// Get makes a GET request.
func (g *Gateway) Get(tb testing.TB, path string, headers ...string) *Response {
	tb.Helper()
	return g.Do(tb, http.MethodGet, path, "", headers...)
}

// Post makes a POST request.
func (g *Gateway) Post(tb testing.TB, path, body string, headers ...string) *Response {
	tb.Helper()
	return g.Do(tb, http.MethodPost, path, body, headers...)
}

// Chat posts a chat completion, which has to succeed.
func (g *Gateway) Chat(tb testing.TB, body string, headers ...string) *Response {
	tb.Helper()
	res := g.Post(tb, "/v1/chat/completions", body, headers...)
	if res.Status != http.StatusOK {
		tb.Fatalf("chat: %s", res)
	}
	return res
}

// Debug is the header that asks for X-Flexinfer-Route.
var Debug = []string{"X-Flexinfer-Debug", "1"}

// Open makes a request and returns once the answer's headers are there. The
// caller reads and closes the body.
func (g *Gateway) Open(ctx context.Context, method, path, body string, headers ...string) (*http.Response, error) {
	req, err := g.NewRequest(ctx, method, path, body, headers...)
	if err != nil {
		return nil, err
	}
	return g.Client.Do(req)
}
