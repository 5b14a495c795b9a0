// Package ledger counts the calls in flight on each endpoint.
//
// A call holds a [Ticket]. It is born reserved, when an endpoint is picked,
// becomes active when the endpoint is dialled, and is released when the call
// ends: one count throughout. Behind the tickets stands a safety net for those
// that are never released, because a bug or a hung goroutine keeps them: each
// count is also logged in a bucket of time, and buckets past their time are
// dropped whole.
//
// # Ownership and concurrency
//
// Endpoints and tickets hold an [Entry]; the ledger itself holds it only
// weakly. So an endpoint that goes away and comes back while calls are in
// flight on it finds its count, and one that comes back later starts at 0.
// No operation on a ticket takes a lock; two calls meet only in the counters
// of the endpoint they share.
package ledger

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// Defaults of a [Config].
const (
	DefaultBucket         = 5 * time.Second
	DefaultTTL            = 600 * time.Second
	DefaultReservationTTL = 10 * time.Second
)

// A Config says how long counts live. The zero Config holds the defaults.
type Config struct {
	// Bucket is the width of a bucket, 5 s unless positive. A TTL of more
	// than 4,095 buckets makes them wider.
	Bucket time.Duration

	// TTL is the age at which a bucket is dropped, 600 s unless positive.
	// A call that really lasts that long calls [Ticket.Renew] more often.
	TTL time.Duration

	// ReservationTTL is for how long a ticket counts that is not activated,
	// 10 s if 0, and TTL at most. If negative, tickets count from their
	// activation only.
	ReservationTTL time.Duration

	// OnPrune, if set, is told of each bucket dropped with a count n > 0:
	// that many calls were neither released nor renewed for the TTL. It is
	// called from whatever goroutine found the bucket, and is quick.
	OnPrune func(model, target string, n int)

	// OnExpire, if set, is told of n reservations that stopped counting
	// because they were not activated in time. As OnPrune, it is quick.
	OnExpire func(model string, n int)

	// Now is a monotonic clock; the time since New unless set. Only New
	// looks at it: a ledger keeps its clock.
	Now func() time.Duration
}

// A Ledger keeps the counts of a set of endpoints. Create one with [New].
type Ledger struct {
	settings atomic.Pointer[settings]

	mu      sync.Mutex
	entries map[key]weak.Pointer[Entry]
	totals  map[string]weak.Pointer[total]
}

type key struct{ model, id string }

// A total is the load of an endpoint, whatever the model. It fills a cache
// line: two endpoints' counters never share one. They are allocated one by
// one all the same, because Go's allocator lays objects of 64 bytes side by
// side, which is what a scan over many wants (BenchmarkScan).
type total struct {
	n atomic.Int64
	_ [56]byte
}

// settings are a Config made whole. A ticket keeps the ones it began with.
type settings struct {
	Config
	callTimes, reservationTimes layout
}

// New returns an empty ledger.
func New(c Config) *Ledger {
	l := &Ledger{
		entries: make(map[key]weak.Pointer[Entry]),
		totals:  make(map[string]weak.Pointer[total]),
	}
	l.Configure(c)
	return l
}

// Configure changes the settings. Tickets that exist keep the times they were
// born under.
func (l *Ledger) Configure(c Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.settings.Load()
	if old != nil {
		c.Now = old.Now
	} else if c.Now == nil {
		base := time.Now()
		c.Now = func() time.Duration { return time.Since(base) }
	}
	if c.Bucket <= 0 {
		c.Bucket = DefaultBucket
	}
	if c.TTL <= 0 {
		c.TTL = DefaultTTL
	}
	if c.ReservationTTL == 0 {
		c.ReservationTTL = DefaultReservationTTL
	}
	c.ReservationTTL = min(c.ReservationTTL, c.TTL)
	s := &settings{Config: c, callTimes: newLayout(c.Bucket, c.TTL)}
	if c.ReservationTTL > 0 {
		s.reservationTimes = newLayout(c.ReservationTTL/8, c.ReservationTTL)
	}
	l.settings.Store(s)
	if old != nil && old.callTimes == s.callTimes && old.reservationTimes == s.reservationTimes {
		return // the entries' buckets fit
	}
	for _, w := range l.entries {
		if e := w.Value(); e != nil {
			e.account.rebucket(s)
		}
	}
}

// Interval returns how often Sweep wants to be called: once per bucket, of
// calls or of reservations, whichever is narrower.
func (l *Ledger) Interval() time.Duration {
	s := l.settings.Load()
	if s.reservationTimes.width == 0 {
		return s.callTimes.width
	}
	return min(s.callTimes.width, s.reservationTimes.width)
}

// Entry returns the entry for a model's calls on the endpoint with this id.
// Entries of one id share its load. target names the endpoint to people.
func (l *Ledger) Entry(model, id, target string) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := key{model, id}
	if e := l.entries[k].Value(); e != nil {
		if *e.account.target.Load() != target {
			e.account.target.Store(&target) // another port may lead to the same pod
		}
		return e
	}
	a := &account{ledger: l, total: l.total(id), model: model}
	a.target.Store(&target)
	a.rebucket(l.settings.Load())
	e := &Entry{account: a}
	l.entries[k] = weak.Make(e)
	runtime.AddCleanup(e, func(a *account) { l.forget(k, a) }, a)
	return e
}

// total returns the load of the endpoint with this id. The caller holds mu.
func (l *Ledger) total(id string) *total {
	if t := l.totals[id].Value(); t != nil {
		return t
	}
	t := new(total)
	l.totals[id] = weak.Make(t)
	runtime.AddCleanup(t, func(id string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.totals[id].Value() == nil {
			delete(l.totals, id)
		}
	}, id)
	return t
}

// forget follows the end of an entry. A ticket holds its entry, so a count
// that is left has no ticket any more and nobody will ever release it.
func (l *Ledger) forget(k key, a *account) {
	l.mu.Lock()
	if l.entries[k].Value() == nil {
		delete(l.entries, k)
	}
	l.mu.Unlock()
	if n := int(a.active.Load()) + a.reserved(); n != 0 {
		a.total.n.Add(int64(-n))
		a.pruned(n)
	}
}

// live returns the entries that something refers to.
func (l *Ledger) live() []*Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	es := make([]*Entry, 0, len(l.entries))
	for _, w := range l.entries {
		if e := w.Value(); e != nil {
			es = append(es, e)
		}
	}
	return es
}

// Sweep drops every bucket and every reservation that is past its time.
func (l *Ledger) Sweep() {
	now := l.settings.Load().Now()
	for _, e := range l.live() {
		e.account.sweep(now)
		runtime.KeepAlive(e) // forget must not settle what is being swept
	}
}

// Each calls f for every entry that an endpoint or a ticket refers to, in no
// particular order. load is that of the endpoint, for all models.
func (l *Ledger) Each(f func(model, target string, active, reserved, load int)) {
	for _, e := range l.live() {
		f(e.account.model, *e.account.target.Load(), e.Active(), e.Reserved(), e.Load())
	}
}
