package strategies

import (
	"fmt"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// all are the strategies with their defaults.
var all = []struct {
	name string
	new  func() routing.Strategy
}{
	{"default", func() routing.Strategy { return new(Default) }},
	{"round-robin", func() routing.Strategy { return new(RoundRobin) }},
	{"session-affinity", func() routing.Strategy { return new(SessionAffinity) }},
	{"prefix", func() routing.Strategy { return new(Prefix) }},
	{"least-loaded", func() routing.Strategy { return new(LeastLoaded) }},
	{"soft-k-choice", func() routing.Strategy { return new(SoftKChoice) }},
	{"power-of-two", func() routing.Strategy { return new(PowerOfTwo) }},
}

// benchRequests are requests with keys of their own, as calls in flight have.
func benchRequests() []*routing.Request {
	rs := make([]*routing.Request, 4096)
	for i := range rs {
		rs[i] = &routing.Request{Model: "m", Keys: routing.FixedKeys{
			Prefix:  routing.Key{Hash: mix(1, uint64(i)), Source: routing.SourceCanonical},
			Session: routing.Key{Hash: mix(2, uint64(i)), Source: routing.SourceSessionMessages},
		}}
	}
	return rs
}

// Each pick ends at once, so that the endpoints are idle.
func BenchmarkPick(b *testing.B) {
	for _, a := range all {
		for _, n := range []int{3, 1000} {
			b.Run(fmt.Sprintf("%s/%d", a.name, n), func(b *testing.B) {
				s, strategy, requests := snapshot(1, n), a.new(), benchRequests()
				strategy.Pick(requests[0], s).Lease.Release()
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					strategy.Pick(requests[i%len(requests)], s).Lease.Release()
					i++
				}
			})
		}
	}
}

func BenchmarkPickParallel(b *testing.B) {
	for _, a := range all {
		for _, n := range []int{3, 1000} {
			b.Run(fmt.Sprintf("%s/%d", a.name, n), func(b *testing.B) {
				s, strategy, requests := snapshot(1, n), a.new(), benchRequests()
				strategy.Pick(requests[0], s).Lease.Release()
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					i := 0
					for pb.Next() {
						strategy.Pick(requests[i%len(requests)], s).Lease.Release()
						i++
					}
				})
			})
		}
	}
}

// Endpoints with eight calls each: bounds have to be worked out.
func BenchmarkPickLoaded(b *testing.B) {
	for _, a := range all {
		for _, n := range []int{3, 1000} {
			b.Run(fmt.Sprintf("%s/%d", a.name, n), func(b *testing.B) {
				s, strategy, requests := snapshot(1, n), a.new(), benchRequests()
				for i := range n {
					for range 8 {
						defer s.Acquire(i).Release()
					}
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					strategy.Pick(requests[i%len(requests)], s).Lease.Release()
					i++
				}
			})
		}
	}
}

// One prefix key for everybody, split over the endpoints.
func BenchmarkPickShared(b *testing.B) {
	for _, n := range []int{8, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, strategy, requests := snapshot(1, n), new(Prefix), benchRequests()
			for i := range requests {
				k := requests[i].Keys.(routing.FixedKeys)
				k.Prefix.Hash = 7
				requests[i].Keys = k
			}
			for _, r := range requests[:400] {
				defer strategy.Pick(r, s).Lease.Release()
			}
			for i := range requests {
				k := requests[i].Keys.(routing.FixedKeys)
				k.LaterTurn = true
				requests[i].Keys = k
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				strategy.Pick(requests[i%400], s).Lease.Release()
				i++
			}
		})
	}
}
