package call

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/queue"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/responses"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// workloadClass is the header by which FlexInfer's own jobs say that they are
// not worth waking a model for. It is not passed on.
const workloadClass = "X-Flexinfer-Internal-Workload-Class"

// isBackground reports whether the header says so, and takes it away.
func isBackground(h http.Header) bool {
	class := h[workloadClass]
	delete(h, workloadClass)
	return len(class) > 0 && strings.EqualFold(strings.TrimSpace(class[0]), "background")
}

// A Rejection is a refusal that metrics tell apart from others.
type Rejection struct {
	*refusal.Refusal
	Status metrics.Status
}

// Unwrap returns the refusal.
func (r *Rejection) Unwrap() error { return r.Refusal }

// Admit returns nil when the call may go: at once, unless its model sleeps or
// all endpoints have as many calls as they may. Then it waits in the model's
// queue, and has an endpoint when it returns, which the first Next gives. The
// error is a [Rejection], a [refusal.Refusal] or that of ctx.
func (c *Call) Admit(ctx context.Context) error {
	place := queue.New
	for range mostMoves {
		err := c.mayWait()
		if err == nil {
			err = c.wait(ctx, place)
		}
		if err == nil {
			return nil
		}
		if !c.movesOn(err) {
			return c.giveUp(err)
		}
		place = queue.Moved
	}
	return c.giveUp(queue.ErrGone)
}

// mostMoves bounds how often a call goes on waiting for another of a label's
// models.
const mostMoves = 16

// giveUp notes that the call waits no more, and returns what to answer.
func (c *Call) giveUp(err error) error {
	c.gaveUp, c.refused = true, time.Now()
	err = c.refusalOf(err)
	c.refusal, _ = errors.AsType[*refusal.Refusal](err)
	return err
}

// Refusal returns what to answer a call that waited in vain for another
// attempt, nil if it did not.
func (c *Call) Refusal() *refusal.Refusal { return c.refusal }

// wait has the call wait for its model, if it has to.
func (c *Call) wait(ctx context.Context, place queue.Place) error {
	m := c.model
	if m.Lane != nil && len(m.Groups) > 0 && !c.isCounted() {
		c.counts(m.Enter())
	}
	if !m.Waits() {
		return nil
	}
	return c.enter(ctx, place)
}

// enter has the call wait for its turn. The error is ErrMoved if another of its
// label's models serves meanwhile, or has taken its model's place.
func (c *Call) enter(ctx context.Context, place queue.Place) error {
	m := c.model
	if c.group == nil {
		return m.Queue().Enter(ctx, place, c.prime)
	}
	if c.bound.Model != m.Name { // else no other will do
		var leave func()
		ctx, leave = c.set.Lanes.Await(ctx, c.group.Label, m.Name)
		defer leave()
	}
	err := m.Queue().Enter(ctx, place, c.prime)
	if errors.Is(err, queue.ErrGone) || errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), catalog.ErrMoved) {
		return catalog.ErrMoved
	}
	return err
}

// movesOn has the call go on to another of its label's models, if the error says
// that it should and there is one.
func (c *Call) movesOn(err error) bool {
	return errors.Is(err, catalog.ErrMoved) && c.move()
}

// move has the call go on to another of its label's models. It reports false if
// nothing claims the label any more.
func (c *Call) move() bool {
	g := c.set.Lanes.Group(c.group.Label)
	if g == nil {
		return false
	}
	c.mu.Lock()
	counted := c.counted
	c.counted = nil
	c.mu.Unlock()
	if counted != nil {
		counted.Add(-1)
	}
	c.group, c.bound = g, responses.Place{}
	c.choose()
	c.edits, c.clamped = nil, ""
	c.edit()
	return true
}

// mayWait returns why the model is not for this call, or why the call may not
// wait for it, if it would have to; nil if neither is so.
func (c *Call) mayWait() error {
	m := c.model
	if len(m.ServePaths) > 0 && !slices.ContainsFunc(m.ServePaths, func(p string) bool { return strings.HasPrefix(c.path, p) }) {
		return &Rejection{refusal.NotServed(c.asked, c.path), metrics.StatusUnsupported}
	}
	if !m.Waits() {
		return nil
	}
	switch phase := m.State.Phase; {
	case c.background && phase != routing.Serving:
		return &Rejection{refusal.NotReady(c.asked, "it does not serve now, and background calls do not wake it"), metrics.StatusBackground}
	case phase.Refuses():
		return c.refusalOf(&queue.StateError{State: m.State})
	case m.Queue().Len() >= m.Policy.QueueMax:
		m.Metrics.QueueRejected()
		return c.refusalOf(queue.ErrFull)
	}
	return nil
}

// prime gives the call the endpoint of its first attempt, or its next, if
// there is room on one.
func (c *Call) prime() queue.Try {
	m := c.model.Latest()
	if m == nil {
		return queue.Full // the queue knows
	}
	c.model = m
	d := c.pick(m.Snapshot)
	if d.Full {
		c.decision = d
		if m.Snapshot.HasRoom() {
			return queue.Held
		}
		return queue.Full
	}
	lease := c.take(d)
	c.primed = true
	if k, ok := m.Activator.(routing.Keeper); ok && lease != nil && !c.isUsed() {
		c.uses(k.Use(m.Name, c.background))
	}
	return queue.Went
}

// refusalOf returns what to answer if the queue gives the call no turn.
func (c *Call) refusalOf(err error) error {
	if err == nil {
		return nil
	}
	if _, said := errors.AsType[*refusal.Refusal](err); said {
		return err
	}
	q := c.model.Queue()
	switch {
	case errors.Is(err, queue.ErrFull):
		return refusal.QueueFull(c.asked, q.RetryAfter())
	case errors.Is(err, queue.ErrTimeout):
		if m := c.model.Latest(); m != nil && m.Activator == nil && m.State.Phase == routing.Asleep {
			return refusal.NotReady(c.asked, "it has no endpoint")
		}
		return refusal.QueueTimeout(c.asked)
	case errors.Is(err, queue.ErrGone), errors.Is(err, catalog.ErrMoved):
		return refusal.Gone(c.asked)
	}
	e, ok := errors.AsType[*queue.StateError](err)
	if !ok {
		return err
	}
	switch s := e.State; s.Phase {
	case routing.Parked:
		return &Rejection{refusal.UnknownModel(c.asked), metrics.StatusParked}
	case routing.Preempted:
		return &Rejection{refusal.NotReady(c.asked, "another model has its place"), metrics.StatusPreempted}
	default:
		retry := s.RetryAfter
		if retry == 0 {
			retry = q.RetryAfter()
		}
		return refusal.NotActivated(c.asked, s.Message, retry)
	}
}

// freed says that a lease of the call was released: there may be room for one
// that waits.
func (c *Call) freed(lease *routing.Lease) {
	if lease != nil {
		c.set.Lanes.Poke()
	}
}

func (c *Call) isCounted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted != nil
}

func (c *Call) isUsed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used != nil
}

// counts notes a counter of calls that has this one in it, until it ends.
func (c *Call) counts(counter *atomic.Int64) {
	c.mu.Lock()
	over := c.over
	if !over {
		c.counted = counter
	}
	c.mu.Unlock()
	if over && counter != nil {
		counter.Add(-1)
	}
}

// uses notes what to call when the call has ended.
func (c *Call) uses(done func()) {
	c.mu.Lock()
	over := c.over
	if !over {
		c.used = done
	}
	c.mu.Unlock()
	if over {
		done()
	}
}
