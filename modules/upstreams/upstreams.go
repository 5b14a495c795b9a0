// Package upstreams holds the source of upstreams that reverse_proxy asks for
// the next endpoint of a call.
package upstreams

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
)

func init() {
	caddy.RegisterModule(Upstreams{})
}

// Upstreams gives `reverse_proxy` exactly one upstream for each attempt: the
// endpoint that the strategy of the request's model picks. The pick is
// counted in the same step, so that a burst of requests does not land on one
// endpoint.
//
// The model is that of the `flexinfer` handler before the proxy. Without such
// a handler the source finds the model by itself, among those of the
// `flexinfer` app; a request for no known model then has no upstream.
type Upstreams struct {
	app *app.App
}

// CaddyModule returns the Caddy module information.
func (Upstreams) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.upstreams.flexinfer",
		New: func() caddy.Module { return new(Upstreams) },
	}
}

// Provision sets up u.
func (u *Upstreams) Provision(ctx caddy.Context) (err error) {
	u.app, err = app.Of(ctx)
	return err
}

// GetUpstreams implements [reverseproxy.UpstreamSource]. r is the proxy's own
// clone of the request, and gets the body of this attempt.
func (u *Upstreams) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	c := call.Alone(r, u.app.Settings())
	if c.Model() == nil {
		if err := c.Resolve(r, u.app.Catalog()); err != nil {
			return nil, nil //nolint:nilerr // no model, no upstream: the proxy answers 503
		}
	}
	lease := c.Next()
	if lease == nil {
		return nil, nil
	}
	c.Rewind(r)
	// Fresh for each attempt, since the proxy writes to what it gets.
	return []*reverseproxy.Upstream{{Dial: lease.Endpoint().Address}}, nil
}

// UnmarshalCaddyfile sets up the source from Caddyfile tokens. Syntax:
//
//	dynamic flexinfer
func (u *Upstreams) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume source name
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("dynamic flexinfer has no options; routing is set in the global option flexinfer or with flexinfer_call")
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Upstreams)(nil)
	_ reverseproxy.UpstreamSource = (*Upstreams)(nil)
	_ caddyfile.Unmarshaler       = (*Upstreams)(nil)
)
