// Package catalog turns the names that clients ask for into models. A Table
// is the immutable answer of one moment; a Catalog replaces it whole whenever
// a source learns something new.
package catalog

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/budget"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Undeclared is the model label of calls to upstreams that belong to no
// declared model, such as those of a plain reverse_proxy.
const Undeclared = metrics.UnknownModel

// A Declaration is a model that the configuration declares.
type Declaration struct {
	Name              string
	Aliases, Adapters []string
	Groups            []string
	Priority          int
	Strategy          routing.Strategy
	StrategyName      string
	Sources           []routing.Source
	Service           *routing.Spec
	Activator         routing.Activator
	Policy            *Policy
}

// Config says what a Catalog is made of.
type Config struct {
	// Ledger counts the calls to the endpoints.
	Ledger *ledger.Ledger

	// Health knows which endpoints are worth a call; nil if all are.
	Health *health.Registry

	// Budgets bound the retries. Nil: each catalog has its own.
	Budgets *budget.Budgets

	// Lanes are where calls wait. Nil: they never do.
	Lanes *Lanes

	// Models are declared; no name, alias or adapter is there twice.
	Models []Declaration

	// Sources list further models. A declared name shadows theirs.
	Sources []routing.Source

	// Strategy is that of the sources' models, unless the source names one,
	// which StrategyOf finds; it may be nil.
	Strategy     routing.Strategy
	StrategyName string
	StrategyOf   func(name, options string) (routing.Strategy, error)

	// Policy is that of the sources' models.
	Policy *Policy

	// GroupMode says which of a label's models gets a call.
	GroupMode GroupMode

	// Warn tells people what is wrong with a model. It may be nil.
	Warn func(model, problem string)

	// Woke tells people how long waking a model took, and why it did not
	// wake if it did not. It may be nil.
	Woke func(model string, took time.Duration, problem string)
}

// A Catalog keeps a Table up to date.
type Catalog struct {
	cfg   Config
	table atomic.Pointer[Table]

	mu       sync.Mutex // serialises rebuild and Close
	closed   bool
	recorded map[string]*metrics.Model // what this catalog holds on to
	labels   map[string]*metrics.Group // likewise
	left     map[string]bool           // what was warned of
}

// New returns a catalog that holds what its sources know at once. It does no
// I/O. Close must be called in the end.
func New(cfg Config) *Catalog {
	if cfg.Budgets == nil {
		cfg.Budgets = new(budget.Budgets)
	}
	if cfg.Warn == nil {
		cfg.Warn = func(_, _ string) {}
	}
	c := &Catalog{cfg: cfg, recorded: make(map[string]*metrics.Model), labels: make(map[string]*metrics.Group)}
	c.Refresh()
	return c
}

// Table returns what is known now.
func (c *Catalog) Table() *Table { return c.table.Load() }

