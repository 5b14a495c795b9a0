package catalog

import (
	"slices"
	"strings"
)

// A Table is what is known of all models at one moment. It does not change.
type Table struct {
	names   map[string]Resolved
	byName  map[string]*Model // by their own names only
	models  []*Model
	claims  map[string][]*Model // by label
	groups  map[string]*Group
	settled bool
}

// newTable returns an empty table that takes the place of prev.
func newTable(prev *Table) *Table {
	n := 0
	if prev != nil {
		n = len(prev.models)
	}
	return &Table{
		names:   make(map[string]Resolved, 2*n),
		byName:  make(map[string]*Model, n),
		models:  make([]*Model, 0, n),
		claims:  make(map[string][]*Model),
		groups:  make(map[string]*Group),
		settled: true,
	}
}

// add appends a model.
func (t *Table) add(m *Model) {
	t.models = append(t.models, m)
	t.byName[m.Name] = m
	for _, label := range m.Groups {
		if !slices.Contains(t.claims[label], m) {
			t.claims[label] = append(t.claims[label], m)
		}
	}
}

// declare says that all names of a model that the configuration declares stand
// for it, whatever sources call theirs.
func (t *Table) declare(m *Model) {
	t.names[m.Name] = Resolved{Model: m}
	t.nickname(m)
}

// name says what the names of the listed models stand for. A cluster's alias
// comes before a model of that name, as with FlexInfer; other sources' aliases
// come after. Of two models that claim an alias the first has it.
func (t *Table) name(listed []*Model) {
	for _, m := range listed {
		if m.from.traits != nil {
			t.alias(m)
		}
	}
	for _, m := range listed {
		t.call(m.Name, Resolved{Model: m})
	}
	for _, m := range listed {
		t.nickname(m)
	}
}

// nickname says that the model's aliases and adapters stand for it.
func (t *Table) nickname(m *Model) {
	t.alias(m)
	for _, a := range m.Adapters {
		t.call(a, Resolved{Model: m, Adapter: a})
	}
}

func (t *Table) alias(m *Model) {
	for _, a := range m.Aliases {
		t.call(a, Resolved{Model: m})
	}
}

// call says what a name stands for that is not taken.
func (t *Table) call(name string, r Resolved) {
	if _, taken := t.names[name]; !taken {
		t.names[name] = r
	}
}

// Resolved is what a name stands for.
type Resolved struct {
	// Model is the model; of a label the one that comes first.
	Model *Model

	// Adapter is the name, if it is that of one of the model's adapters.
	Adapter string

	// Group is the models of which one gets the call, if the name is a
	// label; else nil.
	Group *Group
}

// Models returns all models that a call may go to.
func (r *Resolved) Models() []*Model {
	if r.Group != nil {
		return r.Group.Members
	}
	return []*Model{r.Model}
}

// Resolve returns what name stands for. As Ollama's clients write it, a name
// may end in :latest.
func (t *Table) Resolve(name string) (Resolved, bool) {
	r, ok := t.find(name)
	if !ok {
		if name, latest := strings.CutSuffix(name, ":latest"); latest {
			r, ok = t.find(name)
		}
	}
	return r, ok
}

func (t *Table) find(name string) (Resolved, bool) {
	if len(t.groups) > 0 {
		if g := t.groups[name]; g != nil {
			return Resolved{Model: g.Members[0], Group: g}, true
		}
	}
	r, ok := t.names[name]
	return r, ok
}

// Model returns the model with this name of its own, nil if there is none.
func (t *Table) Model(name string) *Model { return t.byName[name] }

// model is Model for a table that may be nil.
func (t *Table) model(name string) *Model {
	if t == nil {
		return nil
	}
	return t.byName[name]
}

// group returns a label's group, nil if there is none. t may be nil.
func (t *Table) group(label string) *Group {
	if t == nil {
		return nil
	}
	return t.groups[label]
}

// Models returns all models in the order in which they are listed.
func (t *Table) Models() []*Model { return t.models }

// Settled reports whether every source has had time to find its models. Until
// then a name that does not resolve may still turn out to be one.
func (t *Table) Settled() bool { return t.settled }

// admit lets the metrics speak of the endpoints and groups in t, until
// retire. What prev, which may be nil, has admitted already is left alone.
func (t *Table) admit(prev *Table) {
	for _, m := range t.models {
		if prev.model(m.Name) == m {
			continue
		}
		for i := range m.Snapshot.Len() {
			m.Metrics.Admit(m.Snapshot.At(i).Target())
		}
	}
	for _, g := range t.groups {
		for _, m := range g.Members {
			g.metrics.Admit(m.Name)
		}
	}
}

// retire undoes admit, but for what next, which may be nil, has as well. t may
// be nil.
func (t *Table) retire(next *Table) {
	if t == nil {
		return
	}
	for _, m := range t.models {
		if next.model(m.Name) == m {
			continue
		}
		for i := range m.Snapshot.Len() {
			m.Metrics.Retire(m.Snapshot.At(i).Target())
		}
	}
	for _, g := range t.groups {
		for _, m := range g.Members {
			g.metrics.Retire(m.Name)
		}
	}
}

// LongestName splits rest, the part of a path after /model/, into the longest
// known name that it begins with and what follows the name. Names may hold
// slashes.
func (t *Table) LongestName(rest string) (name, remainder string, ok bool) {
	const mostSegments = 32 // bounds the work that a hostile path can ask for
	end := 0
	for range mostSegments {
		i := strings.IndexByte(rest[end:], '/')
		next := len(rest)
		if i >= 0 {
			next = end + i
		}
		if _, known := t.find(rest[:next]); known {
			name, remainder, ok = rest[:next], rest[next:], true
		}
		if i < 0 {
			break
		}
		end = next + 1
	}
	return name, remainder, ok
}
