package ledger

import (
	"sync/atomic"
	"time"
)

// An Entry counts one model's calls on one endpoint. Holding it keeps the
// counts.
type Entry struct {
	account *account
}

// An account is what an Entry counts. It is apart from the Entry so that it
// can be settled when the Entry is gone. What a call touches is in its first
// cache line, which it shares with no other account.
type account struct {
	total        *total
	buckets      atomic.Pointer[buckets]
	active       atomic.Int64
	reservations atomic.Uint64
	expired      atomic.Uint64

	target atomic.Pointer[string]
	model  string
	ledger *Ledger
	_      [56]byte
}

// buckets are an account's wheels under some settings. They fill a cache line.
type buckets struct {
	*settings
	calls, reservations wheel

	// older are the buckets under the settings before, while any ticket is
	// in them.
	older atomic.Pointer[buckets]
}

// Load returns the calls on the endpoint, of all models, reserved or active.
func (e *Entry) Load() int { return int(e.account.total.n.Load()) }

// Counter returns the counter that Load reads. Only the ledger changes it.
func (e *Entry) Counter() *atomic.Int64 { return &e.account.total.n }

// Active returns the model's active calls on the endpoint.
func (e *Entry) Active() int { return int(e.account.active.Load()) }

// Reserved returns the model's calls that picked the endpoint and did not
// dial it yet.
func (e *Entry) Reserved() int { return e.account.reserved() }

// Reservations returns how many tickets were ever taken on the entry.
func (e *Entry) Reservations() uint64 { return e.account.reservations.Load() }

// Expired returns how many of them were not activated in time.
func (e *Entry) Expired() uint64 { return e.account.expired.Load() }

// reserved adds up the reservations' buckets, which are few.
func (a *account) reserved() (n int) {
	for b := a.buckets.Load(); b != nil; b = b.older.Load() {
		n += b.reservations.sum()
	}
	return n
}

// rebucket begins buckets under other settings.
func (a *account) rebucket(s *settings) {
	b := &buckets{settings: s, calls: newWheel(s.callTimes), reservations: newWheel(s.reservationTimes)}
	b.older.Store(a.buckets.Load())
	a.buckets.Store(b)
}

// sweep drops what is past its time, and the buckets of older settings once
// they are empty. A ticket that is put into those at that very moment still
// counts and is released as any other; only the safety net misses it.
func (a *account) sweep(now time.Duration) {
	b := a.buckets.Load()
	a.sweepBuckets(b, now)
	for o := b.older.Load(); o != nil; o = b.older.Load() {
		a.sweepBuckets(o, now)
		if o.calls.sum()+o.reservations.sum() == 0 {
			b.older.CompareAndSwap(o, o.older.Load())
		} else {
			b = o
		}
	}
}

func (a *account) sweepBuckets(b *buckets, now time.Duration) {
	a.dropCalls(b.calls.sweep(b.callTimes, now))
	a.dropReservations(b.reservations.sweep(b.reservationTimes, now))
}

// dropCalls stops counting n active calls.
func (a *account) dropCalls(n int) {
	if n != 0 {
		a.active.Add(int64(-n))
		a.total.n.Add(int64(-n))
		a.pruned(n)
	}
}

// dropReservations stops counting n reservations.
func (a *account) dropReservations(n int) {
	if n != 0 {
		a.total.n.Add(int64(-n))
		a.expired.Add(uint64(n))
		if f := a.ledger.settings.Load().OnExpire; f != nil {
			f(a.model, n)
		}
	}
}

func (a *account) pruned(n int) {
	if f := a.ledger.settings.Load().OnPrune; f != nil {
		f(a.model, *a.target.Load(), n)
	}
}
