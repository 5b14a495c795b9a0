// Package sources holds the modules that discover endpoints.
package sources

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(Static{})
}

// Static is a source of endpoints that the configuration lists.
type Static struct {
	// The upstreams, each of which serves the model.
	Upstreams []Upstream `json:"upstreams,omitempty"`

	models []routing.Model
}

// Upstream is one address that serves models.
type Upstream struct {
	// Where the upstream is: host:port, or a URL with the scheme http,
	// https or h2c and, if need be, a base path. A URL without a port
	// means port 80, or 443 for https.
	Address string `json:"address"`

	// The name that the upstream knows the model by; requests to it have
	// this one. Only for the upstreams of a model that the configuration
	// declares. Default: the model's name.
	Model string `json:"model,omitempty"`

	// The upstream's share of the load relative to others, 1 to 100.
	// Default: `1`.
	Weight int `json:"weight,omitempty"`

	// The most calls that the upstream may have in flight for this gateway,
	// 1 or more. When all upstreams of a model have as many as they may,
	// calls wait in its queue. Default: as many as come.
	MaxInflight int `json:"max_inflight,omitempty"`

	// Words about the upstream, for strategies and the admin API.
	Labels map[string]string `json:"labels,omitempty"`

	// Header fields to set on requests to this upstream. Values may hold
	// global placeholders, such as {env.KEY}; they are replaced once, when
	// the configuration is loaded.
	Headers map[string]string `json:"headers,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (Static) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.sources.static",
		New: func() caddy.Module { return new(Static) },
	}
}

// Provision sets up s.
func (s *Static) Provision(caddy.Context) error {
	specs, err := specsOf(s.Upstreams)
	if err != nil {
		return err
	}
	s.models = []routing.Model{{Endpoints: specs}}
	return nil
}

// Models implements [routing.Source].
func (s *Static) Models() ([]routing.Model, <-chan struct{}) { return s.models, nil }

// specsOf returns the endpoints that the upstreams describe, in their order.
func specsOf(upstreams []Upstream) ([]routing.Spec, error) {
	specs := make([]routing.Spec, 0, len(upstreams))
	seen := make(map[string]bool, len(upstreams))
	for i := range upstreams {
		spec, err := upstreams[i].Spec()
		if err != nil {
			return nil, err
		}
		url := spec.URL()
		if seen[url] {
			return nil, fmt.Errorf("upstream %s is listed twice; to send it more, give it a weight", upstreams[i].Address)
		}
		seen[url] = true
		specs = append(specs, spec)
	}
	return specs, nil
}

// Spec returns the endpoint that u describes, placeholders replaced.
func (u *Upstream) Spec() (routing.Spec, error) {
	spec, err := ParseAddress(u.Address)
	if err != nil {
		return spec, err
	}
	if u.Weight != 0 {
		if err := CheckWeight(u.Weight); err != nil {
			return spec, fmt.Errorf("upstream %s: %w", u.Address, err)
		}
	}
	if u.Model != "" {
		if err := CheckUpstreamModel(u.Model); err != nil {
			return spec, fmt.Errorf("upstream %s: %w", u.Address, err)
		}
	}
	if u.MaxInflight < 0 {
		return spec, fmt.Errorf("upstream %s: max_inflight is negative; leave it out for as many calls as come", u.Address)
	}
	spec.Model, spec.Weight, spec.Labels, spec.MaxInflight = u.Model, u.Weight, u.Labels, u.MaxInflight
	if spec.Header, err = headerOf(u.Headers); err != nil {
		return spec, fmt.Errorf("upstream %s: %w", u.Address, err)
	}
	return spec, nil
}

// headerOf returns a header with these fields, placeholders replaced.
func headerOf(fields map[string]string) (http.Header, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	repl := caddy.NewReplacer()
	header := make(http.Header, len(fields))
	for field, value := range fields {
		v, err := repl.ReplaceOrErr(value, true, true)
		if err != nil {
			return nil, fmt.Errorf("header %s: %w", field, err)
		}
		if err := CheckHeader(field, v); err != nil {
			return nil, err
		}
		if header[http.CanonicalHeaderKey(field)] != nil {
			return nil, fmt.Errorf("header %s is set twice", field)
		}
		header.Set(field, v)
	}
	return header, nil
}

// Interface guards
var (
	_ caddy.Module      = (*Static)(nil)
	_ caddy.Provisioner = (*Static)(nil)
	_ routing.Source    = (*Static)(nil)
)
