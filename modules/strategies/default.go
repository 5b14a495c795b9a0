package strategies

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(Default))
}

// Default leaves the choice to the model's `service` address, such as the DNS
// name of a Kubernetes Service. A model without one is served by its endpoints
// in turn, as by `round-robin`.
//
//	routing default
type Default struct {
	turns RoundRobin
}

// CaddyModule returns the Caddy module information.
func (*Default) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.strategies.default",
		New: func() caddy.Module { return new(Default) },
	}
}

// Pick implements [routing.Strategy].
func (d *Default) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	if lease := acquireService(req, s); lease != nil {
		return routing.Decision{Lease: lease}
	}
	return d.turns.Pick(req, s)
}

// UnmarshalCaddyfile sets up d. Syntax:
//
//	default
func (d *Default) UnmarshalCaddyfile(disp *caddyfile.Dispenser) error { return options(disp, nil) }

// Interface guards
var (
	_ routing.Strategy      = (*Default)(nil)
	_ caddyfile.Unmarshaler = (*Default)(nil)
)
