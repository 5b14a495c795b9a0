package catalog

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/queue"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A Policy says how the calls for a model are made. It does not change, but for
// what is learned of the context window.
type Policy struct {
	// Retries is how many attempts may follow the first.
	Retries int

	// RetryOn are the statuses of an answer after which another endpoint is
	// tried; RetryReset allows it also after a connection that was lost when
	// the endpoint may have begun to work on the call.
	RetryOn    Statuses
	RetryReset bool

	// RetryShare and RetryFloor bound the retries of all calls together: in
	// any 10 s RetryFloor of them are always allowed, and beyond that as
	// many as are RetryShare of the attempts, a number from 0 to 1.
	RetryShare float64
	RetryFloor int

	// FirstByte is how long a stream may take to its first byte, and Gap
	// how long between two of them. 0 is for ever.
	FirstByte, Gap time.Duration

	// Health says when an endpoint is passed over, and Unhealthy which
	// statuses of answers are failures.
	Health    health.Config
	Unhealthy Statuses

	// QueueMax is how many calls may wait for the model, QueueTimeout for
	// how long each, and ColdStart how long waking it may take: the longer of
	// the two bounds a wait. Backoff says how often waking is tried.
	QueueMax                int
	QueueTimeout, ColdStart time.Duration
	Backoff                 queue.Backoff

	// ContextWindow is the model's, in tokens; 0 if it is not declared.
	ContextWindow int

	// LearnedWindow is the model's as its engines report it, 0 until they
	// do; nil if they are not asked.
	LearnedWindow *atomic.Int64
}

// Window returns the model's context window in tokens, 0 if it is not known.
func (p *Policy) Window() int {
	if p.ContextWindow == 0 && p.LearnedWindow != nil {
		return int(p.LearnedWindow.Load())
	}
	return p.ContextWindow
}

// of returns the policy of a model with these traits, which may be nil.
func (p *Policy) of(t *routing.Traits) *Policy {
	if t == nil || t.ContextWindow == 0 && t.ColdStart == 0 {
		return p
	}
	of := *p
	if t.ContextWindow > 0 {
		of.ContextWindow = t.ContextWindow
	}
	if t.ColdStart > 0 {
		of.ColdStart = t.ColdStart
	}
	return &of
}

// Statuses is a set of HTTP statuses.
type Statuses [600/64 + 1]uint64

// Add puts a status into s. One that is none, that is, not from 100 to 599, is
// left out.
func (s *Statuses) Add(status int) {
	if status >= http.StatusContinue && status < 600 {
		s[status/64] |= 1 << (status % 64)
	}
}

// Has reports whether status is in s.
func (s *Statuses) Has(status int) bool {
	return status >= http.StatusContinue && status < 600 && s[status/64]&(1<<(status%64)) != 0
}
