package strategies

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(SessionAffinity))
}

// SessionAffinity keeps a conversation on one endpoint: the owner of its
// session key on a consistent hash ring. A conversation with so many calls at
// once that its endpoint would exceed its bound spills over to the next
// endpoints on the ring.
//
//	routing session-affinity {
//		load_factor 2
//		load_floor 4
//		keyless least-loaded
//	}
type SessionAffinity struct {
	BoundedLoad

	// Where calls without a session key go: `least-loaded`, or `service` for
	// the model's service address if it has one. Default: the lighter of two
	// endpoints drawn at random.
	Keyless string `json:"keyless,omitempty"`

	random source
}

const sessionFactor = 2

// CaddyModule returns the Caddy module information.
func (*SessionAffinity) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.strategies.session_affinity",
		New: func() caddy.Module { return new(SessionAffinity) },
	}
}

// Validate implements [caddy.Validator].
func (a *SessionAffinity) Validate() error {
	if err := a.validate(); err != nil {
		return err
	}
	return validateKeyless(a.Keyless)
}

// Pick implements [routing.Strategy].
func (a *SessionAffinity) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	if s.Len() == 0 {
		return routing.Decision{}
	}
	key := req.SessionKey()
	switch {
	case key.Usable():
		l := a.limit(req, s, sessionFactor)
		lease, reason := l.ring(key.Hash)
		return decision(lease, key, reason)
	case a.Keyless != "":
		return pickKeyless(req, s, a.Keyless == keylessService)
	}
	return decision(lighterOfTwo(req, s, a.random), routing.Key{}, "keyless")
}

// decision returns the decision for a lease, which may be nil.
func decision(lease *routing.Lease, key routing.Key, reason string) routing.Decision {
	if lease == nil {
		return routing.Decision{}
	}
	return routing.Decision{Lease: lease, Key: key, Reason: reason}
}

// UnmarshalCaddyfile sets up a. Syntax:
//
//	session-affinity {
//		load_factor <number>
//		load_floor  <number>
//		keyless     least-loaded|service
//	}
func (a *SessionAffinity) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	set := a.bounded()
	set["keyless"] = keylessOption(&a.Keyless)
	return options(d, set)
}

// Interface guards
var (
	_ routing.Strategy      = (*SessionAffinity)(nil)
	_ caddy.Validator       = (*SessionAffinity)(nil)
	_ caddyfile.Unmarshaler = (*SessionAffinity)(nil)
)
