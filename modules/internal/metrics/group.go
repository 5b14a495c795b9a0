package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// How a call for a label found its model.
const (
	GroupRoundRobin  = "default_rr"
	GroupLeastLoaded = "least_loaded"
	GroupSingle      = "fallback_single"   // only one of the models serves
	GroupNoReady     = "fallback_no_ready" // none does
	GroupNoKey       = "fallback_no_key"   // in turn, for want of a key
	GroupPrefix      = "hashed_prefix"
	GroupSession     = "hashed_session"
	GroupPriority    = "priority_pick" // only one has the highest priority
)

// A Group records which models the calls for a label go to.
type Group struct {
	label, strategy string
	refs            int // under groups.mu

	mu      sync.Mutex // held to make and to delete series
	gone    bool
	members map[string]int // how often each was admitted
	pairs   sync.Map       // groupPair → [2]prometheus.Counter
}

type groupPair struct{ outcome, model string }

var groups = struct {
	mu sync.Mutex
	m  map[[2]string]*Group
}{m: make(map[[2]string]*Group)}

// AcquireGroup returns the recorder of a label under a strategy. Each is undone
// by one Release; the series go with the last.
func AcquireGroup(label, strategy string) *Group {
	groups.mu.Lock()
	defer groups.mu.Unlock()
	g := groups.m[[2]string{label, strategy}]
	if g == nil {
		g = &Group{label: label, strategy: strategy, members: make(map[string]int)}
		groups.m[[2]string{label, strategy}] = g
	}
	g.refs++
	return g
}

// Release undoes one AcquireGroup.
func (g *Group) Release() {
	groups.mu.Lock()
	defer groups.mu.Unlock()
	if g.refs--; g.refs > 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	delete(groups.m, [2]string{g.label, g.strategy})
	for _, vec := range perLabel {
		vec.DeletePartialMatch(prometheus.Labels{"label": g.label, "strategy": g.strategy})
	}
}

// Decided records that a call goes to a model.
func (g *Group) Decided(outcome, model string) {
	pair := groupPair{outcome, model}
	counters, ok := g.pairs.Load(pair)
	if !ok {
		if counters = g.make(pair); counters == nil {
			return
		}
	}
	for _, c := range counters.([2]prometheus.Counter) {
		c.Inc()
	}
}

// make returns a pair's counters, nil if the label has gone, or the model has.
func (g *Group) make(pair groupPair) any {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone || g.members[pair.model] == 0 {
		return nil
	}
	counters, _ := g.pairs.LoadOrStore(pair, [2]prometheus.Counter{
		groupDecisions.WithLabelValues(g.label, g.strategy, pair.outcome),
		groupHits.WithLabelValues(g.label, g.strategy, pair.model),
	})
	return counters
}

// Admit says that a model claims the label. It is undone by one Retire.
func (g *Group) Admit(model string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members[model]++
}

// Retire undoes one Admit; the model's series go with the last.
func (g *Group) Retire(model string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members[model]--; g.members[model] > 0 {
		return
	}
	delete(g.members, model)
	g.pairs.Range(func(pair, _ any) bool {
		if pair.(groupPair).model == model {
			g.pairs.Delete(pair)
		}
		return true
	})
	groupHits.DeleteLabelValues(g.label, g.strategy, model)
}
