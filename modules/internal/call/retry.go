package call

import (
	"net/http"
	"slices"
)

// Failed says that the attempt under way came to nothing, and reports whether
// the next may follow: as long as the model's retries and their budget allow,
// and, with elsewhere, only if an endpoint is left that was not tried. The
// reason is how metrics call the failure.
func (c *Call) Failed(reason string, elsewhere bool) (again bool) {
	lease := c.Lease()
	if lease == nil {
		return false
	}
	if id := lease.Endpoint().ID; !slices.Contains(c.request.Tried, id) {
		c.request.Tried = append(c.request.Tried, id)
	}
	if !c.mayRetry(elsewhere) {
		c.gaveUp = true
		return false
	}
	c.endAttempt()
	c.retried = reason
	return true
}

func (c *Call) mayRetry(elsewhere bool) bool {
	p := c.model.Policy
	if c.gaveUp || c.attempts > p.Retries || elsewhere && !c.untried() {
		return false
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
