package call

import (
	"context"
	"slices"
	"sort"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/queue"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Next ends the attempt under way, if there is one, and picks the endpoint of
// the next. The pick is counted in the same step. It returns nil when there
// is no endpoint to go to or when no further attempt may be made. If all that
// it could go to have no room it waits, until ctx is done or its model's queue
// has had enough.
func (c *Call) Next(ctx context.Context) *routing.Lease {
	lease := c.next(ctx)
	if lease == nil {
		return nil
	}
	m := c.model.Metrics
	if c.retried != "" {
		m.Retried(c.retried)
		c.retried = ""
	}
	m.Reserved()
	decisions := c.model.Decisions
	if c.chosen != nil {
		decisions = m.Strategy(c.chosenName)
	}
	decisions.Decided(c.decision.Key, lease.IsService(), lease.Endpoint().Target())
	c.log(c.decision)
	return lease
}

func (c *Call) next(ctx context.Context) *routing.Lease {
	if c.primed {
		c.primed = false
		c.model.Budget.Attempt()
		return c.Lease()
	}
	c.endAttempt()
	c.foreign = false
	if c.model == nil || c.gaveUp {
		return nil
	}
	again := c.attempts > 0
	if again {
		c.model = c.current()
	} else {
		c.model.Budget.Attempt()
	}
	place := queue.New
	if again {
		place = queue.Again
	}
	for range mostMoves {
		waits := c.model.Lane != nil
		if !waits || c.model.State.Phase == routing.Serving {
			if d := c.pick(c.model.Snapshot); !d.Full || !waits {
				return c.take(d)
			}
		}
		err := c.enter(ctx, place)
		if err == nil {
			c.primed = false
			return c.Lease()
		}
		if !c.movesOn(err) {
			_ = c.giveUp(err) // see Refusal
			return nil
		}
		c.request.Tried, place = c.request.Tried[:0], queue.Moved
	}
	_ = c.giveUp(queue.ErrGone)
	return nil
}

// current returns the call's model as it is known now: its endpoints may be
// others than those at the time of the last attempt.
func (c *Call) current() *catalog.Model {
	if c.model.Lane != nil {
		if m := c.model.Latest(); m != nil { // of a newer configuration, perhaps
			return m
		}
	}
	if m := c.catalog.Table().Model(c.model.Name); m != nil {
		return m
	}
	return c.model
}

// take makes the decision the call's, and its lease that of the attempt under
// way.
func (c *Call) take(d routing.Decision) *routing.Lease {
	c.decision = d
	if d.Lease == nil {
		return nil
	}
	c.attempts++
	c.mu.Lock()
	over := c.over
	if !over {
		c.lease = d.Lease
	}
	c.mu.Unlock()
	if over {
		d.Lease.Release()
		return nil
	}
	return d.Lease
}

// pick asks the strategy, and falls back to the model's service where it has
// no answer. Of endpoints that failed this call already one is picked again
// only when none is left.
func (c *Call) pick(snap *routing.Snapshot) routing.Decision {
	strategy := c.prepare(snap, c.model.Strategy, c.model.StrategyName)
	if d := c.pickBound(snap); d.Lease != nil || d.Full {
		return d
	}
	ask := func() (d routing.Decision) {
		if snap.Len() > 0 {
			d = routing.Pick(strategy, &c.request, snap)
		}
		if d.Lease == nil && !d.Full && snap.HasService() && !slices.Contains(c.request.Tried, snap.Service().ID) {
			d = routing.Decision{Lease: snap.AcquireService()}
		}
		return d
	}
	d := ask()
	if d.Lease == nil && !d.Full && len(c.request.Tried) > 0 {
		c.request.Tried = c.request.Tried[:0]
		d = ask()
	}
	return d
}

// pickBound picks the endpoint that holds what the call follows up.
func (c *Call) pickBound(snap *routing.Snapshot) (d routing.Decision) {
	id := c.bound.Endpoint
	if id == "" || slices.Contains(c.request.Tried, id) {
		return d
	}
	i := sort.Search(snap.Len(), func(i int) bool { return snap.At(i).ID >= id })
	if i < snap.Len() && snap.At(i).ID == id {
		lease := snap.Acquire(i)
		d = routing.Decision{Lease: lease, Full: lease == nil, Reason: "response"}
	}
	return d
}

// prepare fills in what strategies see, and returns the one that picks: s,
// unless another was chosen for this call.
func (c *Call) prepare(snap *routing.Snapshot, s routing.Strategy, name string) routing.Strategy {
	if c.chosen != nil {
		s, name = c.chosen, c.chosenName
	}
	c.strategyName = name
	c.request.Keys = c
	c.request.Model, c.request.Adapter = snap.Model(), c.adapter
	c.request.Path, c.request.Header = c.path, c.header
	return s
}

// Explain returns the decision that Next would make, counting nothing.
func (c *Call) Explain() routing.Decision {
	if c.model == nil {
		return routing.Decision{}
	}
	return c.pick(c.model.Snapshot.DryRun())
}

// Lease returns the lease of the attempt under way, or nil.
func (c *Call) Lease() *routing.Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lease
}

