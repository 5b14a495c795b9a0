package matchers

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(MatchKey{})
}

// MatchKey matches requests that hold a usable routing key in one of the
// sources named, whatever strategy routes them: `explicit-header`,
// `explicit-body`, `prefix-field`, `canonical`, `session-header`,
// `conversation-header`, `session-body`, `session-messages`; `none` matches
// requests without any key.
//
// The request's body is read, up to the app's max_body; a larger one is an
// error with status 413.
type MatchKey struct {
	// The sources, one of which has to hold a key.
	Sources []string `json:"sources,omitempty"`

	app     *app.App
	sources []routing.KeySource
}

// CaddyModule returns the Caddy module information.
func (MatchKey) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.matchers.flexinfer_key",
		New: func() caddy.Module { return new(MatchKey) },
	}
}

// Provision sets up m.
func (m *MatchKey) Provision(ctx caddy.Context) (err error) {
	for _, name := range m.Sources {
		s, err := parseSource(name)
		if err != nil {
			return err
		}
		m.sources = append(m.sources, s)
	}
	m.app, err = app.Of(ctx)
	return err
}

// Validate reports whether there is something to match.
func (m *MatchKey) Validate() error {
	if len(m.Sources) == 0 {
		return errors.New("flexinfer_key needs a source of keys, such as explicit-header")
	}
	return nil
}

// parseSource reads a source's name. A session key is never matched as the
// fallback that the prefix strategy makes of it, but under its own source.
func parseSource(name string) (routing.KeySource, error) {
	s, ok := routing.ParseKeySource(name)
	if ok && s != routing.SourceSessionFallback {
		return s, nil
	}
	var known []string
	for s := range routing.NumKeySources {
		if k := routing.KeySource(s); k != routing.SourceSessionFallback {
			known = append(known, k.String())
		}
	}
	return 0, fmt.Errorf("flexinfer_key: unknown source of keys %q; write one of: %s", name, strings.Join(known, ", "))
}

// Match implements [caddyhttp.RequestMatcher].
func (m *MatchKey) Match(r *http.Request) bool {
	ok, _ := m.MatchWithError(r)
	return ok
}

// MatchWithError implements [caddyhttp.RequestMatcherWithError].
func (m *MatchKey) MatchWithError(r *http.Request) (bool, error) {
	c := call.Join(r, m.app.Settings())
	if err := c.ReadWhole(r); err != nil {
		return false, asHandlerError(err)
	}
	return slices.ContainsFunc(m.sources, c.Holds), nil
}

// CELLibrary makes the matcher usable in expressions:
//
//	expression flexinfer_key('explicit-header', 'explicit-body')
func (MatchKey) CELLibrary(ctx caddy.Context) (cel.Library, error) {
	return celList("flexinfer_key", func(list []string) (caddyhttp.RequestMatcherWithError, error) {
		m := &MatchKey{Sources: list}
		if err := m.Provision(ctx); err != nil {
			return nil, err
		}
		return m, m.Validate()
	})
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	flexinfer_key <sources...>
func (m *MatchKey) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if err := unmarshalList(d, &m.Sources, "a source of keys, such as explicit-header"); err != nil {
		return err
	}
	for _, name := range m.Sources {
		if _, err := parseSource(name); err != nil {
			return d.WrapErr(err)
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner                 = (*MatchKey)(nil)
	_ caddy.Validator                   = (*MatchKey)(nil)
	_ caddyhttp.RequestMatcherWithError = (*MatchKey)(nil)
	_ caddyhttp.CELLibraryProducer      = (*MatchKey)(nil)
	_ caddyfile.Unmarshaler             = (*MatchKey)(nil)
)