// Follow keeps the table up to date until ctx is done.
func (c *Catalog) Follow(ctx context.Context) {
	var all []func() <-chan struct{}
	watch := func(s routing.Source) {
		all = append(all, func() <-chan struct{} {
			_, next := s.Models()
			return next
		})
	}
	for _, s := range c.cfg.Sources {
		watch(s)
	}
	for _, d := range c.cfg.Models {
		for _, s := range d.Sources {
			watch(s)
		}
		if w, ok := d.Activator.(routing.Watcher); ok {
			all = append(all, func() <-chan struct{} {
				_, next := w.State()
				return next
			})
		}
	}
	changed := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, next := range all {
		wg.Go(func() {
			for {
				change := next()
				select {
				case changed <- struct{}{}:
				default:
				}
				if change == nil {
					return
				}
				select {
				case <-change:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	for {
		select {
		case <-changed:
			c.Refresh()
		case <-ctx.Done():
			return
		}
	}
}

// Close gives up the catalog's hold on metrics. The last table stays valid
// for the requests that still use it.
func (c *Catalog) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	c.table.Load().retire(nil)
	if c.cfg.Lanes != nil {
		c.cfg.Lanes.drop(c.table.Load())
	}
	for _, m := range c.recorded {
		m.Release()
	}
	for _, g := range c.labels {
		g.Release()
	}
}

// Refresh replaces the table by what the sources know now. A model of which
// they know nothing new stays what it is.
func (c *Catalog) Refresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	begun := time.Now()
	prev := c.table.Load()
	t := c.build(prev)
	t.admit(prev)
	c.table.Store(t)
	prev.retire(t)
	if c.cfg.Lanes != nil {
		c.cfg.Lanes.update(c, t)
	}
	for name, m := range c.recorded {
		if t.byName[name] == nil {
			m.Release()
			delete(c.recorded, name)
		}
	}
	for label, g := range c.labels {
		if t.groups[label] == nil {
			g.Release()
			delete(c.labels, label)
		}
	}
	metrics.Refreshed(time.Since(begun))
}

// build returns the table of what the sources know now.
func (c *Catalog) build(prev *Table) *Table {
	t := newTable(prev)
	for i := range c.cfg.Models {
		d := &c.cfg.Models[i]
		var found []routing.Model
		for _, s := range d.Sources {
			t.settled = t.settled && settled(s)
			models, _ := s.Models()
			found = append(found, models...)
		}
		c.declared(t, prev, d, found)
	}
	var listed []routing.Model
	place := make(map[string]int) // of a name in listed
	for _, s := range c.cfg.Sources {
		t.settled = t.settled && settled(s)
		models, _ := s.Models()
		for _, m := range models {
			i, ok := place[m.Name]
			if !ok {
				place[m.Name] = len(listed)
				listed = append(listed, m)
				continue
			}
			// Several upstreams list it: each serves it.
			listed[i].Aliases = slices.Concat(listed[i].Aliases, m.Aliases)
			listed[i].Adapters = slices.Concat(listed[i].Adapters, m.Adapters)
			listed[i].Endpoints = slices.Concat(listed[i].Endpoints, m.Endpoints)
		}
	}
	for _, m := range t.models {
		t.declare(m)
	}
	declared := len(t.models)
	for _, m := range listed {
		if _, taken := t.names[m.Name]; !taken && m.Name != "" {
			c.listed(t, prev, m)
		}
	}
	t.name(t.models[declared:])
	left := make(map[string]bool)
	for label, members := range t.claims {
		if r, taken := t.names[label]; label == metrics.UnknownModel || taken && !members[0].declared && r.Model.declared {
			problem := "its label " + strconv.Quote(label) + " is left out: the configuration has the name"
			if left[problem] = true; !c.left[problem] {
				c.cfg.Warn(members[0].Name, problem)
			}
			continue
		}
		g := c.labels[label]
		if g == nil {
			g = metrics.AcquireGroup(label, string(c.cfg.GroupMode))
			c.labels[label] = g
		}
		t.groups[label] = newGroup(label, c.cfg.GroupMode, members, g, prev.group(label))
	}
	c.left = left
	return t
}

// declared puts a model that the configuration declares into t.
func (c *Catalog) declared(t, prev *Table, d *Declaration, found []routing.Model) {
	var endpoints []routing.Spec
	from := origin{state: stateOf(d.Activator)}
	for _, m := range found {
		endpoints = append(endpoints, m.Endpoints...)
		from.found = append(from.found, m.Endpoints)
		if m.Traits != nil {
			from.traits = m.Traits
		}
	}
	old := prev.model(d.Name)
	if old != nil && old.from.equal(&from) {
		t.add(old)
		return
	}
	m := &Model{
		Name: d.Name, Aliases: d.Aliases, Adapters: d.Adapters, Groups: d.Groups, Priority: d.Priority,
		Strategy: d.Strategy, StrategyName: d.StrategyName,
		Policy: d.Policy, Activator: d.Activator, State: from.state, from: from, declared: true,
	}
	if m.State.Phase == routing.Serving && len(endpoints) == 0 {
		_, knows := d.Activator.(routing.Watcher)
		switch {
		case d.Activator != nil && !knows:
			m.State.Phase = routing.Asleep
		case from.traits != nil && d.Service == nil:
			m.State = from.traits.State // of one that has nothing else to go to
		}
	}
	c.finish(m, old, d.Service, endpoints)
	t.add(m)
}

// listed puts a model that a source lists into t.
func (c *Catalog) listed(t, prev *Table, l routing.Model) {
	from := origin{found: [][]routing.Spec{l.Endpoints}, traits: l.Traits, aliases: l.Aliases, adapters: l.Adapters}
	old := prev.model(l.Name)
	if old != nil && old.from.equal(&from) {
		t.add(old)
		return
	}
	m := &Model{
		Name: l.Name, Aliases: l.Aliases, Adapters: l.Adapters,
		Strategy: c.cfg.Strategy, StrategyName: c.cfg.StrategyName, Policy: c.cfg.Policy.of(l.Traits), from: from,
	}
	traits := l.Traits
	if traits == nil {
		traits = new(routing.Traits)
	}
	if traits.Strategy != "" {
		c.strategy(m, traits)
	}
	m.ServePaths, m.Groups, m.Priority = traits.ServePaths, traits.Groups, traits.Priority
	m.State, m.Activator = traits.State, traits.Activator
	m.Created, m.Metadata = traits.Created, traits.Metadata
	c.finish(m, old, traits.Service, l.Endpoints)
	t.add(m)
}

// strategy gives m the strategy that its source names. With one that cannot be,
// calls go to the model's service, as they do by default.
func (c *Catalog) strategy(m *Model, traits *routing.Traits) {
	s, err := c.cfg.StrategyOf(traits.Strategy, traits.Options)
	if err != nil {
		c.cfg.Warn(m.Name, err.Error())
		if s, err = c.cfg.StrategyOf("default", ""); err != nil {
			return
		}
		m.Strategy, m.StrategyName = s, "default"
		return
	}
	m.Strategy, m.StrategyName = s, traits.Strategy
}

// finish gives m what it has in common with old, the model in its place so
// far, which may be nil, and its endpoints.
func (c *Catalog) finish(m, old *Model, service *routing.Spec, endpoints []routing.Spec) {
	m.Metrics = c.recorded[m.Name]
	if m.Metrics == nil {
		m.Metrics = metrics.Acquire(m.Name)
		c.recorded[m.Name] = m.Metrics
	}
	m.Budget = c.cfg.Budgets.Of(m.Name)
	m.Decisions = m.Metrics.Strategy(m.StrategyName)
	for i := range endpoints {
		m.limited = m.limited || endpoints[i].MaxInflight > 0
	}
	m.Snapshot = c.snapshot(m, old, service, endpoints)
	if c.cfg.Lanes != nil {
		m.Lane = c.cfg.Lanes.of(m.Name)
	}
	if name, woke := m.Name, c.cfg.Woke; woke != nil {
		m.report = func(took time.Duration, problem string) { woke(name, took, problem) }
	}
}

// snapshot makes the model's snapshot, out of the old model's endpoints where
// they are the same.
func (c *Catalog) snapshot(m, old *Model, service *routing.Spec, found []routing.Spec) *routing.Snapshot {
	var prev *routing.Snapshot
	have := make(map[string]*routing.Endpoint)
	if old != nil {
		prev = old.Snapshot
		for i := range prev.Len() {
			have[prev.At(i).ID] = prev.At(i)
		}
	}
	endpoints := make([]*routing.Endpoint, 0, len(found))
	for _, spec := range found {
		spec = spec.Normal()
		e := have[spec.ID]
		if e == nil || !e.Spec.Equal(&spec) {
			e = routing.NewEndpoint(c.cfg.Ledger, c.cfg.Health, m.Name, spec)
		}
		endpoints = append(endpoints, e)
	}
	var s *routing.Endpoint
	if service != nil {
		// What is behind a service's address is not one endpoint.
		s = routing.NewEndpoint(c.cfg.Ledger, nil, m.Name, *service)
	}
	snap := routing.New(m.Name, endpoints, s, prev)
	if prev != nil {
		kept := 0
		for i := range snap.Len() {
			if have[snap.At(i).ID] != nil {
				kept++
			}
		}
		m.Metrics.Endpoints(snap.Len()-kept, len(have)-kept)
		if share, ok := snap.Remapped(prev); ok {
			m.Metrics.Remapped(share)
		}
	}
	return snap
}

func settled(s routing.Source) bool {
	st, ok := s.(routing.Settler)
	return !ok || st.Settled()
}

// stateOf returns the state that an activator knows its model to be in.
func stateOf(a routing.Activator) (s routing.State) {
	if w, ok := a.(routing.Watcher); ok {
		s, _ = w.State()
	}
	return s
}
