// Package budget bounds retries, so that an outage is not multiplied by them.
package budget

import (
	"sync"
	"sync/atomic"
	"time"
)

// Window is the time that a Budget looks back, give or take a tenth.
const Window = 10 * time.Second

// A Budget counts attempts and retries over the last Window. The zero Budget
// is ready. It may be used from any goroutine, and takes no lock: under a race
// at the turn of a bucket a few attempts may go uncounted.
type Budget struct {
	buckets [buckets]bucket
}

// Budgets are the budgets of all models, each under its name. The zero Budgets
// is ready.
type Budgets struct{ m sync.Map }

// Of returns the budget of a model, always the same for a name.
func (b *Budgets) Of(model string) *Budget {
	if of, ok := b.m.Load(model); ok {
		return of.(*Budget)
	}
	of, _ := b.m.LoadOrStore(model, new(Budget))
	return of.(*Budget)
}

const (
	buckets = 10
	width   = Window / buckets
)

type bucket struct {
	epoch             atomic.Int64
	attempts, retries atomic.Int64
}

var started = time.Now()

// at returns the bucket of a time, emptied if it was last used a window ago.
func (b *Budget) at(epoch int64) *bucket {
	k := &b.buckets[epoch%buckets]
	if old := k.epoch.Load(); old != epoch && k.epoch.CompareAndSwap(old, epoch) {
		k.attempts.Store(0)
		k.retries.Store(0)
	}
	return k
}

// Attempt counts an attempt that is no retry.
func (b *Budget) Attempt() { b.attempt(time.Since(started)) }

func (b *Budget) attempt(now time.Duration) {
	b.at(int64(now / width)).attempts.Add(1)
}

// Retry reports whether one more retry fits in: floor of them always do, and
// share of the attempts, from 0 to 1. One that does is counted.
func (b *Budget) Retry(share float64, floor int) bool {
	return b.retry(time.Since(started), share, floor)
}

func (b *Budget) retry(now time.Duration, share float64, floor int) bool {
	epoch := int64(now / width)
	var attempts, retries int64
	for i := range b.buckets {
		k := &b.buckets[i]
		if age := epoch - k.epoch.Load(); age >= 0 && age < buckets {
			attempts += k.attempts.Load()
			retries += k.retries.Load()
		}
	}
	if float64(retries) >= max(float64(floor), share*float64(attempts)) {
		return false
	}
	b.at(epoch).retries.Add(1)
	return true
}
