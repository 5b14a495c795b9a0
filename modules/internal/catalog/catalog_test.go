package catalog

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// source is a source of models that the test changes.
type source struct {
	mu      sync.Mutex
	models  []routing.Model
	settled bool
	changed chan struct{}
}

func (s *source) Models() ([]routing.Model, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.models, s.changed
}

func (s *source) Settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled
}

func (s *source) set(settled bool, models ...routing.Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models, s.settled = models, settled
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
}

func served(name string, addresses ...string) routing.Model {
	m := routing.Model{Name: name}
	for _, a := range addresses {
		m.Endpoints = append(m.Endpoints, routing.Spec{Scheme: "http", Address: a})
	}
	return m
}

func targets(m *Model) []string {
	var list []string
	for i := range m.Snapshot.Len() {
		list = append(list, m.Snapshot.At(i).Target())
	}
	return list
}

func TestResolve(t *testing.T) {
	declared := &source{settled: true, models: []routing.Model{served("", "a:1", "b:1")}}
	tagged := served("llama:latest", "c:1")
	tagged.Aliases = []string{"llama", "chat", "gpt"}
	listed := &source{settled: true, models: []routing.Model{served("org/other", "c:1"), served("chat", "c:1"), served("gpt", "c:1"), served("org/other", "d:1"), tagged}}
	c := New(Config{
		Ledger: ledger.New(ledger.Config{}),
		Models: []Declaration{{
			Name: "chat", Aliases: []string{"gpt"}, Adapters: []string{"lora"},
			Sources: []routing.Source{declared},
		}},
		Sources: []routing.Source{listed},
	})
	defer c.Close()
	if n := len(c.Table().Models()); n != 3 {
		t.Errorf("%d models, want the two that nothing shadows and the declared one", n)
	}
	tests := []struct {
		name, model, adapter string
		targets              []string
	}{
		{"chat", "chat", "", []string{"a:1", "b:1"}}, // the declared one shadows the listed one
		{"gpt", "chat", "", []string{"a:1", "b:1"}},
		{"lora", "chat", "lora", []string{"a:1", "b:1"}},
		{"org/other", "org/other", "", []string{"c:1", "d:1"}},
		{"llama:latest", "llama:latest", "", []string{"c:1"}},
		{"llama", "llama:latest", "", []string{"c:1"}},
	}
	for _, tt := range tests {
		r, ok := c.Table().Resolve(tt.name)
		if !ok || r.Model.Name != tt.model || r.Adapter != tt.adapter || !slices.Equal(targets(r.Model), tt.targets) {
			t.Errorf("%s resolves to %+v", tt.name, r)
		}
	}
	for _, name := range []string{"", "Chat", "chat ", "org", "other"} {
		if r, ok := c.Table().Resolve(name); ok {
			t.Errorf("%q resolves to %s", name, r.Model.Name)
		}
	}
}

// P1: names hold slashes, and the longest known one counts.
func TestP1LongestName(t *testing.T) {
	c := New(Config{
		Ledger:  ledger.New(ledger.Config{}),
		Sources: []routing.Source{&source{settled: true, models: []routing.Model{served("org"), served("org/name"), served("org/name:tag-q4")}}},
	})
	defer c.Close()
	tests := []struct {
		rest, name, remainder string
		ok                    bool
	}{
		{"org/v1/x", "org", "/v1/x", true},
		{"org/name/v1/x", "org/name", "/v1/x", true},
		{"org/name:tag-q4/v1/x", "org/name:tag-q4", "/v1/x", true},
		{"org/name", "org/name", "", true},
		{"org/names/v1", "org", "/names/v1", true},
		{"other/v1", "", "", false},
		{"", "", "", false},
		{"/org/v1", "", "", false},
	}
	for _, tt := range tests {
		name, remainder, ok := c.Table().LongestName(tt.rest)
		if name != tt.name || remainder != tt.remainder || ok != tt.ok {
			t.Errorf("%q: got %q, %q, %v", tt.rest, name, remainder, ok)
		}
	}
}

