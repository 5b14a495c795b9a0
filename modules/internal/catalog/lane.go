package catalog

import (
	"context"
	"errors"
	"slices"
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
	movers map[*Mover]struct{}
	closed bool
}

// A Mover is a call for a label that waits for one of the models that claim it.
type Mover struct {
	label, model string
	move         context.CancelCauseFunc
}

// ErrMoved is the cause of a wait's end when another of the label's models
// serves.
var ErrMoved = errors.New("another model of the label serves")

// Await returns a context that ends with ErrMoved as soon as another model than
// this one serves the label. The caller calls leave in the end.
func (l *Lanes) Await(ctx context.Context, label, model string) (_ context.Context, leave func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	v := &Mover{label, model, cancel}
	l.mu.Lock()
	l.movers[v] = struct{}{}
	if l.live != nil {
		v.look(l.live.Table()) // it may have happened just now
	}
	l.mu.Unlock()
	return ctx, func() {
		l.mu.Lock()
		delete(l.movers, v)
		l.mu.Unlock()
		cancel(nil)
	}
}

// look ends the wait if t has a model that serves.
func (v *Mover) look(t *Table) {
	if g := t.groups[v.label]; g != nil {
		if ready, _ := g.ready(); len(ready) > 0 && !slices.ContainsFunc(ready, func(m *Model) bool { return m.Name == v.model }) {
			v.move(ErrMoved)
		}
	}
}

// Group returns what claims a label in the newest configuration, nil if nothing
// does.
func (l *Lanes) Group(label string) *Group {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live == nil {
		return nil
	}
	return l.live.Table().groups[label]
}

// Refresh has the models of the newest configuration looked at anew.
func (l *Lanes) Refresh() {
	l.mu.Lock()
	live := l.live
	l.mu.Unlock()
	if live != nil {
		live.Refresh()
	}
}

// NewLanes returns what a process has one of.
func NewLanes() *Lanes {
	return &Lanes{m: make(map[string]*Lane), movers: make(map[*Mover]struct{})}
}

// of returns a model's lane.
func (l *Lanes) of(name string) *Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.m[name]
	if lane == nil {
		lane = &Lane{queue: queue.NewQueue(name)}
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

// update tells the lanes what the table t of c says, if they serve c. Lanes that
// no catalog has served yet belong to one that is still being set up.
func (l *Lanes) update(c *Catalog, t *Table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live != c || c.Table() != t {
		return
	}
	for _, m := range t.models {
		if other := l.m[m.Name]; other != nil && other != m.Lane {
			other.end()
		}
		l.m[m.Name] = m.Lane
		if m.Lane.latest.Swap(m) != m {
			m.Lane.queue.Set(m.target())
		}
	}
	for name, lane := range l.m {
		if t.byName[name] == nil && lane.latest.Load() != nil {
			lane.end()
			delete(l.m, name)
		}
	}
	for v := range l.movers {
		v.look(t)
	}
}

// end says that the lane's model is not there any more.
func (l *Lane) end() {
	l.latest.Store(nil)
	l.queue.Set(nil)
}

// drop forgets the lanes of a catalog that never served.
func (l *Lanes) drop(t *Table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range t.models {
		if m.Lane != nil && m.Lane.latest.Load() == nil && l.m[m.Name] == m.Lane {
			delete(l.m, m.Name)
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
		State: m.State, Activator: m.Activator, Metrics: m.Metrics, Report: m.report,
	}
}
