// Package upstreams holds the source of upstreams that reverse_proxy asks for
// the next endpoint of a call.
package upstreams

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
	"github.com/flexinfer/caddy-flexinfer/modules/transport"
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
//
// With the name of a Kubernetes Service it is instead the ready pods behind
// that, whatever model the request asks for, as one model with the name
// <namespace>/<service>. Its strategy is that of `flexinfer_call` before the
// proxy, or else that of the `flexinfer` app, whose cluster it is in.
//
// The endpoints' schemes, base paths and headers are the business of
// `transport flexinfer`, which belongs beside this source. With another
// transport only plain http endpoints can be reached, and a call counts as
// under way from the pick on.
type Upstreams struct {
	// The Kubernetes Service whose pods are the upstreams:
	// <namespace>/<service>, with :<port> for one of the pods' ports by its
	// name or number. Default: none, and the upstreams are those of the
	// request's model.
	Service string `json:"service,omitempty"`

	app     *app.App
	catalog *catalog.Catalog
	model   string // of the catalog, if it is that of a Service
	plain   bool   // the transport is another one
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
	if mods := ctx.Modules(); len(mods) > 1 {
		if h, ok := mods[len(mods)-2].(*reverseproxy.Handler); ok {
			_, ours := h.Transport.(*transport.Transport) // which the proxy loads first
			u.plain = !ours
		}
	}
	if u.app, err = app.Of(ctx); err != nil {
		return err
	}
	u.catalog = u.app.Catalog()
	if u.Service == "" {
		return nil
	}
	var k sources.Kubernetes
	if err := k.SetService(u.Service); err != nil {
		return err
	}
	u.model = k.Namespace + "/" + k.Service
	u.catalog, err = u.app.CatalogOfService(ctx, &k)
	return err
}

// GetUpstreams implements [reverseproxy.UpstreamSource]. r is the proxy's own
// clone of the request, and gets the body of this attempt.
func (u *Upstreams) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	c := call.Join(r, u.app.Settings())
	if u.model != "" {
		c.Assign(r, u.catalog, u.model)
	} else if c.Model() == nil {
		err := c.Resolve(r, u.catalog)
		if err == nil {
			err = c.Admit(r.Context())
		}
		if err != nil {
			c.GiveUp()      // the proxy asks again
			return nil, nil //nolint:nilerr // no model, no upstream: the proxy answers 503
		}
	}
	lease := c.Next(r.Context())
	if lease == nil {
		return nil, nil
	}
	e := lease.Endpoint()
	if u.plain {
		if e.Scheme != "http" || e.Path != "" || len(e.Header) > 0 {
			c.GiveUp()
			return nil, fmt.Errorf("endpoint %s is not plain http, or has a path or headers; add to the proxy: transport flexinfer", e.Target())
		}
		c.Dial()
	}
	c.Rewind(r)
	// Fresh for each attempt, since the proxy writes to what it gets.
	return []*reverseproxy.Upstream{{Dial: e.Address}}, nil
}

// UnmarshalCaddyfile sets up the source from Caddyfile tokens. Syntax:
//
//	dynamic flexinfer [<namespace>/<service>[:<port>]]
func (u *Upstreams) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume source name
	if d.NextArg() {
		u.Service = d.Val()
		if err := new(sources.Kubernetes).SetService(u.Service); err != nil {
			return d.WrapErr(err)
		}
	}
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