// A change reaches the table, keeps the endpoints that stay, and goes on with
// their counts.
func TestFollow(t *testing.T) {
	s := &source{}
	c := New(Config{Ledger: ledger.New(ledger.Config{}), Sources: []routing.Source{s}})
	defer c.Close()
	if c.Table().Settled() {
		t.Error("settled before the source is")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Follow(ctx) })
	defer wg.Wait()
	defer cancel()

	await := func(what string, ok func(*Table) bool) {
		t.Helper()
		for !ok(c.Table()) {
			if t.Context().Err() != nil {
				t.Fatal(what)
			}
			runtime.Gosched()
		}
	}
	s.set(true, served("m", "a:1", "b:1"))
	await("the first models", func(t *Table) bool { return t.Settled() && len(t.Models()) == 1 })
	first, _ := c.Table().Resolve("m")
	lease := first.Model.Snapshot.Acquire(0)
	defer lease.Release()

	s.set(true, served("m", "a:1", "c:1"))
	await("the change", func(t *Table) bool {
		r, ok := t.Resolve("m")
		return ok && slices.Equal(targets(r.Model), []string{"a:1", "c:1"})
	})
	second, _ := c.Table().Resolve("m")
	if second.Model.Snapshot.At(0) != first.Model.Snapshot.At(0) {
		t.Error("an endpoint that stayed is another one")
	}
	if got := second.Model.Snapshot.Load(0); got != 1 {
		t.Errorf("load is %d, want 1", got)
	}

	s.set(true)
	await("the end", func(t *Table) bool { return len(t.Models()) == 0 })
}

// T5: what is known of an endpoint's health is known to every model and every
// later catalog, and to nothing but the endpoint.
func TestT5HealthIsKept(t *testing.T) {
	cfg := Config{Ledger: ledger.New(ledger.Config{}), Health: health.NewRegistry(health.Settings{})}
	with := func(service string, models ...routing.Model) *Catalog {
		s := &source{settled: true, models: models}
		cfg := cfg
		cfg.Sources = []routing.Source{s}
		if service != "" {
			cfg.Models = []Declaration{{Name: "svc", Service: &routing.Spec{Scheme: "http", Address: service}}}
		}
		return New(cfg)
	}
	at := func(c *Catalog, model string, i int) *health.State {
		r, _ := c.Table().Resolve(model)
		return r.Model.Snapshot.At(i).Health()
	}
	first := with("", served("m", "a:1", "b:1"), served("n", "a:1"))
	for range health.DefaultEjectAfter {
		at(first, "m", 0).Failed(nil, true, nil)
	}
	second := with("a:1", served("m", "a:1", "b:1"))
	first.Close()
	defer second.Close()
	if at(first, "n", 0).Healthy() || at(second, "m", 0).Healthy() {
		t.Error("a model does not know what another found out")
	}
	if !at(first, "m", 1).Healthy() || !at(second, "m", 1).Healthy() {
		t.Error("an endpoint has another's health")
	}
	svc, _ := second.Table().Resolve("svc")
	if !svc.Model.Snapshot.Service().Health().Healthy() {
		t.Error("a service has the health of one endpoint")
	}
}

// As with FlexInfer, an alias in a cluster comes before a model of that name; in
// a list of what an upstream has it does not.
func TestAliasOfAModelsName(t *testing.T) {
	one, two := served("one", "a:1"), served("two", "b:1")
	one.Aliases = []string{"two"}
	for _, tt := range []struct {
		traits *routing.Traits
		want   string
	}{{nil, "two"}, {new(routing.Traits), "one"}} {
		one.Traits, two.Traits = tt.traits, tt.traits
		c := New(Config{Ledger: ledger.New(ledger.Config{}), Sources: []routing.Source{&source{models: []routing.Model{two, one}}}, Policy: new(Policy)})
		if r, _ := c.Table().Resolve("two"); r.Model.Name != tt.want {
			t.Errorf("two stands for %s, want %s", r.Model.Name, tt.want)
		}
		c.Close()
	}
}
