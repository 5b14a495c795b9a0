package catalog

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ring"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A GroupMode says how a call for a label finds one of the models that claim
// it. Its name is that of the strategy in metrics.
type GroupMode string

// The modes. The last three are FlexInfer's own names; they differ in the keys
// that count.
const (
	GroupRoundRobin      GroupMode = "round-robin"
	GroupLeastLoaded     GroupMode = "least-loaded"
	GroupPrefix          GroupMode = "prefix"
	GroupSession         GroupMode = "session"
	GroupPrefixOrRR      GroupMode = "prefix-or-rr"
	GroupSessionOrRR     GroupMode = "session-or-rr"
	GroupPrefixSessionRR GroupMode = "prefix-session-or-rr"
)

// GroupModes lists the modes.
var GroupModes = []GroupMode{
	GroupRoundRobin, GroupLeastLoaded, GroupPrefix, GroupSession,
	GroupPrefixOrRR, GroupSessionOrRR, GroupPrefixSessionRR,
}

// A Group is the models that claim a label. It does not change; what their
// calls do does.
type Group struct {
	// Label is the name that clients ask for.
	Label string

	// Members are the models by priority, the highest first, and by name.
	Members []*Model

	mode    GroupMode
	turn    *atomic.Uint64 // goes on through changes
	metrics *metrics.Group

	// The ring of the members that served when it was built. A membership
	// change builds another, which moves 1/n of the keys.
	ring atomic.Pointer[memberRing]
}

type memberRing struct {
	members []string
	ring    *ring.Ring
}

// newGroup returns the group of a label's members, in the place of old, which
// may be nil.
func newGroup(label string, mode GroupMode, members []*Model, rec *metrics.Group, old *Group) *Group {
	slices.SortFunc(members, func(a, b *Model) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	g := &Group{Label: label, Members: members, mode: mode, metrics: rec}
	if old != nil {
		g.turn = old.turn
		g.ring.Store(old.ring.Load())
	} else {
		g.turn = new(atomic.Uint64)
	}
	return g
}

// Pick returns the model that a call with these keys goes to. If that counts
// the call among those of the model, it returns its counter. Where dry is set
// nothing is counted.
func (g *Group) Pick(keys routing.Keys, dry bool) (m *Model, counted *atomic.Int64) {
	ready, cut := g.ready()
	var outcome string
	switch {
	case len(ready) == 0:
		m, outcome = g.wakeable(), metrics.GroupNoReady
	case len(ready) == 1:
		m, outcome = ready[0], metrics.GroupSingle
		if cut {
			outcome = metrics.GroupPriority
		}
	case g.mode == GroupLeastLoaded:
		m, counted = g.lightest(ready, dry)
		outcome = metrics.GroupLeastLoaded
	default:
		m, outcome = g.byKey(ready, keys, dry)
	}
	if !dry {
		g.metrics.Decided(outcome, m.Name)
	}
	return m, counted
}

// ready returns the members of the highest priority that serve, and whether
// there are others that serve.
func (g *Group) ready() (ready []*Model, cut bool) {
	for _, m := range g.Members {
		switch {
		case !m.Ready():
		case len(ready) > 0 && m.Priority < ready[0].Priority:
			return ready, true
		default:
			ready = append(ready, m)
		}
	}
	return ready, false
}

// wakeable returns the first member that calls may wait for, or else the first.
func (g *Group) wakeable() *Model {
	for _, m := range g.Members {
		if !m.State.Phase.Refuses() {
			return m
		}
	}
	return g.Members[0]
}

// byKey picks by the call's key or, if it has none that counts, in turn.
func (g *Group) byKey(ready []*Model, keys routing.Keys, dry bool) (m *Model, outcome string) {
	var key routing.Key
	switch g.mode {
	case GroupSession, GroupSessionOrRR:
		key, outcome = keys.SessionKey(), metrics.GroupSession
	case GroupPrefix, GroupPrefixOrRR, GroupPrefixSessionRR:
		key, outcome = keys.PrefixKey(), metrics.GroupPrefix
		if key.Source == routing.SourceSessionFallback {
			outcome = metrics.GroupSession
			if g.mode == GroupPrefixOrRR {
				key = routing.Key{}
			}
		}
	default:
		return g.inTurn(ready, dry), metrics.GroupRoundRobin
	}
	if !key.Usable() {
		return g.inTurn(ready, dry), metrics.GroupNoKey
	}
	return ready[g.ringOf(ready).Owner(key.Hash)], outcome
}

// ringOf returns the ring of the members that serve. Its nodes are in their
// order.
func (g *Group) ringOf(ready []*Model) *ring.Ring {
	have := g.ring.Load()
	if have != nil && slices.EqualFunc(have.members, ready, func(name string, m *Model) bool { return m.Name == name }) {
		return have.ring
	}
	names, nodes := make([]string, len(ready)), make([]ring.Node, len(ready))
	for i, m := range ready {
		names[i], nodes[i] = m.Name, ring.Node{ID: m.Name, Weight: 1}
	}
	next := &memberRing{members: names, ring: ring.New(nodes, nil)}
	g.ring.Store(next)
	return next.ring
}

func (g *Group) inTurn(ready []*Model, dry bool) *Model {
	turn := g.turn.Load()
	if !dry {
		turn = g.turn.Add(1) - 1
	}
	return ready[turn%uint64(len(ready))]
}

// lightest picks the model with the fewest calls and counts one more, in one
// step, so that a burst does not land on one. Those that are equal take turns.
func (g *Group) lightest(ready []*Model, dry bool) (*Model, *atomic.Int64) {
	first := g.turn.Load()
	if !dry {
		first = g.turn.Add(1) - 1
	}
	for {
		var best *Model
		seen := int64(0)
		for i := range ready {
			m := ready[(first+uint64(i))%uint64(len(ready))]
			if n := m.Lane.calls.Load(); best == nil || n < seen {
				best, seen = m, n
			}
		}
		if dry {
			return best, nil
		}
		if best.Lane.calls.CompareAndSwap(seen, seen+1) {
			return best, &best.Lane.calls
		}
	}
}
