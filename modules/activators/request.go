package activators

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"golang.org/x/net/http/httpguts"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/direct"
)

// Request is a request that the gateway makes itself. It goes straight to its
// address, past any proxy, and follows no redirect. An answer with a status of
// 200 to 299 is a good one.
type Request struct {
	// The method. Default: `GET` for ready, `POST` for start and stop.
	Method string `json:"method,omitempty"`

	// The URL, of scheme http or https.
	URL string `json:"url"`

	// Header fields. Values may hold global placeholders, such as
	// {env.KEY}; they are replaced once, when the configuration is loaded.
	Headers map[string]string `json:"headers,omitempty"`

	// The body, 64 KiB at most. It may hold placeholders as well.
	Body string `json:"body,omitempty"`
}

const maxRequestBody = 64 << 10

// validate returns an error if r cannot be made. what is its option.
func (r *Request) validate(what string) error {
	if r.URL == "" {
		return fmt.Errorf("%s has no URL; write, for example, %s http://10.0.0.5:8000/%s", what, what, what)
	}
	if strings.ContainsAny(r.URL, "{}") {
		return fmt.Errorf("%s: placeholders are not replaced in a URL; in a Caddyfile {$NAME} is, when the file is read", what)
	}
	u, err := url.Parse(r.URL)
	switch {
	case err != nil || u.User != nil:
		// not shown: it may hold a secret
		return fmt.Errorf(`%s: the URL cannot be read, or holds credentials; those go into a header: header Authorization "Bearer {env.KEY}"`, what)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("%s: %q is no URL of scheme http or https; write, for example, http://10.0.0.5:8000/%s", what, r.URL, what)
	case u.Fragment != "":
		return fmt.Errorf("%s: %q has a fragment, which is not sent; leave out #%s", what, r.URL, u.Fragment)
	case !httpguts.ValidHeaderFieldName(r.Method) && r.Method != "":
		return fmt.Errorf("%s: %q is no method; write GET or POST", what, r.Method)
	case len(r.Body) > maxRequestBody:
		return fmt.Errorf("%s: the body has %d bytes; it may have %d", what, len(r.Body), maxRequestBody)
	}
	for field, value := range r.Headers {
		if err := checkHeader(field, value); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

func checkHeader(field, value string) error {
	switch {
	case !httpguts.ValidHeaderFieldName(field):
		return fmt.Errorf("%q is not the name of a header field", field)
	case !httpguts.ValidHeaderFieldValue(value):
		// not shown: it may be a secret
		return fmt.Errorf("header %s: the value holds a line break or another control character", field)
	}
	return nil
}

// An action is a request that is ready to be made.
type action struct {
	what, method, url string
	header            http.Header
	body              string
}

// provision replaces the placeholders.
func (r *Request) provision(what, method string) (*action, error) {
	if err := r.validate(what); err != nil {
		return nil, err
	}
	a := &action{what: what, method: r.Method, url: r.URL, header: make(http.Header, len(r.Headers))}
	if a.method == "" {
		a.method = method
	}
	repl := caddy.NewReplacer()
	for field, value := range r.Headers {
		v, err := repl.ReplaceOrErr(value, true, true)
		if err == nil {
			err = checkHeader(field, v)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: header %s: %w", what, field, err)
		}
		a.header.Set(field, v)
	}
	var err error
	if a.body, err = repl.ReplaceOrErr(r.Body, true, false); err != nil { // braces are mostly those of JSON
		return nil, fmt.Errorf("%s: body: %w", what, err)
	}
	return a, nil
}

// A requestError says why a request had no good answer. It is for the log: it
// says where.
type requestError struct {
	*action
	status int   // 0 if there was no answer
	err    error // why, then
}

func (e *requestError) Error() string {
	where := e.method + " " + e.place()
	if e.status != 0 {
		return strings.TrimSpace(fmt.Sprintf("%s answered with status %d %s", where, e.status, http.StatusText(e.status)))
	}
	return where + ": " + e.err.Error()
}

func (e *requestError) Unwrap() error { return e.err }

// public is what clients may know of it: not where.
func (e *requestError) public() string {
	if e.status != 0 {
		return fmt.Sprintf("the %s request was answered with %d", e.what, e.status)
	}
	why := "it could not be made"
	if errno, ok := errors.AsType[syscall.Errno](e.err); ok {
		why = errno.Error()
	} else if errors.Is(e.err, context.DeadlineExceeded) {
		why = "it had no answer in time"
	}
	return fmt.Sprintf("the %s request failed: %s", e.what, why)
}

// public returns what clients may know of an error.
func public(err error) string {
	if e, ok := errors.AsType[*requestError](err); ok {
		return e.public()
	}
	return err.Error()
}

// do makes the request.
func (a *action) do(ctx context.Context, client *http.Client) error {
	var body io.Reader
	if a.body != "" {
		body = strings.NewReader(a.body)
	}
	req, err := http.NewRequestWithContext(ctx, a.method, a.url, body)
	if err != nil {
		return err
	}
	req.Header = a.header.Clone()
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	if a.body != "" && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // the rest is said below
		}
		return &requestError{action: a, err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return &requestError{action: a, status: resp.StatusCode}
	}
	return nil
}

// place returns the URL without its query, which may hold a secret.
func (a *action) place() string {
	place, _, _ := strings.Cut(a.url, "?")
	return place
}

// newClient returns the client for all of an activator's requests.
func newClient(dial dialFunc) *http.Client { return direct.NewClient("https", dial) }

// unmarshal reads a request after the name of its option. Syntax:
//
//	<option> [<method>] <url> {
//	    header <field> <value>
//	    body   <text>
//	}
func (r *Request) unmarshal(d *caddyfile.Dispenser) error {
	what := d.Val()
	args := d.RemainingArgs()
	switch len(args) {
	case 1:
		r.URL = args[0]
	case 2:
		r.Method, r.URL = args[0], args[1]
	default:
		return d.Errf("%s takes a method and a URL, such as: %s POST http://10.0.0.5:8000/%s", what, what, what)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		switch option := d.Val(); option {
		case "header":
			var field, value string
			if !d.Args(&field, &value) || d.NextArg() {
				return d.Err(`header takes a name and a value, such as: header Authorization "Bearer {env.KEY}"`)
			}
			field = http.CanonicalHeaderKey(field)
			if _, ok := r.Headers[field]; ok {
				return d.Errf("header %s is there twice; keep one", field)
			}
			if r.Headers == nil {
				r.Headers = make(map[string]string)
			}
			r.Headers[field] = value
		case "body":
			if r.Body != "" {
				return d.Err("body is there twice; keep one")
			}
			if !d.Args(&r.Body) || d.NextArg() || r.Body == "" {
				return d.Errf("body takes one text, such as: body `{\"model\": \"qwen3-8b\"}`")
			}
		default:
			return d.Errf("unknown option %q in %s; known: body, header", option, what)
		}
	}
	if err := r.validate(what); err != nil {
		return d.WrapErr(err)
	}
	return nil
}
