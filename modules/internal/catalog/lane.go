package catalog

import (
	"sync"
	"sync/atomic"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/queue"
)

// A Lane is what a model keeps through reloads: the calls that wait for it and
// the number of those under way.
type Lane struct {
	queue  *queue.Queue
	calls  atomic.Int64
	latest atomic.Pointer[Model]
}

// Lanes are the lanes of all models, by name.
type Lanes struct {
	mu     sync.Mutex
	m      map[string]*Lane
	live   *Catalog // whose models the lanes serve
	closed bool
}

// NewLanes returns what a process has one of.
func NewLanes() *Lanes { return &Lanes{m: make(map[string]*Lane)} }

// of returns a model's lane.
func (l *Lanes) of(name string) *Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.m[name]
	if lane == nil {
		lane = &Lane{queue: queue.New(name)}
		if l.closed {
			lane.queue.Close()
		}
		l.m[name] = lane
	}
	return lane
}

// Serve makes c the catalog whose models the lanes serve: calls that wait go
// on as it says.
func (l *Lanes) Serve(c *Catalog) {
	l.mu.Lock()
	l.live = c
	l.mu.Unlock()
	l.update(c, c.Table())
}

// update tells the lanes what the table t of c says, if they serve c.
func (l *Lanes) update(c *Catalog, t *Table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live != c || c.Table() != t {
		return
	}
	for name, lane := range l.m {
		m := t.byName[name]
		if m != nil && m.Lane == lane {
			if lane.latest.Swap(m) != m {
				lane.queue.Set(m.target())
			}
			continue
		}
		lane.latest.Store(nil)
		lane.queue.Set(nil)
		if m == nil {
			delete(l.m, name)
		}
	}
}

// Poke says that a call has ended, so that there may be room for another.
func (l *Lanes) Poke() {
	if l == nil || !queue.AnyWaits() {
		return
	}
	l.mu.Lock()
	lanes := make([]*Lane, 0, len(l.m))
	for _, lane := range l.m {
		if lane.queue.Len() > 0 {
			lanes = append(lanes, lane)
		}
	}
	l.mu.Unlock()
	for _, lane := range lanes {
		lane.queue.Poke()
	}
}

// Close ends all waiting: the process stops.
func (l *Lanes) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, lane := range l.m {
		lane.queue.Close()
	}
}

// target returns what the model's queue is to know of it.
func (m *Model) target() *queue.Target {
	p := m.Policy
	return &queue.Target{
		Max: p.QueueMax, Timeout: p.QueueTimeout, ColdStart: p.ColdStart, Backoff: p.Backoff,
		State: m.State, Activator: m.Activator, Metrics: m.Metrics,
	}
}
