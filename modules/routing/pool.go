package routing

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/ring"
)

// A pool is what follows from the IDs and weights of a snapshot's endpoints
// alone. Snapshots that agree in those share it.
type pool struct {
	nodes  []ring.Node // the endpoints, in order
	weight int         // of all of them

	equal bool // all weights are

	mu    sync.Mutex // held to build what follows
	ring  atomic.Pointer[ring.Ring]
	prev  *ring.Ring // the ring of the pool before, to build from
	tags  atomic.Pointer[map[uint32]int32]
	turns atomic.Pointer[[]int32] // see inTurn
}

// newPool returns the pool of endpoints that takes the place of prev, which
// may be nil. A ring is built when it is first asked for: most models need
// none. But if the pool before needed one so will this, and no request should
// wait for it.
func newPool(endpoints []*Endpoint, prev *pool) *pool {
	p := &pool{nodes: make([]ring.Node, len(endpoints))}
	for i, e := range endpoints {
		p.nodes[i] = ring.Node{ID: e.ID, Weight: e.Weight}
	}
	if prev != nil && slices.Equal(p.nodes, prev.nodes) {
		return prev
	}
	p.equal = true
	for _, n := range p.nodes {
		p.weight += n.Weight
		p.equal = p.equal && n.Weight == p.nodes[0].Weight
	}
	if prev == nil {
		return p
	}
	if r := prev.ring.Load(); r != nil {
		p.prev = r
		p.hashRing()
	} else {
		prev.mu.Lock()
		p.prev = prev.prev
		prev.mu.Unlock()
	}
	return p
}

func (p *pool) hashRing() *ring.Ring {
	if r := p.ring.Load(); r != nil {
		return r
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.ring.Load(); r != nil {
		return r
	}
	r := ring.New(p.nodes, p.prev)
	p.prev = nil
	p.ring.Store(r)
	return r
}

// tagged returns the endpoint with a tag, or -1.
func (p *pool) tagged(t uint32) int {
	tags := p.tags.Load()
	if tags == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		m := make(map[uint32]int32, len(p.nodes))
		for i, n := range p.nodes {
			m[tag(n.ID)] = int32(i)
		}
		tags = &m
		p.tags.Store(tags)
	}
	if i, ok := (*tags)[t]; ok {
		return int(i)
	}
	return -1
}

// inTurn returns the endpoint whose turn it is. In as many turns as the
// weights, divided by their greatest common divisor, add up to, each endpoint
// comes up as often as its weight says, spread over them: 2 and 1 make A B A.
func (p *pool) inTurn(turn uint64) int {
	if p.equal {
		return int(turn % uint64(len(p.nodes)))
	}
	turns := p.turns.Load()
	if turns == nil {
		turns = p.schedule()
	}
	return int((*turns)[turn%uint64(len(*turns))])
}

// schedule makes the table of turns. If there are w turns of an endpoint among
// all, its k-th is due in the middle of the k-th of w equal parts of them.
func (p *pool) schedule() *[]int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	divisor := 0
	for _, n := range p.nodes {
		divisor = gcd(n.Weight, divisor)
	}
	type due struct {
		at   float64
		node int32
	}
	dues := make([]due, 0, p.weight/divisor)
	for i, n := range p.nodes {
		w := n.Weight / divisor
		for k := range w {
			dues = append(dues, due{(float64(k) + 0.5) / float64(w), int32(i)})
		}
	}
	slices.SortStableFunc(dues, func(a, b due) int { return cmp.Compare(a.at, b.at) })
	turns := make([]int32, len(dues))
	for t, d := range dues {
		turns[t] = d.node
	}
	p.turns.Store(&turns)
	return &turns
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
