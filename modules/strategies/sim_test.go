package strategies

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A simulation runs calls against the real strategy over a real snapshot, in
// virtual time.
type simulation struct {
	t        *testing.T
	s        *routing.Snapshot
	strategy routing.Strategy
	r        *rand.Rand
	now      time.Duration
	events   events
	check    func(keys routing.FixedKeys, d routing.Decision, before int) // of each pick

	index map[string]int
	turns []int // by endpoint
}

type event struct {
	at time.Duration
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func newSimulation(t *testing.T, seed uint64, n int) (*simulation, *Prefix) {
	t.Helper()
	sim := &simulation{t: t, r: rand.New(rand.NewPCG(seed, 9)), s: snapshot(seed, n), index: map[string]int{}, turns: make([]int, n)}
	for i := range n {
		sim.index[sim.s.At(i).ID] = i
	}
	p := new(Prefix)
	tb := newTables()
	tb.now = func() time.Duration { return sim.now }
	p.tables.Store(tb)
	sim.strategy = p
	return sim, p
}

// snapshot returns n endpoints with IDs of their own.
func snapshot(seed uint64, n int) *routing.Snapshot {
	specs := make([]routing.Spec, n)
	for i := range specs {
		specs[i] = routing.Spec{Scheme: "http", Address: fmt.Sprintf("10.%d.%d.%d:8000", seed%256, i/256, i%256)}
	}
	return routing.NewSnapshot("m", specs...)
}

func (sim *simulation) after(d time.Duration, do func()) {
	heap.Push(&sim.events, event{sim.now + d, do})
}

func (sim *simulation) run() {
	for len(sim.events) > 0 {
		e := heap.Pop(&sim.events).(event)
		sim.now = e.at
		e.do()
	}
	for i := range sim.s.Len() {
		if sim.s.Load(i) != 0 {
			sim.t.Errorf("endpoint %d is left with load %d", i, sim.s.Load(i))
		}
	}
}

// exp returns a random time with a mean.
func (sim *simulation) exp(mean time.Duration) time.Duration {
	return time.Duration(sim.r.ExpFloat64() * float64(mean))
}

// call makes a call, runs done when it has ended, and returns its endpoint. It
// takes longer on an endpoint with more calls.
func (sim *simulation) call(keys routing.FixedKeys, done func()) int {
	total := 0
	for i := range sim.s.Len() {
		total += sim.s.Load(i)
	}
	d := sim.strategy.Pick(&routing.Request{Keys: keys, Model: "m"}, sim.s)
	if d.Lease == nil {
		sim.t.Fatal("no pick")
	}
	i := sim.index[d.Lease.Endpoint().ID]
	sim.turns[i]++
	if sim.check != nil {
		sim.check(keys, d, total)
	}
	d.Lease.Activate()
	work := time.Second/4 + sim.exp(2*time.Second)
	work += time.Duration(float64(work) * float64(sim.s.Load(i)) / 32)
	sim.after(work, func() {
		d.Lease.Release()
		done()
	})
	return i
}
