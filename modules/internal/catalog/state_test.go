package catalog

import (
	"context"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// teller is an activator that knows nothing of its model's state.
type teller struct{}

func (teller) Activate(context.Context, string) error { return nil }

// waker is an activator that knows its model's state.
type waker struct{ state routing.State }

func (waker) Activate(context.Context, string) error    { return nil }
func (w waker) State() (routing.State, <-chan struct{}) { return w.state, nil }
func (waker) Use(string, bool) (done func())            { return func() {} }
func spec(address string) routing.Spec                  { return routing.Spec{Scheme: "http", Address: address} }
func traits(phase routing.Phase) *routing.Traits {
	return &routing.Traits{State: routing.State{Phase: phase}}
}
func block(t *routing.Traits, specs ...routing.Spec) *source {
	return &source{models: []routing.Model{{Endpoints: specs, Traits: t}}}
}
func inState(p routing.Phase, message string) (s routing.State) {
	return routing.State{Phase: p, Message: message}
}

// The state of a declared model is its activator's word, or else that of its
// source while it has nowhere to go.
func TestStateOfADeclaredModel(t *testing.T) {
	service := spec("svc:80")
	for name, tt := range map[string]struct {
		d     Declaration
		phase routing.Phase
		waits bool
	}{
		"endpoints":                   {Declaration{Sources: []routing.Source{block(nil, spec("a:1"))}}, routing.Serving, false},
		"none, and nobody says why":   {Declaration{Sources: []routing.Source{block(nil)}}, routing.Serving, false},
		"none, as the source says":    {Declaration{Sources: []routing.Source{block(traits(routing.Asleep))}}, routing.Asleep, true},
		"none of one, some of others": {Declaration{Sources: []routing.Source{block(traits(routing.Asleep)), block(nil, spec("a:1"))}}, routing.Serving, false},
		"none, but a service":         {Declaration{Sources: []routing.Source{block(traits(routing.Asleep))}, Service: &service}, routing.Serving, false},
		"the activator's word":        {Declaration{Sources: []routing.Source{block(nil, spec("a:1"))}, Activator: waker{inState(routing.Failed, "no")}}, routing.Failed, true},
		"an activator that is fine":   {Declaration{Sources: []routing.Source{block(nil, spec("a:1"))}, Activator: waker{}}, routing.Serving, true},
		"none, and an activator":      {Declaration{Sources: []routing.Source{block(nil)}, Activator: teller{}}, routing.Asleep, true},
		"the same, and a service":     {Declaration{Sources: []routing.Source{block(nil)}, Service: &service, Activator: teller{}}, routing.Asleep, true},
		"none, against its word":      {Declaration{Sources: []routing.Source{block(nil)}, Activator: waker{}}, routing.Serving, true},
	} {
		tt.d.Name, tt.d.Policy = "m", new(Policy)
		c := New(Config{Ledger: ledger.New(ledger.Config{}), Lanes: NewLanes(), Models: []Declaration{tt.d}})
		m := c.Table().Model("m")
		if m.State.Phase != tt.phase || m.Waits() != tt.waits {
			t.Errorf("%s: it is %s and waits: %v", name, m.State.Phase, m.Waits())
		}
		c.Close()
	}
}

// A listed model is as its source says, and what it asks for and cannot have is
// told.
func TestListedTraits(t *testing.T) {
	lists := &source{models: []routing.Model{
		{Name: "a", Adapters: []string{"lora"}, Traits: &routing.Traits{
			Strategy: "prefix", ServePaths: []string{"/v1/chat"}, Groups: []string{"chat"}, Priority: 7,
			ContextWindow: 4096, State: inState(routing.Parked, ""), Created: 42,
		}},
		{Name: "b", Endpoints: []routing.Spec{spec("b:1")}, Traits: &routing.Traits{Strategy: "magic", Groups: []string{"chat"}}},
		{Name: "c", Endpoints: []routing.Spec{spec("c:1")}},
	}}
	var warned string
	known := func(name, _ string) (routing.Strategy, error) {
		if name == "magic" {
			return nil, context.Canceled
		}
		return nil, nil
	}
	c := New(Config{
		Ledger: ledger.New(ledger.Config{}), Lanes: NewLanes(), Sources: []routing.Source{lists}, Policy: &Policy{Retries: 2},
		StrategyName: "round-robin", StrategyOf: known, Warn: func(model, _ string) { warned += model },
	})
	defer c.Close()
	a, b, other := c.Table().Model("a"), c.Table().Model("b"), c.Table().Model("c")
	switch {
	case a.StrategyName != "prefix" || a.Priority != 7 || a.State.Phase != routing.Parked || a.Created != 42:
		t.Errorf("a is %+v", a)
	case a.Policy.ContextWindow != 4096 || a.Policy.Retries != 2 || other.Policy.ContextWindow != 0:
		t.Errorf("a's policy is %+v", a.Policy)
	case b.StrategyName != "default" || warned != "b":
		t.Errorf("b is routed by %s; warned of %q", b.StrategyName, warned)
	case other.StrategyName != "round-robin":
		t.Errorf("c is routed by %s", other.StrategyName)
	}
	if r, ok := c.Table().Resolve("lora"); !ok || r.Model != a || r.Adapter != "lora" {
		t.Errorf("lora resolves to %+v", r)
	}
	r, ok := c.Table().Resolve("chat")
	if !ok || r.Group == nil || len(r.Models()) != 2 {
		t.Fatalf("chat resolves to %+v", r)
	}
	if m, _ := r.Group.Pick(routing.FixedKeys{}, false); m != b {
		t.Errorf("%s gets a call although it is parked", m.Name)
	}
}

// A model of which nothing new is known stays the very same.
func TestModelsStay(t *testing.T) {
	a := routing.Model{Name: "a", Endpoints: []routing.Spec{spec("a:1")}, Traits: new(routing.Traits)}
	b := routing.Model{Name: "b", Endpoints: []routing.Spec{spec("b:1")}, Traits: new(routing.Traits)}
	s := &source{models: []routing.Model{a, b}}
	c := New(Config{Ledger: ledger.New(ledger.Config{}), Sources: []routing.Source{s}, Policy: new(Policy)})
	defer c.Close()
	before := c.Table()
	b.Endpoints = []routing.Spec{spec("b:2")}
	s.set(true, a, b)
	c.Refresh()
	after := c.Table()
	if before.Model("a") != after.Model("a") || before.Model("b") == after.Model("b") {
		t.Error("what has changed is the same, or what has not is another")
	}
	b.Traits = &routing.Traits{Priority: 1}
	s.set(true, a, b)
	c.Refresh()
	if m := c.Table().Model("b"); m.Priority != 1 {
		t.Errorf("b is %+v", m)
	}
}

// Of a label's models of which none serves the first that can be waited for is
// woken.
func TestGroupThatSleeps(t *testing.T) {
	of := func(p routing.Phase, priority int) *routing.Traits {
		tr := traits(p)
		tr.Groups, tr.Priority = []string{"chat"}, priority
		return tr
	}
	for want, models := range map[string][]routing.Model{
		"b": {{Name: "a", Traits: of(routing.Parked, 9)}, {Name: "b", Traits: of(routing.Asleep, 0)}, {Name: "c", Traits: of(routing.Asleep, 0)}},
		"c": {{Name: "a", Traits: of(routing.Stalled, 0)}, {Name: "b", Traits: of(routing.Preempted, 0)}, {Name: "c", Traits: of(routing.Failed, 0)}},
		"a": {{Name: "a", Traits: of(routing.Stalled, 0)}, {Name: "b", Traits: of(routing.Parked, 0)}},
		"d": {{Name: "a", Traits: of(routing.Asleep, 0)}, {Name: "d", Traits: of(routing.Asleep, 9)}},
	} {
		c := New(Config{Ledger: ledger.New(ledger.Config{}), Lanes: NewLanes(), Sources: []routing.Source{&source{models: models}}, Policy: new(Policy)})
		r, _ := c.Table().Resolve("chat")
		if m, _ := r.Group.Pick(routing.FixedKeys{}, false); m.Name != want {
			t.Errorf("%s is woken, want %s", m.Name, want)
		}
		c.Close()
	}
}

// A cluster's label does not take what the configuration has, nor the name that
// stands for all unknown models.
func TestDeclaredNamesComeBeforeLabels(t *testing.T) {
	tr := traits(routing.Serving)
	tr.Groups = []string{"secret", "nick", "_unknown", "free"}
	var warned int
	c := New(Config{
		Ledger: ledger.New(ledger.Config{}), Lanes: NewLanes(), Policy: new(Policy), Warn: func(_, _ string) { warned++ },
		Models: []Declaration{
			{Name: "secret", Aliases: []string{"nick"}, Sources: []routing.Source{block(nil, spec("s:1"))}, Policy: new(Policy)},
			{Name: "own", Groups: []string{"own-label", "secret-too"}, Sources: []routing.Source{block(nil, spec("o:1"))}, Policy: new(Policy)},
		},
		Sources: []routing.Source{&source{models: []routing.Model{{Name: "evil", Traits: tr, Endpoints: []routing.Spec{spec("e:1")}}}}},
	})
	defer c.Close()
	for name, want := range map[string]string{"secret": "secret", "nick": "secret", "free": "evil", "own-label": "own"} {
		if r, ok := c.Table().Resolve(name); !ok || r.Model.Name != want {
			t.Errorf("%s is %+v, want %s", name, r, want)
		}
	}
	if _, ok := c.Table().Resolve("_unknown"); ok || warned != 3 {
		t.Errorf("_unknown is known, or %d warnings are too few", warned)
	}
}
