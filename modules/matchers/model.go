// Package matchers holds the request matchers.
package matchers

import (
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types/ref"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
)

func init() {
	caddy.RegisterModule(MatchModel{})
}

// MatchModel matches requests by the model that they ask for. A pattern
// matches the name that the request has or the declared name of the model
// that it stands for, so that an alias opens no back door. In a pattern, `*`
// stands for any run of characters, slashes included.
//
// The request's body is read for its field `model`, up to the app's max_body;
// a larger one is an error with status 413.
type MatchModel struct {
	// The names or patterns, one of which has to match.
	Models []string `json:"models,omitempty"`

	app *app.App
}

// CaddyModule returns the Caddy module information.
func (MatchModel) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.matchers.flexinfer_model",
		New: func() caddy.Module { return new(MatchModel) },
	}
}

// Provision sets up m.
func (m *MatchModel) Provision(ctx caddy.Context) (err error) {
	m.app, err = app.Of(ctx)
	return err
}

// Validate reports whether there is something to match.
func (m *MatchModel) Validate() error {
	if len(m.Models) == 0 {
		return errors.New("flexinfer_model needs a model's name or a pattern, such as qwen3-*")
	}
	return nil
}

// Match implements [caddyhttp.RequestMatcher].
func (m *MatchModel) Match(r *http.Request) bool {
	ok, _ := m.MatchWithError(r)
	return ok
}

// MatchWithError implements [caddyhttp.RequestMatcherWithError].
func (m *MatchModel) MatchWithError(r *http.Request) (bool, error) {
	c := call.Join(r, m.app.Settings())
	for _, cat := range m.app.Catalogs() {
		name, err := c.Named(r, cat)
		if err != nil {
			return false, asHandlerError(err)
		}
		if name == "" {
			continue
		}
		if m.matches(name) {
			return true, nil
		}
		if res, ok := cat.Table().Resolve(name); ok && slices.ContainsFunc(res.Models(), func(model *catalog.Model) bool { return m.matches(model.Name) }) {
			return true, nil
		}
	}
	return false, nil
}

func (m *MatchModel) matches(name string) bool {
	return slices.ContainsFunc(m.Models, func(pattern string) bool { return like(pattern, name) })
}

// like reports whether name has the form of pattern, whose stars stand for any
// run of characters.
func like(pattern, name string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	for {
		var part string
		part, rest, wild = strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
}

// asHandlerError gives a refusal its status, for the error routes.
func asHandlerError(err error) error {
	if ref, ok := errors.AsType[*refusal.Refusal](err); ok {
		return caddyhttp.Error(ref.Status, ref)
	}
	if _, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		return err
	}
	return caddyhttp.Error(http.StatusBadRequest, err)
}

// CELLibrary makes the matcher usable in expressions:
//
//	expression flexinfer_model('qwen3-*', 'chat')
func (MatchModel) CELLibrary(ctx caddy.Context) (cel.Library, error) {
	return celList("flexinfer_model", func(list []string) (caddyhttp.RequestMatcherWithError, error) {
		m := &MatchModel{Models: list}
		if err := m.Provision(ctx); err != nil {
			return nil, err
		}
		return m, m.Validate()
	})
}

// celList makes a CEL function of a matcher that takes a list of strings.
func celList(name string, matcher func([]string) (caddyhttp.RequestMatcherWithError, error)) (cel.Library, error) {
	return caddyhttp.CELMatcherImpl(name, name+"_request_list", []*cel.Type{cel.ListType(cel.StringType)},
		func(data ref.Val) (caddyhttp.RequestMatcherWithError, error) {
			list, err := data.ConvertToNative(reflect.TypeFor[[]string]())
			if err != nil {
				return nil, err
			}
			return matcher(list.([]string))
		})
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	flexinfer_model <names or patterns...>
func (m *MatchModel) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return unmarshalList(d, &m.Models, "a model's name or a pattern, such as qwen3-*")
}

// unmarshalList appends the arguments of all uses of a matcher to list.
func unmarshalList(d *caddyfile.Dispenser, list *[]string, what string) error {
	for d.Next() {
		args := d.RemainingArgs()
		if len(args) == 0 {
			return d.Errf("expected %s", what)
		}
		*list = append(*list, args...)
		if d.NextBlock(0) {
			return d.Err("this matcher has no block")
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner                 = (*MatchModel)(nil)
	_ caddy.Validator                   = (*MatchModel)(nil)
	_ caddyhttp.RequestMatcherWithError = (*MatchModel)(nil)
	_ caddyhttp.CELLibraryProducer      = (*MatchModel)(nil)
	_ caddyfile.Unmarshaler             = (*MatchModel)(nil)
)
