package routing

import (
	"sync/atomic"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
)

// A Lease counts one attempt of a call on one endpoint. It is born reserved
// and becomes active when the attempt starts; it is one count in either
// state. Its methods may be called from any goroutine, any number of times,
// and on a nil Lease.
type Lease struct {
	endpoint *Endpoint
	service  bool
	ticket   ledger.Ticket
	counter  *atomic.Int64
}

// Endpoint returns the endpoint that the lease counts on.
func (l *Lease) Endpoint() *Endpoint {
	if l == nil {
		return nil
	}
	return l.endpoint
}

// IsService reports whether the endpoint is the model's service address
// rather than a replica that the strategy picked.
func (l *Lease) IsService() bool { return l != nil && l.service }

// Activate turns the reservation into a call under way.
func (l *Lease) Activate() {
	if l != nil {
		l.ticket.Activate()
	}
}

// Renew keeps a call that is still under way from being taken for a leak.
func (l *Lease) Renew() {
	if l != nil {
		l.ticket.Renew()
	}
}

// Release ends the lease. Only the first call has an effect.
func (l *Lease) Release() {
	if l != nil && l.ticket.Release() && l.counter != nil {
		l.counter.Add(-1)
	}
}

// Count adds 1 to c now and takes it away again when the lease is released:
// with it a strategy counts the calls in flight by something of its own. It
// is for the strategy that took the lease, before it returns it, and once.
func (l *Lease) Count(c *atomic.Int64) {
	c.Add(1)
	l.counter = c
}
