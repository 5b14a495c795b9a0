package ledger

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A Ticket is one call's count on an entry. The zero Ticket counts nothing
// until it is handed to [Entry.Reserve] or [Entry.TryReserve], once. Its
// methods may then be called from any goroutine, in any order, any number of
// times. A Ticket must not be copied.
type Ticket struct {
	entry   *Entry // nil until the ticket is taken
	buckets *buckets
	born    time.Duration
	epoch   uint64        // of the reservation
	state   atomic.Uint64 // epoch of the call<<phaseBits | phase
}

// The phases of a ticket. Only a ticket's own methods change its phase:
//
//	reserved → active → released
//
// A ticket is moving while one goroutine takes it from one bucket to another.
// Release does not wait for that: it leaves the rest to whoever is moving.
const (
	reserved = iota // counts in reservations, if those count and it is in time
	active          // counts in calls, unless the bucket was dropped
	moving
	released

	phaseBits = 2
	phaseMask = 1<<phaseBits - 1
)

// Reserve counts one more call on the endpoint, whatever its load.
func (e *Entry) Reserve(t *Ticket) {
	b := e.account.buckets.Load()
	if b.ReservationTTL > 0 {
		e.account.total.n.Add(1)
	}
	e.reserve(t, b)
}

// TryReserve counts one more call on the endpoint if its load is still seen,
// and reports whether it was: the pick and the count are one step. If
// reservations do not count, it has nothing to compare and always succeeds.
func (e *Entry) TryReserve(t *Ticket, seen int64) bool {
	b := e.account.buckets.Load()
	if b.ReservationTTL > 0 && !e.account.total.n.CompareAndSwap(seen, seen+1) {
		return false
	}
	e.reserve(t, b)
	return true
}

// reserve books a reservation that the total holds already. The bucket comes
// last when a count begins and first when it ends, so that what a bucket
// drops is always there to be subtracted.
func (e *Entry) reserve(t *Ticket, b *buckets) {
	t.entry, t.buckets, t.born = e, b, b.Now()
	e.account.reservations.Add(1)
	if b.ReservationTTL > 0 {
		var dropped int
		t.epoch, dropped = b.enter(b.reservations, &b.reservationTimes, t.born)
		e.account.dropReservations(dropped)
	}
}

// enter logs a ticket in the bucket of a time, or of the present if that
// bucket is gone.
func (b *buckets) enter(w wheel, times *layout, at time.Duration) (epoch uint64, dropped int) {
	for {
		epoch = times.epoch(at)
		if dropped, ok := w.add(epoch); ok {
			return epoch, dropped
		}
		at = b.Now()
	}
}

// Activate turns a reservation into a call under way. The load stays as it
// is, unless the reservation had expired: then the call counts again.
func (t *Ticket) Activate() {
	if t.entry == nil || !t.state.CompareAndSwap(reserved, moving) {
		return
	}
	if t.unreserve() {
		t.entry.account.active.Add(1)
		t.arrive(t.born)
	} else {
		t.recount()
		t.arrive(t.buckets.Now())
	}
	runtime.KeepAlive(t)
}

// Renew logs a call that is still under way in the present bucket, so that
// it outlives the TTL. It costs a look at the clock if it is there already.
func (t *Ticket) Renew() {
	s := t.state.Load()
	if s&phaseMask != active {
		return
	}
	now := t.buckets.Now()
	if t.buckets.callTimes.epoch(now) == s>>phaseBits || !t.state.CompareAndSwap(s, moving) {
		return
	}
	if !t.buckets.calls.remove(s >> phaseBits) {
		t.recount() // its bucket had been dropped
	}
	t.arrive(now)
	runtime.KeepAlive(t)
}

// Release ends the call. Only the first Release has an effect; it reports
// whether this was it.
func (t *Ticket) Release() bool {
	s := t.state.Swap(released)
	switch s & phaseMask {
	case reserved:
		if t.entry != nil && t.unreserve() {
			t.entry.account.total.n.Add(-1)
		}
	case active:
		t.leave(s >> phaseBits)
	case released:
		return false
	}
	runtime.KeepAlive(t) // while it counts down, its entry is not settled
	return true
}

// unreserve takes a reservation out of its bucket. It reports false if it does
// not count: it had expired, or none do.
func (t *Ticket) unreserve() bool {
	return t.buckets.ReservationTTL > 0 && t.buckets.reservations.remove(t.epoch)
}

// recount counts a call as active that does not count at all.
func (t *Ticket) recount() {
	t.entry.account.total.n.Add(1)
	t.entry.account.active.Add(1)
}

// arrive ends a move: it logs a ticket that counts as active in the bucket of
// a time.
func (t *Ticket) arrive(at time.Duration) {
	epoch, dropped := t.buckets.enter(t.buckets.calls, &t.buckets.callTimes, at)
	t.entry.account.dropCalls(dropped)
	if !t.state.CompareAndSwap(moving, epoch<<phaseBits|active) {
		t.leave(epoch) // released while moving
	}
}

func (t *Ticket) leave(epoch uint64) {
	if t.buckets.calls.remove(epoch) {
		t.entry.account.active.Add(-1)
		t.entry.account.total.n.Add(-1)
	}
}
