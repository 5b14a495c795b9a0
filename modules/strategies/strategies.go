// Package strategies holds the gateway's own ways of picking an endpoint, each
// a Caddy module in the namespace flexinfer.strategies. They are written
// against modules/routing alone, as one by a third party would be.
//
// A strategy counts what it picks in the same step as it picks it, so that a
// burst of calls that see the same loads does not land on one endpoint: where
// loads decide, it takes an endpoint only if its load is still what it saw,
// and looks again if it is not.
package strategies

import (
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// attempts bounds how often a pick looks again after another call changed the
// load it saw. Each time some call did get its endpoint, so that only a hot
// spot of hundreds of cores would get there; then the load is not compared.
const attempts = 100

// A source of randomness yields 64 random bits at a time. A nil source is the
// runtime's own.
type source func() uint64

func (s source) uint64() uint64 {
	if s != nil {
		return s()
	}
	return rand.Uint64()
}

// below returns a random number in [0, n).
func (s source) below(n int) int {
	hi, _ := bits.Mul64(s.uint64(), uint64(n))
	return int(hi)
}

// mix spreads two numbers over 64 bits (the last step of SplitMix64).
func mix(a, b uint64) uint64 {
	x := a + b*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// turn returns whose turn it is. A repeated attempt draws a lot instead: if it
// took a turn, every other call would begin with an endpoint that is dead.
func turn(req *routing.Request, s *routing.Snapshot) uint64 {
	if len(req.Tried) > 0 {
		return source(nil).uint64()
	}
	return s.Turn()
}

// leastLoaded takes the usable endpoint with the fewest calls in flight, ties
// in turn. It returns nil if none is usable.
func leastLoaded(req *routing.Request, s *routing.Snapshot) *routing.Lease {
	n := s.Len()
	if n == 0 {
		return nil
	}
	start := int(turn(req, s) % uint64(n))
	for k := 0; k < n && !s.Usable(req, start); k++ { // as in RoundRobin
		start = int(turn(req, s) % uint64(n))
	}
	for range attempts {
		i, load := lightest(req, s, start)
		if i < 0 {
			return nil
		}
		if lease := s.TryAcquire(i, load); lease != nil {
			return lease
		}
	}
	if i, _ := lightest(req, s, start); i >= 0 {
		return s.Acquire(i)
	}
	return nil
}

// lightest returns the first usable endpoint from start on that has the
// fewest calls in flight, and their number; -1 if none is usable.
func lightest(req *routing.Request, s *routing.Snapshot, start int) (best, load int) {
	best = -1
	for k, i := 0, start; k < s.Len(); k++ {
		if s.Usable(req, i) {
			if l := s.Load(i); best < 0 || l < load {
				if best, load = i, l; l == 0 {
					break
				}
			}
		}
		if i++; i == s.Len() {
			i = 0
		}
	}
	return best, load
}

// lighterOfTwo takes the lighter of two usable endpoints drawn at random, or
// the only one. It returns nil if none is usable.
func lighterOfTwo(req *routing.Request, s *routing.Snapshot, random source) *routing.Lease {
	a := drawUsable(req, s, random, -1)
	if a < 0 {
		return nil
	}
	b := drawUsable(req, s, random, a)
	for range attempts {
		i, load := a, s.Load(a)
		if b >= 0 {
			if l := s.Load(b); l < load {
				i, load = b, l
			}
		}
		if lease := s.TryAcquire(i, load); lease != nil {
			return lease
		}
	}
	return s.Acquire(a)
}

// drawUsable returns a random usable endpoint other than except, or -1.
func drawUsable(req *routing.Request, s *routing.Snapshot, random source, except int) int {
	n := s.Len()
	for range 8 { // all but the first draw only if there are few, or a retry
		if i := random.below(n); i != except && s.Usable(req, i) {
			return i
		}
	}
	// From a random place on, the first that will do.
	start := random.below(n)
	for k := range n {
		if i := (start + k) % n; i != except && s.Usable(req, i) {
			return i
		}
	}
	return -1
}

// acquireService takes the model's service unless this call tried it.
func acquireService(req *routing.Request, s *routing.Snapshot) *routing.Lease {
	if !s.HasService() || slices.Contains(req.Tried, s.Service().ID) {
		return nil
	}
	return s.AcquireService()
}
