package strategies

import (
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(Prefix))
}

// Prefix sends prompts that begin alike to the same endpoint, whose KV cache
// holds the beginning: the owner of the prefix key on a consistent hash ring,
// or the next on the ring while the owner is at its bound.
//
//	routing prefix {
//		load_factor 1.25
//		load_floor 4
//		keyless service
//	}
//
// When a key is shared by more chats than its endpoint can hold, such as one
// system prompt for everybody, its chats are split over as few endpoints as
// can, and each chat stays where it is from turn to turn, for which its later
// turns may exceed the bound by one call. New chats come together again within
// a minute of the time when fewer endpoints would do. Where chats are is kept
// across reloads, in a fixed amount of memory.
type Prefix struct {
	BoundedLoad

	// Where calls without a usable key go: `least-loaded`, or `service` for
	// the model's service address if it has one. Default: `service`.
	Keyless string `json:"keyless,omitempty"`

	tables atomic.Pointer[tables]
	pooled bool
}

const prefixFactor = 1.25

// CaddyModule returns the Caddy module information.
func (*Prefix) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.strategies.prefix",
		New: func() caddy.Module { return new(Prefix) },
	}
}

// Provision sets up p.
func (p *Prefix) Provision(caddy.Context) error {
	v, _, err := shared.LoadOrNew(sharedKey, func() (caddy.Destructor, error) { return newTables(), nil })
	if err != nil {
		return err
	}
	p.pooled = true
	p.tables.Store(v.(*tables))
	return nil
}

// Validate implements [caddy.Validator].
func (p *Prefix) Validate() error {
	if err := p.validate(); err != nil {
		return err
	}
	return validateKeyless(p.Keyless)
}

// Cleanup implements [caddy.CleanerUpper].
func (p *Prefix) Cleanup() error {
	if !p.pooled {
		return nil
	}
	p.pooled = false
	_, err := shared.Delete(sharedKey)
	return err
}

// Pick implements [routing.Strategy].
func (p *Prefix) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	if s.Len() == 0 {
		return routing.Decision{}
	}
	key := req.PrefixKey()
	if !key.Usable() {
		return pickKeyless(req, s, p.Keyless != keylessLeastLoaded)
	}
	l := p.limit(req, s, prefixFactor)
	if l.factor == 0 || ofSession(key.Source) {
		lease, reason := l.ring(key.Hash)
		return decision(lease, key, reason)
	}
	t := p.state()
	hash := heatHash(key.Hash, s.Model())
	var h *heat
	if s.IsDryRun() {
		h = t.heats.find(hash)
	} else {
		h = t.heats.get(hash, t.now)
	}
	if h == nil {
		lease, reason := l.ring(key.Hash)
		return decision(lease, key, reason)
	}

	var lease *routing.Lease
	var reason string
	calls := int(h.inflight.Load()) + 1
	if !h.split() && l.few(calls) {
		lease, reason = l.ring(key.Hash)
	} else {
		lease, reason = p.split(l, t, h, key.Hash, hash, calls)
	}
	if lease != nil && !s.IsDryRun() {
		lease.Count(&h.inflight)
	}
	return decision(lease, key, reason)
}

// heatHash names a key of a model; it is never 0.
func heatHash(key uint64, model string) uint64 {
	return max(1, mix(key, xxhash.Sum64String(model)))
}

// split picks for a key that is, or was, shared by many chats.
func (p *Prefix) split(l limit, t *tables, h *heat, key, hash uint64, calls int) (*routing.Lease, string) {
	sp := split{limit: l, key: key, heat: h, t: t, calls: calls}
	if session := l.req.SessionKey(); session.Usable() {
		sp.session = session.Hash
		sp.chat = max(1, mix(hash, session.Hash))
	}
	return sp.pick()
}

// ofSession reports whether a key is one chat's own, and cannot be split.
func ofSession(source routing.KeySource) bool {
	switch source {
	case routing.SourceSessionFallback, routing.SourceSessionHeader, routing.SourceConversationHeader,
		routing.SourceSessionBody, routing.SourceSessionMessages:
		return true
	}
	return false
}

// state returns the tables; of its own if p was not provisioned.
func (p *Prefix) state() *tables {
	if t := p.tables.Load(); t != nil {
		return t
	}
	p.tables.CompareAndSwap(nil, newTables())
	return p.tables.Load()
}

// UnmarshalCaddyfile sets up p. Syntax:
//
//	prefix {
//		load_factor <number>
//		load_floor  <number>
//		keyless     least-loaded|service
//	}
func (p *Prefix) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	set := p.bounded()
	set["keyless"] = keylessOption(&p.Keyless)
	return options(d, set)
}

// Interface guards
var (
	_ routing.Strategy      = (*Prefix)(nil)
	_ caddy.Provisioner     = (*Prefix)(nil)
	_ caddy.Validator       = (*Prefix)(nil)
	_ caddy.CleanerUpper    = (*Prefix)(nil)
	_ caddyfile.Unmarshaler = (*Prefix)(nil)
)
