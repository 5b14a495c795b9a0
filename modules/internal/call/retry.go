package call

import (
	"net/http"
	"slices"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A Failure says what follows from an attempt that came to nothing.
type Failure uint8

const (
	// Unreached is a failure to connect: the endpoint cannot have begun.
	// Another attempt is worth it even if it is with the same.
	Unreached Failure = iota

	// Unsent is a request that did not get out: a kept connection had been
	// closed. That happens to engines that are well, so that the budget does
	// not count it.
	Unsent

	// Stale is the same, but for a request that got out. As that may also be
	// an engine that died of it at once, it is repeated once only.
	Stale

	// Declined is any other: the endpoint has answered that it will not, or
	// may have begun. Only another one is worth an attempt.
	Declined
)

// Failed says that the attempt under way came to nothing, and reports whether
// the next may follow: as long as the model's retries and their budget allow.
// The reason is how metrics call the failure.
func (c *Call) Failed(f Failure, reason string) (again bool) {
	lease := c.Lease()
	if lease == nil {
		return false
	}
	if id := lease.Endpoint().ID; !slices.Contains(c.request.Tried, id) {
		c.request.Tried = append(c.request.Tried, id)
	}
	if d, ok := c.model.Activator.(routing.Doubter); ok && f == Unreached && !c.othersFit() {
		d.Refused()
		c.set.Lanes.Refresh() // so that the next attempt waits if it sleeps
	}
	if !c.mayRetry(f) {
		c.gaveUp = true
		return false
	}
	c.stale = c.stale || f == Stale
	c.fresh = f == Stale || f == Unsent
	c.endAttempt()
	c.retried = reason
	return true
}

// othersFit reports whether an endpoint is fit that no attempt went to.
func (c *Call) othersFit() bool {
	snap := c.model.Snapshot
	for i := range snap.Len() {
		if e := snap.At(i); e.Health().Healthy() && !slices.Contains(c.request.Tried, e.ID) {
			return true
		}
	}
	return false
}

func (c *Call) mayRetry(f Failure) bool {
	p := c.model.Policy
	switch {
	case c.gaveUp, c.readErr != nil, c.attempts > p.Retries, f == Declined && !c.untried(), f == Stale && c.stale:
		return false
	case f == Stale, f == Unsent:
		return true
	}
	return c.model.Budget.Retry(p.RetryShare, p.RetryFloor)
}

// untried reports whether there is an endpoint that no attempt went to.
func (c *Call) untried() bool {
	snap := c.current().Snapshot
	for i := range snap.Len() {
		if !slices.Contains(c.request.Tried, snap.At(i).ID) {
			return true
		}
	}
	return snap.HasService() && !slices.Contains(c.request.Tried, snap.Service().ID)
}

// WantsFresh reports whether the attempt is to have a connection of its own,
// since others that are kept may have been closed as well.
func (c *Call) WantsFresh() bool { return c.fresh }

// WasStale reports whether an attempt failed as Stale.
func (c *Call) WasStale() bool { return c.stale }

// GiveUp says that no attempt may follow the one under way.
func (c *Call) GiveUp() { c.gaveUp = true }

// Hold keeps the answer of an attempt that is repeated, for the case that no
// other gives one.
func (c *Call) Hold(res *http.Response) {
	c.dropHeld()
	c.held = res
}

// Held returns the answer that was kept, or nil, and keeps it no longer.
func (c *Call) Held() *http.Response {
	res := c.held
	c.held = nil
	return res
}

func (c *Call) dropHeld() {
	if c.held != nil {
		_ = c.held.Body.Close()
		c.held = nil
	}
}
