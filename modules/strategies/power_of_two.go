package strategies

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(PowerOfTwo))
}

// PowerOfTwo draws two endpoints at random and picks the one with fewer calls
// in flight: Mitzenmacher's power of two choices (2001). It suits several
// gateways in front of the same endpoints, each of which knows its own calls
// only: they do not all run to the same one.
//
//	routing power-of-two
type PowerOfTwo struct {
	random source
}

// CaddyModule returns the Caddy module information.
func (*PowerOfTwo) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.strategies.power_of_two",
		New: func() caddy.Module { return new(PowerOfTwo) },
	}
}

// Pick implements [routing.Strategy].
func (p *PowerOfTwo) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	if s.Len() == 0 {
		return routing.Decision{}
	}
	return routing.Decision{Lease: lighterOfTwo(req, s, p.random)}
}

// UnmarshalCaddyfile sets up p. Syntax:
//
//	power-of-two
func (*PowerOfTwo) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return options(d, nil) }

// Interface guards
var (
	_ routing.Strategy      = (*PowerOfTwo)(nil)
	_ caddyfile.Unmarshaler = (*PowerOfTwo)(nil)
)
