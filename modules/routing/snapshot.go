package routing

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ring"
)

// A Snapshot is the set of endpoints that serve a model at one moment. It is
// immutable; the loads it shows are live. A change of endpoints makes a new
// Snapshot.
type Snapshot struct {
	model     string
	endpoints []*Endpoint // by ID
	loads     []*atomic.Int64
	service   *Endpoint
	pool      *pool
	turn      *atomic.Uint64
	dry       bool
	sameTurn  bool // the pick has taken its turn

	health    []*health.State
	troubled  *atomic.Int64 // endpoints that are not fit, here or elsewhere
	tolerated Level
	limited   bool // an endpoint has a MaxInflight
}

// always has each endpoint looked at before it is said to be usable.
var always = func() *atomic.Int64 {
	n := new(atomic.Int64)
	n.Store(1)
	return n
}()

// New returns a snapshot of a model's endpoints. The order of endpoints does
// not matter; of two with the same ID the first counts. service is where
// requests go when none of them can be picked; it may be nil. prev, if not
// nil, is the snapshot of the same model that this one replaces: what can be
// carried over from it is.
func New(model string, endpoints []*Endpoint, service *Endpoint, prev *Snapshot) *Snapshot {
	es := slices.Clone(endpoints)
	slices.SortStableFunc(es, func(a, b *Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	es = slices.CompactFunc(es, func(a, b *Endpoint) bool { return a.ID == b.ID })
	s := &Snapshot{model: model, endpoints: es, service: service}
	s.loads = make([]*atomic.Int64, len(es))
	s.health = make([]*health.State, len(es))
	s.troubled = (*health.State)(nil).Troubled()
	for i, e := range es {
		s.loads[i] = e.entry.Counter()
		s.health[i] = e.health
		if e.health != nil {
			s.troubled = e.health.Troubled()
		}
		s.limited = s.limited || e.MaxInflight > 0
	}
	if s.limited {
		s.troubled = always
	}
	if prev != nil {
		s.turn, s.pool = prev.turn, newPool(es, prev.pool)
	} else {
		s.turn, s.pool = new(atomic.Uint64), newPool(es, nil)
	}
	return s
}

// NewSnapshot returns a snapshot over a ledger of its own, for tests of
// strategies.
func NewSnapshot(model string, specs ...Spec) *Snapshot {
	l := ledger.New(ledger.Config{})
	es := make([]*Endpoint, len(specs))
	for i, spec := range specs {
		es[i] = NewEndpoint(l, nil, model, spec)
	}
	return New(model, es, nil, nil)
}

// Model returns the model's name.
func (s *Snapshot) Model() string { return s.model }

// Len returns the number of endpoints.
func (s *Snapshot) Len() int { return len(s.endpoints) }

// At returns endpoint i. Endpoints are in the order of their IDs.
func (s *Snapshot) At(i int) *Endpoint { return s.endpoints[i] }

// Load returns the load of endpoint i.
func (s *Snapshot) Load(i int) int { return int(s.loads[i].Load()) }

// Usable reports whether endpoint i may be picked for req: it was not tried
// by an earlier attempt, its health is tolerated, and it has room for a call.
// The answer may change at any time.
func (s *Snapshot) Usable(req *Request, i int) bool {
	return len(req.Tried) == 0 && s.troubled.Load() == 0 || s.usable(req, i) // inlined, as it is asked of each endpoint
}

// allUsable reports whether all endpoints are usable for req, as far as that
// can be told without a look at them.
func (s *Snapshot) allUsable(req *Request) bool {
	return len(req.Tried) == 0 && s.troubled.Load() == 0
}

func (s *Snapshot) usable(req *Request, i int) bool {
	return !s.full(i) && s.eligible(req, i)
}

// eligible is usable for an endpoint that has room.
func (s *Snapshot) eligible(req *Request, i int) bool {
	return !slices.Contains(req.Tried, s.endpoints[i].ID) &&
		(s.tolerated == Ejected || s.health[i].Level(s.Load(i)) <= s.tolerated)
}

// full reports whether endpoint i has as many calls in flight as it may.
func (s *Snapshot) full(i int) bool {
	most := s.endpoints[i].MaxInflight
	return most > 0 && s.Load(i) >= most
}

// crowded reports whether an endpoint could be picked for req if it had room.
func (s *Snapshot) crowded(req *Request) bool {
	if !s.limited {
		return false
	}
	for i := range s.endpoints {
		if s.full(i) && s.eligible(req, i) {
			return true
		}
	}
	return false
}

// HasRoom reports whether an endpoint could take a call, and be picked for one
// that was not tried before.
func (s *Snapshot) HasRoom() bool {
	t, none := s.Tolerating(Busy), new(Request)
	if !t.crowded(none) {
		t = s.Tolerating(Ejected)
	}
	for i := range t.endpoints {
		if t.usable(none, i) {
			return true
		}
	}
	return false
}

// Total returns the sum of the loads of the usable endpoints and their number.
func (s *Snapshot) Total(req *Request) (load, n int) {
	if s.allUsable(req) {
		for _, l := range s.loads {
			load += int(l.Load())
		}
		return load, len(s.loads)
	}
	for i, l := range s.loads {
		if s.Usable(req, i) {
			load += int(l.Load())
			n++
		}
	}
	return load, n
}

// TotalWeight returns the sum of the weights of the usable endpoints.
func (s *Snapshot) TotalWeight(req *Request) int {
	w := s.pool.weight
	if s.allUsable(req) {
		return w
	}
	for i, e := range s.endpoints {
		if !s.Usable(req, i) {
			w -= e.Weight
		}
	}
	return w
}

// Tagged returns the endpoint with this [Endpoint.Tag], or -1 if there is
// none.
func (s *Snapshot) Tagged(tag uint32) int { return s.pool.tagged(tag) }

// InTurn returns the endpoint whose turn it is, by weight. The turns of an
// endpoint are spread evenly among those of the others. The snapshot must not
// be empty.
func (s *Snapshot) InTurn(turn uint64) int { return s.pool.inTurn(turn) }

// Successors starts a walk over the endpoints in the order in which the
// consistent hash ring prefers them for the hash. Health plays no part.
func (s *Snapshot) Successors(hash uint64) ring.Walk { return s.pool.hashRing().Walk(hash) }

// Owner returns the endpoint that the ring prefers for the hash, or -1 if
// there is none. It is the same whatever the endpoints' health, so that keys
// come home when theirs has recovered.
func (s *Snapshot) Owner(hash uint64) int { return s.pool.hashRing().Owner(hash) }

// Remapped returns the share of keys, from 0 to 1, that belong to other
// endpoints than they did in prev. It looks at 1,024 keys. It is false if no
// call has asked for the ring of both.
func (s *Snapshot) Remapped(prev *Snapshot) (share float64, ok bool) {
	const sample = 1 << 10
	now, then := s.pool.ring.Load(), prev.pool.ring.Load()
	if now == nil || then == nil {
		return 0, false
	}
	if now == then || s.Len() == 0 || prev.Len() == 0 {
		return 0, s.Len() > 0 && prev.Len() > 0
	}
	moved := 0
	for i := range uint64(sample) {
		hash := i << (64 - 10)
		if s.endpoints[now.Owner(hash)].ID != prev.endpoints[then.Owner(hash)].ID {
			moved++
		}
	}
	return float64(moved) / sample, true
}

// Acquire counts one more call on endpoint i, whatever its load. It returns nil
// if the endpoint has a MaxInflight and as many calls.
func (s *Snapshot) Acquire(i int) *Lease { return s.acquire(s.endpoints[i]) }

// TryAcquire counts one more call on endpoint i if its load is still seen.
// It returns nil if it is not, and the caller looks again. A strategy that
// compares loads uses it so that no burst lands on one endpoint.
func (s *Snapshot) TryAcquire(i, seen int) *Lease {
	e := s.endpoints[i]
	if s.dry {
		return &Lease{endpoint: e}
	}
	if s.Load(i) != seen || e.MaxInflight > 0 && seen >= e.MaxInflight {
		return nil // without a lease made in vain
	}
	l := &Lease{endpoint: e}
	if !e.entry.TryReserve(&l.ticket, int64(seen)) {
		return nil
	}
	s.picked(e)
	return l
}

// HasService reports whether the model has a service address to fall back to.
func (s *Snapshot) HasService() bool { return s.service != nil }

// Service returns the model's service, or nil.
func (s *Snapshot) Service() *Endpoint { return s.service }

// AcquireService counts one more call on the model's service. It returns nil
// if there is none.
func (s *Snapshot) AcquireService() *Lease {
	if s.service == nil {
		return nil
	}
	l := s.acquire(s.service)
	l.service = true
	return l
}

func (s *Snapshot) acquire(e *Endpoint) *Lease {
	l := &Lease{endpoint: e}
	switch {
	case s.dry:
		return l
	case e.MaxInflight == 0:
		e.entry.Reserve(&l.ticket)
	default:
		for {
			seen := e.entry.Load()
			if seen >= e.MaxInflight {
				return nil
			}
			if e.entry.TryReserve(&l.ticket, int64(seen)) {
				break
			}
		}
	}
	s.picked(e)
	return l
}

// picked notes that e is tried, if it is ejected.
func (s *Snapshot) picked(e *Endpoint) {
	if s.troubled.Load() != 0 {
		e.health.Picked()
	}
}

// Turn returns the next number of a count that all picks of the model share,
// starting at 0. It goes on through changes of endpoints.
func (s *Snapshot) Turn() uint64 {
	switch {
	case s.dry:
		return s.turn.Load()
	case s.sameTurn:
		return s.turn.Load() - 1
	}
	return s.turn.Add(1) - 1
}

// DryRun returns a snapshot that looks like s and counts nothing, to explain
// a decision.
func (s *Snapshot) DryRun() *Snapshot {
	d := *s
	d.dry = true
	return &d
}

// IsDryRun reports whether the snapshot counts nothing. A strategy that
// keeps state of its own leaves it alone then.
func (s *Snapshot) IsDryRun() bool { return s.dry }