// Dial says that the attempt under way begins.
func (c *Call) Dial() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease == nil {
		return
	}
	c.lease.Activate()
	if c.dialled.IsZero() {
		c.dialled = time.Now()
	}
	if c.renew == nil && c.set.LeaseTTL > 0 {
		c.renew = time.AfterFunc(c.set.LeaseTTL/2, c.renewLease)
	}
}

// renewLease runs while the call does, so that a long one is not taken for a
// leak.
func (c *Call) renewLease() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.lease.Renew()
	c.renew.Reset(c.set.LeaseTTL / 2)
}

// Finished says that the answer of the attempt that holds this lease has
// ended.
func (c *Call) Finished(lease *routing.Lease) {
	c.mu.Lock()
	if c.lease == lease {
		c.lease = nil
	}
	c.mu.Unlock()
	lease.Release()
	c.freed(lease)
}

// NextOf is Next for a pool of upstreams that is not the gateway's: it picks
// from snap with the strategy s, or with the one that was chosen for this
// call. Endpoints whose ID is out are passed over. The attempt counts as begun.
func (c *Call) NextOf(snap *routing.Snapshot, s routing.Strategy, name string, out func(id string) bool) *routing.Lease {
	if last := c.Lease(); last != nil && c.foreign { // the proxy comes again only if that one failed
		c.request.Tried = append(c.request.Tried, last.Endpoint().ID)
	}
	c.endAttempt()
	c.foreign = true
	strategy := c.prepare(snap, s, name)
	tried := c.request.Tried
	var unavailable []string
	for i := range snap.Len() {
		if id := snap.At(i).ID; out(id) {
			unavailable = append(unavailable, id)
		}
	}
	c.request.Tried = slices.Concat(unavailable, tried)
	d := strategy.Pick(&c.request, snap)
	if d.Lease == nil && len(tried) > 0 {
		tried = nil
		c.request.Tried = unavailable
		d = strategy.Pick(&c.request, snap)
	}
	c.request.Tried = tried
	lease := c.take(d)
	c.Dial()
	return lease
}

// Foreign reports whether the endpoint was picked from a pool that is not the
// gateway's.
func (c *Call) Foreign() bool { return c.foreign }

func (c *Call) endAttempt() {
	c.mu.Lock()
	lease := c.lease
	c.lease = nil
	c.mu.Unlock()
	lease.Release()
	c.freed(lease)
}

// letGo releases what the call holds, and sees to it that it gets nothing more.
// It may be called from any goroutine.
func (c *Call) letGo() {
	c.mu.Lock()
	lease, counted, used := c.lease, c.counted, c.used
	c.lease, c.counted, c.used, c.over = nil, nil, nil, true
	if c.renew != nil {
		c.renew.Stop()
	}
	c.mu.Unlock()
	lease.Release()
	c.freed(lease)
	if counted != nil {
		counted.Add(-1)
	}
	if used != nil {
		used()
	}
}

// End ends the call: its lease is released, and its memory goes back to where
// it came from once no attempt reads it any more. Only the first End has an
// effect.
func (c *Call) End() {
	c.letGo()
	if c.ended {
		return
	}
	c.ended = true
	c.dropHeld()
	c.release()
}

// Accept says that an answer is passed on, so that no attempt follows. A large
// body's memory need not wait for the end of it.
func (c *Call) Accept() {
	c.gaveUp = true
	c.dropHeld()
	if c.buf != nil {
		c.SessionKey() // which the log will ask for
		c.release()
	}
}

// release gives the body's memory back, which attempts may still be reading.
func (c *Call) release() {
	c.body = nil
	if c.doc != nil {
		*c.doc = openai.Doc{} // it would hold on to the body
		docs.Put(c.doc)
		c.doc = nil
	}
	for _, buf := range []*buffer{c.buf, c.raw} {
		if buf != nil {
			buf.release()
		}
	}
	c.buf, c.raw = nil, nil
}
