package strategies

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(LeastLoaded))
}

// LeastLoaded picks the endpoint with the fewest calls in flight for this
// gateway, whichever models they are for; among equals, each in turn. Weights
// play no part: an endpoint that is faster has fewer calls in flight by itself.
//
//	routing least-loaded
type LeastLoaded struct{}

// CaddyModule returns the Caddy module information.
func (*LeastLoaded) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.strategies.least_loaded",
		New: func() caddy.Module { return new(LeastLoaded) },
	}
}

// Pick implements [routing.Strategy].
func (*LeastLoaded) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	return routing.Decision{Lease: leastLoaded(req, s)}
}

// UnmarshalCaddyfile sets up l. Syntax:
//
//	least-loaded
func (*LeastLoaded) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return options(d, nil) }

// Interface guards
var (
	_ routing.Strategy      = (*LeastLoaded)(nil)
	_ caddyfile.Unmarshaler = (*LeastLoaded)(nil)
)
