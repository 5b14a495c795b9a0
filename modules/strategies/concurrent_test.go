package strategies

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// L3: 40 calls at once on 4 idle endpoints are 10 ± 1 each, every round.
func TestBurst(t *testing.T) {
	for _, tt := range []struct {
		name     string
		strategy routing.Strategy
		slack    int
	}{
		{"least-loaded", &LeastLoaded{}, 1},
		{"soft-k-choice of 1", &SoftKChoice{K: 1}, 1},
		{"soft-k-choice", &SoftKChoice{}, 3},
		{"round-robin", &RoundRobin{}, 1},
		{"power-of-two", &PowerOfTwo{}, 5},
		{"prefix without key", &Prefix{}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture("", even(4))
			for range 50 {
				leases := burst(tt.strategy, f.Snapshot, 40, func(int) *routing.Request { return request() })
				for i := range 4 {
					if n := f.Load(i); n < 10-tt.slack || n > 10+tt.slack {
						t.Errorf("load %d, want 10 ± %d", n, tt.slack)
					}
				}
				release(t, f.Snapshot, leases)
			}
		})
	}
}

// burst makes so many picks at the same moment.
func burst(s routing.Strategy, snap *routing.Snapshot, n int, req func(i int) *routing.Request) []*routing.Lease {
	leases := make([]*routing.Lease, n)
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i := range leases {
		ready.Add(1)
		done.Go(func() {
			r := req(i)
			ready.Done()
			<-start
			leases[i] = s.Pick(r, snap).Lease
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	return leases
}

func release(t *testing.T, snap *routing.Snapshot, leases []*routing.Lease) {
	t.Helper()
	var wg sync.WaitGroup
	for _, l := range leases {
		wg.Go(func() {
			l.Activate()
			l.Release()
		})
	}
	wg.Wait()
	for i := range snap.Len() {
		if n := snap.Load(i); n != 0 {
			t.Errorf("endpoint %d is left with load %d", i, n)
		}
	}
}

// A burst of a shared key, of a session, and of keys of their own: no endpoint
// is above its bound when all have landed.
func TestBoundedBurst(t *testing.T) {
	for name, req := range map[string]func(i int) *routing.Request{
		"shared":  func(i int) *routing.Request { return keyed(7, uint64(i+1)) },
		"session": func(int) *routing.Request { return keyed(0, 7) },
		"rare":    func(i int) *routing.Request { return keyed(uint64(i/3+1), uint64(i+1)) },
	} {
		t.Run(name, func(t *testing.T) {
			p, f := new(Prefix), newFixture("", even(8))
			for range 20 {
				leases := burst(p, f.Snapshot, 200, req)
				for i := range 8 {
					// 200/8 × 1.25 = 31.25. Calls that overtake each
					// other see a mean that is a few calls old.
					if n := f.Load(i); n > 33 {
						t.Errorf("load %d above the bound of 32", n)
					}
				}
				release(t, f.Snapshot, leases)
				if h := p.heatOf(7); h != nil && h.inflight.Load() != 0 {
					t.Errorf("%d in flight", h.inflight.Load())
				}
			}
		})
	}
}

// Everything at once, for the race detector: strategies, endpoints that come
// and go, and leases that end in any way. Nothing is left in the end.
func TestConcurrent(t *testing.T) {
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			s, f := a.new(), newFixture("", even(6))
			var mu sync.RWMutex
			snap := f.Snapshot
			var wg sync.WaitGroup
			for g := range uint64(8) {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(g, 1))
					var open []*routing.Lease
					for range 2000 {
						mu.RLock()
						now := snap
						mu.RUnlock()
						req := keyed(r.Uint64N(5), r.Uint64N(40))
						if r.IntN(2) == 0 {
							req = later(r.Uint64N(5), r.Uint64N(40))
						}
						if r.IntN(10) == 0 {
							req.Tried = []string{now.At(r.IntN(now.Len())).ID}
						}
						if lease := s.Pick(req, now).Lease; lease != nil {
							open = append(open, lease)
							if r.IntN(3) > 0 {
								lease.Activate()
							}
						}
						if len(open) > 20 || r.IntN(3) == 0 && len(open) > 0 {
							i := r.IntN(len(open))
							open[i].Release()
							open[i] = open[len(open)-1]
							open = open[:len(open)-1]
						}
						if r.IntN(100) == 0 {
							var es []*routing.Endpoint
							for i := range 6 {
								if i == 0 || r.IntN(4) > 0 {
									es = append(es, f.At(i))
								}
							}
							mu.Lock()
							snap = routing.New("m", es, nil, snap)
							mu.Unlock()
						}
					}
					for _, l := range open {
						l.Release()
					}
				})
			}
			wg.Wait()
			for i := range 6 {
				if n := f.Load(i); n != 0 {
					t.Errorf("endpoint %d is left with load %d", i, n)
				}
			}
			if p, ok := s.(*Prefix); ok {
				for i := range p.state().heats {
					for j := range p.state().heats[i] {
						if n := p.state().heats[i][j].inflight.Load(); n != 0 {
							t.Errorf("a key is left with %d calls in flight", n)
						}
					}
				}
			}
			runtime.KeepAlive(f)
		})
	}
}

// A pick allocates its lease and nothing else.
func TestAllocs(t *testing.T) {
	for _, a := range all {
		for _, n := range []int{3, 300} {
			s, snap, req := a.new(), snapshot(1, n), keyed(7, 8)
			for i := range n {
				for range 8 {
					snap.Acquire(i)
				}
			}
			s.Pick(req, snap).Lease.Release()
			if got := testing.AllocsPerRun(200, func() { s.Pick(req, snap).Lease.Release() }); got > 1 {
				t.Errorf("%s over %d endpoints: %v allocations", a.name, n, got)
			}
		}
	}
}
