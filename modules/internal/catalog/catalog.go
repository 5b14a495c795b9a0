// Package catalog turns the names that clients ask for into models. A Table
// is the immutable answer of one moment; a Catalog replaces it whole whenever
// a source learns something new.
package catalog

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/budget"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Undeclared is the model label of calls to upstreams that belong to no
// declared model, such as those of a plain reverse_proxy.
const Undeclared = metrics.UnknownModel

// A Model is a model as one moment knows it.
type Model struct {
	// Name is the declared name.
	Name string

	// Aliases are other names for it, Adapters names of its LoRA adapters.
	Aliases, Adapters []string

	// Strategy picks among the Snapshot's endpoints. StrategyName is its
	// name as users type it.
	Strategy     routing.Strategy
	StrategyName string
	Snapshot     *routing.Snapshot

	// Policy says how calls are made, and Budget how many of them may be
	// repeated.
	Policy *Policy
	Budget *budget.Budget

	// Metrics records what happens to the model's requests, and Decisions
	// what its own strategy decides.
	Metrics   *metrics.Model
	Decisions *metrics.Strategy
}

// A Declaration is a model that the configuration declares.
type Declaration struct {
	Name              string
	Aliases, Adapters []string
	Strategy          routing.Strategy
	StrategyName      string
	Sources           []routing.Source
	Service           *routing.Spec
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

	// Models are declared; no name, alias or adapter is there twice.
	Models []Declaration

	// Sources list further models. A declared name shadows theirs.
	Sources []routing.Source

	// Strategy is that of the sources' models.
	Strategy     routing.Strategy
	StrategyName string

	// Policy is that of the sources' models.
	Policy *Policy
}

// A Catalog keeps a Table up to date.
type Catalog struct {
	cfg   Config
	table atomic.Pointer[Table]

	mu       sync.Mutex // serialises rebuild and Close
	closed   bool
	recorded map[string]*metrics.Model // what this catalog holds on to
}

// New returns a catalog that holds what its sources know at once. It does no
// I/O. Close must be called in the end.
func New(cfg Config) *Catalog {
	if cfg.Budgets == nil {
		cfg.Budgets = new(budget.Budgets)
	}
	c := &Catalog{cfg: cfg, recorded: make(map[string]*metrics.Model)}
	c.rebuild()
	return c
}

// Table returns what is known now.
func (c *Catalog) Table() *Table { return c.table.Load() }

// Follow keeps the table up to date until ctx is done.
func (c *Catalog) Follow(ctx context.Context) {
	sources := append([]routing.Source(nil), c.cfg.Sources...)
	for _, m := range c.cfg.Models {
		sources = append(sources, m.Sources...)
	}
	changed := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, s := range sources {
		wg.Go(func() {
			for {
				_, next := s.Models()
				select {
				case changed <- struct{}{}:
				default:
				}
				if next == nil {
					return
				}
				select {
				case <-next:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	for {
		select {
		case <-changed:
			c.rebuild()
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
	c.table.Load().retire()
	for _, m := range c.recorded {
		m.Release()
	}
}

// rebuild replaces the table by what the sources know now.
func (c *Catalog) rebuild() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	prev := c.table.Load()
	t := &Table{names: make(map[string]Resolved), settled: true}
	for _, d := range c.cfg.Models {
		var found []routing.Spec
		for _, s := range d.Sources {
			t.settled = t.settled && settled(s)
			models, _ := s.Models()
			for _, m := range models {
				found = append(found, m.Endpoints...)
			}
		}
		c.add(t, prev, d, found)
	}
	var listed []routing.Model
	place := make(map[string]int) // of a name in listed
	for _, s := range c.cfg.Sources {
		t.settled = t.settled && settled(s)
		models, _ := s.Models()
		for _, m := range models {
			i, ok := place[m.Name]
			if !ok {
				i = len(listed)
				place[m.Name] = i
				listed = append(listed, routing.Model{Name: m.Name})
			}
			listed[i].Aliases = append(listed[i].Aliases, m.Aliases...)
			listed[i].Endpoints = append(listed[i].Endpoints, m.Endpoints...)
		}
	}
	for _, m := range listed {
		if _, ok := t.names[m.Name]; ok || m.Name == "" {
			continue
		}
		d := Declaration{Name: m.Name, Strategy: c.cfg.Strategy, StrategyName: c.cfg.StrategyName, Policy: c.cfg.Policy}
		for _, a := range m.Aliases {
			_, declared := t.names[a]
			_, isModel := place[a]
			if !declared && !isModel && !slices.Contains(d.Aliases, a) {
				d.Aliases = append(d.Aliases, a)
			}
		}
		c.add(t, prev, d, m.Endpoints)
	}
	t.admit()
	c.table.Store(t)
	prev.retire()

	gone := make(map[string]struct{}, len(c.recorded))
	for name := range c.recorded {
		gone[name] = struct{}{}
	}
	for _, m := range t.models {
		delete(gone, m.Name)
	}
	for name := range gone {
		c.recorded[name].Release()
		delete(c.recorded, name)
	}
}

// add puts a model with the endpoints found for it into t.
func (c *Catalog) add(t, prev *Table, d Declaration, found []routing.Spec) {
	var old *Model
	if prev != nil {
		old = prev.names[d.Name].Model
	}
	m := &Model{
		Name: d.Name, Aliases: d.Aliases, Adapters: d.Adapters,
		Strategy: d.Strategy, StrategyName: d.StrategyName, Policy: d.Policy,
		Metrics: c.recorded[d.Name],
	}
	if m.Metrics == nil {
		m.Metrics = metrics.Acquire(d.Name)
		c.recorded[d.Name] = m.Metrics
	}
	m.Budget = c.cfg.Budgets.Of(d.Name)
	m.Decisions = m.Metrics.Strategy(d.StrategyName)
	m.Snapshot = c.snapshot(m, old, d.Service, found)
	t.models = append(t.models, m)
	t.names[d.Name] = Resolved{Model: m}
	for _, a := range d.Aliases {
		t.names[a] = Resolved{Model: m}
	}
	for _, a := range d.Adapters {
		t.names[a] = Resolved{Model: m, Adapter: a}
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
	}
	return snap
}

func settled(s routing.Source) bool {
	st, ok := s.(routing.Settler)
	return !ok || st.Settled()
}
