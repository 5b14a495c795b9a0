package strategies

import (
	"math"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const defaultFloor = 4

// A limit is the bound that endpoints have to respect during one pick. Loads
// are added up only when the floor does not decide: that costs a look at
// every endpoint.
type limit struct {
	req    *routing.Request
	s      *routing.Snapshot
	factor float64
	floor  int
	grace  int // calls above the bound that are let pass

	// What sum works out; 0 while it is not known.
	mean float64 // calls per endpoint
	unit float64 // calls per unit of weight
}

// limit returns the bound for a pick.
func (b *BoundedLoad) limit(req *routing.Request, s *routing.Snapshot, defaultFactor float64) limit {
	l := limit{req: req, s: s, factor: defaultFactor, floor: b.LoadFloor}
	if b.LoadFactor != nil {
		l.factor = *b.LoadFactor
	}
	if l.floor == 0 {
		l.floor = defaultFloor
	}
	return l
}

// sum works out the mean, which counts the call to be placed.
func (l *limit) sum() {
	if l.mean == 0 {
		total, n := l.s.Total(l.req)
		l.mean = float64(total+1) / float64(max(1, n))
		l.unit = float64(total+1) / float64(max(1, l.s.TotalWeight(l.req)))
	}
}

// forget is for when the loads have changed.
func (l *limit) forget() { l.mean = 0 }

// admits reports whether endpoint i may take the call, given its load.
func (l *limit) admits(i, load int) bool {
	load -= l.grace
	if l.factor == 0 || load < l.floor {
		return true
	}
	l.sum()
	return load+1 <= ceil(l.factor*l.share(i))
}

// share returns the load that endpoint i has when all have what is due to
// their weight.
func (l *limit) share(i int) float64 { return l.unit * float64(l.s.At(i).Weight) }

// few reports whether a key has too few calls in flight to be worth a split:
// no more than the floor, or a quarter of an endpoint's load.
func (l *limit) few(calls int) bool {
	if calls <= l.floor {
		return true
	}
	l.sum()
	return float64(calls) <= l.mean/4
}

// take takes endpoint i unless that would exceed its bound.
func (l *limit) take(i int) *routing.Lease {
	for range attempts {
		load := l.s.Load(i)
		if !l.admits(i, load) {
			return nil
		}
		if lease := l.s.TryAcquire(i, load); lease != nil {
			return lease
		}
		l.forget()
	}
	return nil
}

// ring takes the first endpoint on the ring from the hash on that has room.
// reason is empty if that is the owner of the hash.
func (l *limit) ring(hash uint64) (lease *routing.Lease, reason string) {
	owner := l.s.Owner(hash)
	if l.s.Usable(l.req, owner) {
		if lease := l.take(owner); lease != nil {
			return lease, ""
		}
	}
	walk := l.s.Successors(hash)
	for i, ok := walk.Next(); ok; i, ok = walk.Next() {
		if i == owner || !l.s.Usable(l.req, i) {
			continue
		}
		if lease := l.take(i); lease != nil {
			return lease, "bound"
		}
	}
	// With a factor of 1 or more some endpoint is below its bound whenever
	// one looks at all of them at once. Calls that come and go meanwhile
	// can hide it.
	return leastLoaded(l.req, l.s), "bound"
}

// ceil rounds up what is above a whole number by more than an error of
// rounding.
func ceil(f float64) int { return int(math.Ceil(f - 1e-9)) }
