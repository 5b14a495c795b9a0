package strategies

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// sickbay returns n endpoints whose health is known, by the clock now.
func sickbay(n int, now func() time.Duration) *routing.Snapshot {
	l, h := ledger.New(ledger.Config{}), health.NewRegistry(health.Settings{Now: now})
	es := make([]*routing.Endpoint, n)
	for i := range es {
		es[i] = routing.NewEndpoint(l, h, "m", routing.Spec{Scheme: "http", Address: fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256)})
	}
	return routing.New("m", es, nil, nil)
}

// place returns which endpoint of s a lease is of.
func place(s *routing.Snapshot, l *routing.Lease) int {
	for i := range s.Len() {
		if s.At(i) == l.Endpoint() {
			return i
		}
	}
	return -1
}

// failures are the ways in which an endpoint fails at once.
var failures = []struct {
	name   string
	report func(s *health.State, snap *routing.Snapshot)
}{
	{"500", func(s *health.State, snap *routing.Snapshot) {
		s.Failed(nil, false, func() bool { return snap.MayEject(0) })
	}},
	{"dial", func(s *health.State, _ *routing.Snapshot) { s.Failed(nil, true, nil) }},
	{"429", func(s *health.State, _ *routing.Snapshot) { s.Busy(nil, 0) }},
}

// T2, T4: an endpoint that fails fast is always idle. It draws a small share of
// the calls all the same, by whatever strategy, and has its even share again
// when it has recovered.
func TestFailsFast(t *testing.T) {
	const (
		ill    = 60 * time.Second
		well   = 120 * time.Second // by then all trials are over
		end    = 180 * time.Second
		perSec = 20
	)
	tests := []struct {
		n, bad int
		most   float64 // of the calls, for all that are bad
	}{
		{8, 1, 0.03},
		{3, 1, 0.03},
		{2, 1, 0.03},
		{4, 3, 0.10}, // more than may be ejected
	}
	for _, a := range all {
		for _, f := range failures {
			for _, tt := range tests {
				t.Run(fmt.Sprintf("%s/%s/%d of %d", a.name, f.name, tt.bad, tt.n), func(t *testing.T) {
					sim := &simulation{t: t, r: rand.New(rand.NewPCG(1, 9)), strategy: a.new()}
					sim.s = sickbay(tt.n, func() time.Duration { return sim.now })
					sick, later := 0, make([]int, tt.n)
					calls := 0
					arrive := func() {
						keys := routing.FixedKeys{
							Prefix:  routing.Key{Hash: sim.r.Uint64N(1000), Source: routing.SourceCanonical},
							Session: routing.Key{Hash: sim.r.Uint64(), Source: routing.SourceSessionMessages},
						}
						d := routing.Pick(sim.strategy, &routing.Request{Keys: keys, Model: "m"}, sim.s)
						if d.Lease == nil {
							t.Fatal("no pick")
						}
						i := place(sim.s, d.Lease)
						state := sim.s.At(i).Health()
						if i < tt.bad && sim.now < ill {
							sick++
							sim.after(time.Millisecond, func() {
								d.Lease.Release()
								f.report(state, sim.s)
							})
							return
						}
						if sim.now >= well {
							later[i]++
						}
						sim.after(sim.exp(300*time.Millisecond), func() {
							d.Lease.Release()
							state.Succeeded()
						})
					}
					for at := time.Duration(0); at < end; at += sim.exp(time.Second / perSec) {
						if at < ill {
							calls++
						}
						sim.after(at, arrive)
					}
					sim.run()
					if got := float64(sick) / float64(calls); got > tt.most {
						t.Errorf("what fails fast has %.3f of the calls, %d of %d", got, sick, calls)
					}
					total := 0
					for _, n := range later {
						total += n
					}
					for i, n := range later {
						if share := float64(n) / float64(total) * float64(tt.n); share < 0.6 || share > 1.5 {
							t.Errorf("endpoint %d: %.2f of an even share after all have recovered: %v", i, share, later)
						}
					}
				})
			}
		}
	}
}

// What is out leaves its part to all the others, not to a neighbour, and all
// being out changes nothing.
func TestEjected(t *testing.T) {
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			const n, calls = 5, 5000
			now := time.Duration(0)
			s, strategy := sickbay(n, func() time.Duration { return now }), a.new()
			spread := func(out int) {
				t.Helper()
				var counts [n]int
				for k := range calls {
					d := routing.Pick(strategy, keyed(rand.Uint64(), uint64(k)), s)
					counts[place(s, d.Lease)]++
					d.Lease.Release()
				}
				even := calls / (n - out)
				for i, c := range counts {
					if want := even; i < out && out < n && c != 0 || (i >= out || out == n) && (c < want*7/10 || c > want*14/10) {
						t.Errorf("%d out: picks %v", out, counts)
						break
					}
				}
			}
			spread(0)
			for out := 1; out < n; out++ {
				for range 3 {
					s.At(out-1).Health().Failed(nil, true, nil)
				}
				spread(out)
			}
		})
	}
}

// Health may change while a pick looks: it must not fall into a hole.
func TestEjectedMeanwhile(t *testing.T) {
	for _, a := range all {
		s, strategy := sickbay(2, nil), a.new()
		done := make(chan struct{})
		go func() {
			defer close(done)
			cfg := &health.Config{EjectAfter: 1, EjectFor: time.Microsecond, EjectForMax: time.Microsecond}
			for k := range 20_000 {
				s.At(k%2).Health().Failed(cfg, true, nil)
				s.At(k%2).Health().Busy(cfg, time.Microsecond)
			}
		}()
		for k := uint64(0); ; k++ {
			d := routing.Pick(strategy, keyed(k, k), s)
			if d.Lease == nil {
				t.Fatalf("%s: no pick", a.name)
			}
			d.Lease.Release()
			d.Lease.Endpoint().Health().Succeeded()
			select {
			case <-done:
			default:
				continue
			}
			break
		}
	}
}

// One of many is out: each pick has to look at the health of those it sees.
func BenchmarkPickEjected(b *testing.B) {
	for _, a := range all {
		for _, n := range []int{3, 1000} {
			b.Run(fmt.Sprintf("%s/%d", a.name, n), func(b *testing.B) {
				s, strategy, requests := sickbay(n, nil), a.new(), benchRequests()
				s.At(1).Health().Failed(&health.Config{EjectAfter: 1, EjectFor: time.Hour, EjectForMax: time.Hour}, true, nil)
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
