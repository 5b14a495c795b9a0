package ledger

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A plain ticket is what a Ticket should be, written down naively.
type plain struct {
	Ticket
	entry   int
	phase   int
	bucket  time.Duration // number of the bucket of calls or of reservations
	counted bool
}

// Random interleavings of everything that can happen to tickets agree with
// the naive model at every step, and end at exactly 0.
func TestRandom(t *testing.T) {
	const (
		bucket, ttl  = time.Second, 10 * time.Second
		rbucket, res = 125 * time.Millisecond, time.Second
	)
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		l, clk, pruned := fixture(Config{Bucket: bucket, TTL: ttl, ReservationTTL: res})
		entries := []*Entry{l.Entry("a", "x", "x"), l.Entry("b", "x", "x"), l.Entry("a", "y", "y")}
		var tickets []*plain
		leaks := 0
		release := func(p *plain) {
			if first := p.phase != released; p.Release() != first {
				t.Fatal("Release is not once")
			}
			p.phase = released
		}
		for range 400 {
			now := clk.Now()
			var p *plain
			if len(tickets) > 0 {
				p = tickets[r.IntN(len(tickets))]
			}
			switch op := r.IntN(10); {
			case op < 3 || p == nil:
				p = &plain{entry: r.IntN(len(entries)), phase: reserved, bucket: now / rbucket, counted: true}
				if e := entries[p.entry]; r.IntN(2) == 0 {
					e.Reserve(&p.Ticket)
				} else if !e.TryReserve(&p.Ticket, e.Counter().Load()) {
					t.Fatal("refused what it had seen")
				}
				tickets = append(tickets, p)
			case op < 5:
				p.Activate()
				if p.phase == reserved {
					p.phase = active
					// In time, it counts from its reservation on.
					if p.bucket = p.born / bucket; !p.counted {
						p.bucket = now / bucket
					}
					p.counted = true
				}
			case op == 5:
				p.Renew()
				if p.phase == active {
					p.bucket, p.counted = now/bucket, true
				}
			case op < 8:
				release(p)
			default:
				clk.advance(time.Duration(r.ExpFloat64() * float64(2*time.Second)))
				now = clk.Now()
			}
			for _, p := range tickets {
				switch {
				case p.phase == reserved && now/rbucket-p.bucket > res/rbucket:
					p.counted = false
				case p.phase == active && now/bucket-p.bucket > ttl/bucket && p.counted:
					p.counted = false
					leaks++
				}
			}
			l.Sweep()
			var act, rsv [3]int
			for _, p := range tickets {
				switch {
				case p.counted && p.phase == reserved:
					rsv[p.entry]++
				case p.counted && p.phase == active:
					act[p.entry]++
				}
			}
			x := act[0] + rsv[0] + act[1] + rsv[1]
			check(t, entries[0], act[0], rsv[0], x)
			check(t, entries[1], act[1], rsv[1], x)
			check(t, entries[2], act[2], rsv[2], act[2]+rsv[2])
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		for _, p := range tickets {
			release(p)
		}
		for _, e := range entries {
			check(t, e, 0, 0, 0)
		}
		if got := total3(pruned); got != leaks {
			t.Fatalf("seed %d: told of %d leaks, want %d", seed, got, leaks)
		}
	}
}

func total3(p *prunings) (n int) {
	for _, s := range p.said {
		n += int(s[len(s)-1] - '0') // fewer than ten at a time
	}
	return n
}

// The same from many goroutines that share tickets, with the clock running
// away beneath them: no count is ever negative, and all end at 0.
func TestConcurrent(t *testing.T) {
	for _, res := range []time.Duration{2 * time.Millisecond, -1} {
		l, clk, _ := fixture(Config{Bucket: time.Millisecond, TTL: 5 * time.Millisecond, ReservationTTL: res})
		entries := []*Entry{l.Entry("a", "x", "x"), l.Entry("b", "x", "x"), l.Entry("a", "y", "y")}
		const workers, rounds = 8, 3000
		var shared [16]atomic.Pointer[Ticket]
		var released atomic.Int64
		var wg sync.WaitGroup
		for g := range uint64(workers) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(g, uint64(res)))
				for range rounds {
					slot := &shared[r.IntN(len(shared))]
					tk := slot.Load()
					switch op := r.IntN(12); {
					case op < 3 || tk == nil:
						e, fresh := entries[r.IntN(3)], new(Ticket)
						if op == 0 {
							if !e.TryReserve(fresh, e.Counter().Load()) {
								continue
							}
						} else {
							e.Reserve(fresh)
						}
						if tk = slot.Swap(fresh); tk != nil {
							if tk.Release() {
								released.Add(1)
							}
						}
					case op < 6:
						tk.Activate()
					case op < 8:
						tk.Renew()
					case op < 9:
						if tk.Release() {
							released.Add(1)
						}
					case op < 10:
						l.Sweep()
					case op < 11 && r.IntN(50) == 0:
						l.Configure(Config{Bucket: time.Millisecond, TTL: time.Duration(5+r.IntN(3)) * time.Millisecond, ReservationTTL: res})
					default:
						clk.advance(time.Duration(r.IntN(int(time.Millisecond))))
					}
					for _, e := range entries {
						if a, r, l := e.Active(), e.Reserved(), e.Load(); a < 0 || r < 0 || l < 0 {
							t.Errorf("negative count: %d active, %d reserved, load %d", a, r, l)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		for i := range shared {
			if tk := shared[i].Load(); tk != nil && tk.Release() {
				released.Add(1)
			}
		}
		made := uint64(0)
		for _, e := range entries {
			check(t, e, 0, 0, 0)
			made += e.Reservations()
		}
		if made != uint64(released.Load()) {
			t.Errorf("%d tickets, %d first releases", made, released.Load())
		}
	}
}

// L3: a burst that picks the least loaded of four and counts in the same step
// spreads evenly, every round.
func TestBurst(t *testing.T) {
	l, _, _ := fixture(Config{})
	var entries []*Entry
	for _, id := range []string{"a", "b", "c", "d"} {
		entries = append(entries, l.Entry("m", id, id))
	}
	for range 50 {
		tickets := make([]Ticket, 40)
		var ready, done sync.WaitGroup
		start := make(chan struct{})
		for i := range tickets {
			ready.Add(1)
			done.Go(func() {
				ready.Done()
				<-start
				for {
					e := entries[0]
					least := e.Counter().Load()
					for _, o := range entries[1:] {
						if n := o.Counter().Load(); n < least {
							e, least = o, n
						}
					}
					if e.TryReserve(&tickets[i], least) {
						return
					}
				}
			})
		}
		ready.Wait()
		close(start)
		done.Wait()
		for _, e := range entries {
			if n := e.Load(); n < 9 || n > 11 {
				t.Errorf("load %d, want 10 ± 1", n)
			}
		}
		for i := range tickets {
			tickets[i].Activate()
			tickets[i].Release()
		}
	}
	for _, e := range entries {
		check(t, e, 0, 0, 0)
	}
}
