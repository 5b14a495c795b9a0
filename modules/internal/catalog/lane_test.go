package catalog

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/queue"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// reloads are catalogs that follow one another.
type reloads struct {
	t      *testing.T
	ledger *ledger.Ledger
	lanes  *Lanes
}

func newReloads(t *testing.T) *reloads {
	return &reloads{t, ledger.New(ledger.Config{}), NewLanes()}
}

// provision sets up a catalog of models that may have to wait.
func (r *reloads) provision(names ...string) *Catalog {
	var declared []Declaration
	for _, name := range names {
		declared = append(declared, Declaration{
			Name: name, Activator: waker{}, Sources: []routing.Source{block(nil, spec("a:1"))},
			Policy: &Policy{QueueMax: 5, QueueTimeout: time.Second, ColdStart: time.Second},
		})
	}
	return New(Config{Ledger: r.ledger, Lanes: r.lanes, Models: declared})
}

func (r *reloads) enter(c *Catalog, name string) error {
	m := c.Table().Model(name)
	return m.Queue().Enter(r.t.Context(), queue.New, func() queue.Try {
		if m.Latest() == nil {
			return queue.Full
		}
		return queue.Went
	})
}

func (r *reloads) goes(c *Catalog, names ...string) {
	r.t.Helper()
	for _, name := range names {
		if err := r.enter(c, name); err != nil {
			r.t.Errorf("a call for %s: %v", name, err)
		}
	}
}

// A configuration that fails to start after it has taken over leaves the one
// before as it was.
func TestLanesAfterAFailedReload(t *testing.T) {
	r := newReloads(t)
	a := r.provision("x")
	r.lanes.Serve(a)
	r.goes(a, "x")
	b := r.provision("y")
	r.lanes.Serve(b)
	if err := r.enter(a, "x"); !errors.Is(err, queue.ErrGone) {
		t.Errorf("a call for a model that is gone: %v", err)
	}
	r.lanes.Serve(a)
	b.Close()
	r.goes(a, "x")
	a.Refresh()
	r.goes(a, "x")
	if len(r.lanes.m) != 1 {
		t.Errorf("%d lanes", len(r.lanes.m))
	}
}

// A change while another configuration is set up does it no harm.
func TestLanesOfWhatIsBeingSetUp(t *testing.T) {
	r := newReloads(t)
	a := r.provision("x")
	r.lanes.Serve(a)
	b := r.provision("x", "y")
	a.Refresh()
	a.table.Load().models[0].from.traits = traits(routing.Asleep) // so that it is made anew
	a.Refresh()
	b.Refresh()
	r.lanes.Serve(b)
	a.Close()
	r.goes(b, "x", "y")
}

// A call that waits for one of a label's models hears of another that serves.
func TestMovers(t *testing.T) {
	asleep, awake := traits(routing.Asleep), traits(routing.Serving)
	for _, tr := range []*routing.Traits{asleep, awake} {
		tr.Groups = []string{"chat"}
	}
	s := &source{models: []routing.Model{{Name: "a", Traits: asleep}, {Name: "b", Traits: asleep}}}
	lanes := NewLanes()
	c := New(Config{Ledger: ledger.New(ledger.Config{}), Lanes: lanes, Sources: []routing.Source{s}, Policy: new(Policy)})
	defer c.Close()
	lanes.Serve(c)
	ctx, leave := lanes.Await(t.Context(), "chat", "a")
	other, leaveOther := lanes.Await(t.Context(), "other", "a")
	defer leaveOther()
	c.Refresh()
	if ctx.Err() != nil {
		t.Error("moved although nothing serves")
	}
	s.set(true, routing.Model{Name: "a", Traits: asleep}, routing.Model{Name: "b", Traits: awake, Endpoints: []routing.Spec{spec("b:1")}})
	c.Refresh()
	if !errors.Is(context.Cause(ctx), ErrMoved) || other.Err() != nil {
		t.Errorf("%v, and of another label %v", context.Cause(ctx), context.Cause(other))
	}
	leave()
	if ctx, leave := lanes.Await(t.Context(), "chat", "a"); !errors.Is(context.Cause(ctx), ErrMoved) {
		t.Error("what has happened already is not seen")
	} else {
		leave()
	}
	if ctx, leave := lanes.Await(t.Context(), "chat", "b"); ctx.Err() != nil {
		t.Error("moved away from the one that serves")
	} else {
		leave()
	}
	if len(lanes.movers) != 1 {
		t.Errorf("%d movers are left", len(lanes.movers))
	}
}

// One that is never started leaves no lane behind.
func TestLanesOfWhatNeverStarts(t *testing.T) {
	r := newReloads(t)
	r.lanes.Serve(r.provision("x"))
	r.provision("x", "y", "z").Close()
	if len(r.lanes.m) != 1 {
		t.Errorf("%d lanes", len(r.lanes.m))
	}
}
