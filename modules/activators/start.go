package activators

import (
	"context"
	"reflect"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
)

// startTime is for how long a start request that was answered well is not made
// again, and for how long one that no call waits for goes on: clients that give
// up come back.
const startTime = 5 * time.Second

// A startError says why an engine is not started, such that clients may know it.
type startError struct {
	message string
	after   time.Duration
}

func (e *startError) Error() string { return e.message }

// RetryAfter returns when it is tried again at the earliest; 0 is at once.
func (e *startError) RetryAfter() time.Duration { return e.after }

// asking is a start request that is being made, for all who want it.
type asking struct {
	start  *action
	cancel context.CancelFunc
	left   time.Time     // when the last left who wanted it; guarded by the engine's mu
	done   chan struct{} // closed when it has been answered
	err    error         // set before
}

// start has the engine started by p's request, unless that is being made or was
// just now.
func (e *engine) start(ctx context.Context, p *plan) error {
	e.mu.Lock()
	for e.asking != nil && !reflect.DeepEqual(e.asking.start, p.start) {
		other := e.asking
		e.mu.Unlock()
		_ = other.wait(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e.mu.Lock()
	}
	if e.asking == nil && !p.asked.IsZero() && time.Since(p.asked) < startTime {
		e.mu.Unlock()
		return nil
	}
	if e.asking == nil {
		if e.life == nil || e.life.Err() != nil {
			e.mu.Unlock()
			return errLeft
		}
		e.request(p.start)
	}
	a := e.asking
	e.mu.Unlock()
	return a.wait(ctx)
}

// request makes a start request in the background. The caller holds mu.
func (e *engine) request(start *action) {
	ctx, cancel := context.WithCancel(e.life)
	a := &asking{start: start, cancel: cancel, done: make(chan struct{})}
	e.asking = a
	e.requests.Go(func() {
		defer cancel()
		err := start.do(ctx, e.client)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			a.err = ctx.Err()
		default:
			a.err = &startError{message: public(err)}
			caddy.Log().Named("flexinfer").Warn("a start request failed", zap.Error(err))
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		close(a.done)
		if e.asking != a {
			return // it is awake by now
		}
		e.asking = nil
		if a.err != nil {
			return
		}
		for _, p := range e.plans {
			if reflect.DeepEqual(p.start, start) {
				p.asked = time.Now()
			}
		}
	})
}

// wait returns how the request was answered.
func (a *asking) wait(ctx context.Context) error {
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// forsaken gives up a start request soon if nobody comes back who wants it. The
// caller holds mu.
func (e *engine) forsaken() {
	a := e.asking
	if a == nil || e.wanted > 0 {
		return
	}
	a.left = time.Now()
	time.AfterFunc(startTime, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.wanted == 0 && time.Since(a.left) >= startTime {
			if e.asking == a {
				e.asking = nil // whoever comes next asks anew
			}
			a.cancel()
		}
	})
}

// started notes that the engine is awake: it has to be asked to start once it is
// not. The caller holds mu.
func (e *engine) started() {
	for _, p := range e.plans {
		p.asked = time.Time{}
	}
	if a := e.asking; a != nil {
		e.asking = nil
		time.AfterFunc(startTime, a.cancel) // it may still be answered
	}
}
