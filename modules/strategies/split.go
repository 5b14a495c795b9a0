package strategies

import (
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// grace is by how many calls a chat's later turn may exceed the bound. A bound
// counts whole calls, and where endpoints have some five of them in flight it
// lies within the ups and downs of chats that come and go: without that one
// call more, a quarter of the turns would have to leave their caches.
const grace = 1

// A split is one pick for a key that many chats share.
//
// One system prompt for everybody is the commonest application, and its key is
// the same for all. Left to the bounded load alone, its home would fill to the
// bound, and then each turn of each chat would go wherever there is room just
// then, away from the cache of the chat's earlier turns. So the chats, rather
// than the calls, are spread:
//
//   - The key is split over the fewest of its successors on the ring that hold
//     its calls when each has the mean load: its width.
//   - A new chat goes to the lightest of those, and is remembered there. Its
//     later turns follow it for as long as the endpoint is within its bound.
//   - New chats leave room: they fill an endpoint only half of the way from
//     the mean to the bound. What is left takes the ups and downs of the chats
//     that are there, and the rare keys whose home it is. Where none of the
//     holders has that much room the key is split wider.
//   - A turn that finds its endpoint at its bound moves its chat, once.
//   - The key narrows when less was wanted for a while, not at once, and chats
//     stay where they are even then: only new ones come together again.
type split struct {
	limit
	key  uint64
	heat *heat
	t    *tables

	chat    uint64 // hash of key and session; 0 without a session
	calls   int    // of the key in flight, with this one
	session uint64
}

// pick picks an endpoint. The reason is empty if that is the key's home.
func (p *split) pick() (lease *routing.Lease, reason string) {
	now := p.t.now()
	home, place := p.s.Owner(p.key), -1
	later := p.req.Continues()
	if tag, ok := p.t.chats.find(p.chat, now); ok && p.chat != 0 {
		place = p.s.Tagged(tag)
	} else if later {
		place = home // a chat that began before the key was split
	}

	wanted := 0
	if place >= 0 && p.s.Usable(p.req, place) {
		switch {
		case later:
			p.grace = grace
			lease = p.take(place)
			p.grace = 0
		case p.roomy(place, p.s.Load(place)):
			// A first turn that comes again, as when many calls are the
			// same, has no history to lose, and is no better than a new
			// chat.
			lease = p.take(place)
		}
	}
	if lease == nil {
		lease, wanted = p.place(max(1, p.heat.width(now)), place >= 0 && later)
	}
	if lease == nil {
		return nil, ""
	}
	if lease.Endpoint() != p.s.At(home) {
		reason = "split"
	}
	if !p.s.IsDryRun() {
		if wanted > 1 {
			p.heat.widen(wanted, now)
		}
		if p.chat != 0 && p.heat.split() {
			p.t.chats.put(p.chat, lease.Endpoint().Tag(), now)
		}
	}
	return lease, reason
}

// place finds an endpoint for a chat that has none: the lightest of the first
// so many successors of the key, or of as many more as it takes for one to
// have room. A chat that had to move shows that they are too few, and makes
// them one more, up to twice as many as its calls need. place also returns how
// many are needed now, which may be fewer than there are.
func (p *split) place(width int, moved bool) (lease *routing.Lease, wanted int) {
	for range attempts {
		p.sum()
		wanted = min(p.s.Len(), p.wanted())
		holders := max(width, wanted)
		if moved && holders < 2*wanted {
			holders = min(holders+1, p.s.Len())
			wanted = holders
		}
		best, load, seen := -1, 0, 0
		walk := p.s.Successors(p.key)
		for i, ok := walk.Next(); ok; i, ok = walk.Next() {
			if !p.s.Usable(p.req, i) {
				continue
			}
			seen++
			if l := p.s.Load(i); best < 0 || p.lighter(i, l, best, load) {
				best, load = i, l
			}
			if seen >= holders && p.roomy(best, load) {
				break
			}
		}
		if best < 0 {
			return nil, 0
		}
		if seen > holders {
			wanted = seen // the holders had no room
		}
		if p.admits(best, load) {
			if lease = p.s.TryAcquire(best, load); lease != nil {
				return lease, wanted
			}
		}
		p.forget()
	}
	return leastLoaded(p.req, p.s), 0
}

// wanted returns over how many endpoints the key's calls should be split: as
// few as hold them when each has the mean load, or what it has room for below
// the floor.
func (p *split) wanted() int {
	p.sum()
	return ceil(float64(p.calls) / max(float64(p.room()), p.mean))
}

// room returns how many calls new chats may bring an endpoint to whatever the
// mean: three quarters of the floor.
func (p *split) room() int { return p.floor - p.floor/4 }

// roomy reports whether endpoint i may take a new chat, given its load.
func (p *split) roomy(i, load int) bool {
	if load < p.room() {
		return true
	}
	p.sum()
	return load+1 <= ceil((1+p.factor)/2*p.share(i))
}

// lighter reports whether endpoint i with load a is a better place for the
// chat than endpoint j with load b. Of equals each session has its own order.
func (p *split) lighter(i, a, j, b int) bool {
	x, y := p.s.At(i), p.s.At(j)
	if d := (a+1)*y.Weight - (b+1)*x.Weight; d != 0 {
		return d < 0
	}
	return mix(p.session, uint64(x.Tag())) < mix(p.session, uint64(y.Tag()))
}
