package strategies

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(RoundRobin))
}

// RoundRobin picks each endpoint in turn, in the order of their IDs. One of
// weight 2 has two turns where one of weight 1 has one, spread among those of
// the others. Turns go on through changes of endpoints and reloads.
//
//	routing round-robin
type RoundRobin struct{}

// CaddyModule returns the Caddy module information.
func (*RoundRobin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.strategies.round_robin",
		New: func() caddy.Module { return new(RoundRobin) },
	}
}

// Pick implements [routing.Strategy].
func (*RoundRobin) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	n := s.Len()
	if n == 0 {
		return routing.Decision{}
	}
	i := s.InTurn(turn(req, s))
	// An endpoint that cannot be used leaves its turn to any of the others,
	// not to its neighbour, which would then carry a double load.
	for k := 0; k < n && !s.Usable(req, i); k++ {
		i = s.InTurn(turn(req, s))
	}
	for range n {
		if s.Usable(req, i) {
			return routing.Decision{Lease: s.Acquire(i)}
		}
		i = (i + 1) % n
	}
	return routing.Decision{}
}

// UnmarshalCaddyfile sets up r. Syntax:
//
//	round-robin
func (*RoundRobin) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return options(d, nil) }

// Interface guards
var (
	_ routing.Strategy      = (*RoundRobin)(nil)
	_ caddyfile.Unmarshaler = (*RoundRobin)(nil)
)
