package health

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// Settings are what a [Registry] is made with. All may be left out.
type Settings struct {
	// Now is a monotonic clock; the time since NewRegistry unless set.
	Now func() time.Duration

	// OnChange is told of each endpoint that is ejected or returns, and why
	// in a word. It is quick, and asks nothing of the endpoint's state.
	OnChange func(id string, healthy bool, reason string)
}

// A Registry keeps the states of a set of endpoints. Create one with
// [NewRegistry].
type Registry struct {
	Settings

	mu       sync.Mutex // guards states
	states   map[string]weak.Pointer[State]
	ejecting sync.Mutex // one ejection at a time, so that a share is kept

	_        [64]byte
	troubled atomic.Int64 // states that are not plainly fit; read by every pick
	_        [56]byte
}

// NewRegistry returns an empty registry.
func NewRegistry(set Settings) *Registry {
	if set.Now == nil {
		base := time.Now()
		set.Now = func() time.Duration { return time.Since(base) }
	}
	return &Registry{Settings: set, states: make(map[string]weak.Pointer[State])}
}

// A mark says whether a state counts as troubled. It is apart from the state
// so that the count can be settled when the state is gone.
type mark struct {
	registry *Registry
	id       string
	on       atomic.Bool
}

func (m *mark) set(on bool) {
	if m.on.Swap(on) != on {
		if on {
			m.registry.troubled.Add(1)
		} else {
			m.registry.troubled.Add(-1)
		}
	}
}

// State returns the state of the endpoint with this id. A nil registry has
// none: what a nil State stands for is always fit.
func (r *Registry) State(id string) *State {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.states[id].Value(); s != nil {
		return s
	}
	s := &State{mark: &mark{registry: r, id: id}}
	r.states[id] = weak.Make(s)
	runtime.AddCleanup(s, (*mark).gone, s.mark)
	return s
}

// gone follows the end of a state.
func (m *mark) gone() {
	m.set(false)
	m.registry.mu.Lock()
	defer m.registry.mu.Unlock()
	if m.registry.states[m.id].Value() == nil {
		delete(m.registry.states, m.id)
	}
}

// Sweep takes note of what has passed with time, which makes reading quick
// again. To be called every few seconds.
func (r *Registry) Sweep() {
	if r.troubled.Load() == 0 {
		return
	}
	r.mu.Lock()
	states := make([]*State, 0, len(r.states))
	for _, w := range r.states {
		if s := w.Value(); s != nil {
			states = append(states, s)
		}
	}
	r.mu.Unlock()
	for _, s := range states {
		if s.view.Load() != nil {
			s.mu.Lock()
			s.publish(r.Now())
			s.mu.Unlock()
		}
	}
}

// jitter returns d less up to a tenth, at random.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/10+1))
}
