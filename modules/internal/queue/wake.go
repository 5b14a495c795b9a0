package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Backoff says how often waking a model is tried, and how long to wait in
// between: Initial × 2ⁿ before retry n = 1, 2, …, at most Max, times a random
// factor from 0.5 to 1.5.
type Backoff struct {
	Retries      int
	Initial, Max time.Duration
}

func (b Backoff) wait(retry int) time.Duration {
	d := b.Max
	if retry < 32 && b.Initial < b.Max>>retry {
		d = b.Initial << retry
	}
	return time.Duration(float64(d) * (0.5 + rand.Float64()))
}

// failedFor is how long a model that is woken once more may go on being said
// to have failed: whoever says so takes a while to notice.
const failedFor = 2 * time.Second

// A waking is an attempt to wake a model, the only one of its queue.
type waking struct {
	begun   time.Time
	by      routing.Activator
	cancel  context.CancelFunc
	changed chan struct{} // holds one: the target is another
}

// A wakeError says why a model did not wake.
type wakeError struct {
	reason string // as metrics call it
	state  routing.State
}

func (e *wakeError) Error() string { return e.state.Message }

// wake begins to wake the model if it sleeps and nobody does. The caller holds
// mu.
func (q *Queue) wake(t *Target) {
	if q.waking != nil || q.closed || t.Activator == nil || t.State.Phase != routing.Asleep && t.State.Phase != routing.Failed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.ColdStart)
	q.waking = &waking{begun: time.Now(), by: t.Activator, cancel: cancel, changed: make(chan struct{}, 1)}
	go q.run(ctx, q.waking, t)
}

// run wakes the model, and ends when it serves, when that has failed, or when
// no call waits any more.
func (q *Queue) run(ctx context.Context, w *waking, t *Target) {
	defer w.cancel()
	err := q.activate(ctx, t)
	if err == nil {
		err = q.await(ctx, w, t)
	}
	took := time.Since(w.begun)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waking = nil
	if q.serving() {
		err = nil // whoever had it woken may be gone by now
	}
	if err == nil {
		q.woke = took
		t.Metrics.Activated(took, true)
		return
	}
	if failure, ok := errors.AsType[*wakeError](err); ok {
		t.Metrics.Activated(took, false)
		t.Metrics.ActivationFailed(failure.reason)
		q.endAll(&StateError{State: failure.state})
		return
	}
	t.Metrics.ActivationFailed(metrics.ActivationCancelled)
	if now := q.target.Load(); now != nil && q.waiters.Len() > 0 { // came when the last had just left
		q.wake(now)
	}
}

// activate asks for the model to be woken.
func (q *Queue) activate(ctx context.Context, t *Target) error {
	for retry := 1; ; retry++ {
		err := t.Activator.Activate(ctx, q.model)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return q.over(ctx, t)
		case retry > t.Backoff.Retries:
			return &wakeError{metrics.ActivationScaleUp, routing.State{Phase: routing.Failed, Message: err.Error()}}
		}
		wait := t.Backoff.wait(retry)
		t.Metrics.ActivationRetried(wait)
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return q.over(ctx, t)
		}
	}
}

// await returns when the model serves.
func (q *Queue) await(ctx context.Context, w *waking, t *Target) error {
	failed := t.State.Phase == routing.Failed // when it began, and ever since
	grace := time.NewTimer(failedFor)
	defer grace.Stop()
	for {
		now := q.target.Load()
		if now == nil {
			return ErrGone
		}
		switch phase := now.State.Phase; {
		case phase == routing.Serving:
			return nil
		case phase == routing.Failed && !failed, refuses(phase):
			return &wakeError{metrics.ActivationNotReady, now.State}
		case phase != routing.Failed:
			failed = false
		}
		select {
		case <-w.changed:
		case <-grace.C:
			failed = false
		case <-ctx.Done():
			return q.over(ctx, t)
		}
	}
}

// over returns why the context of a waking has ended: it took too long, or
// nobody waits any more.
func (q *Queue) over(ctx context.Context, t *Target) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	return &wakeError{metrics.ActivationNotReady, routing.State{
		Phase:   routing.Failed,
		Message: fmt.Sprintf("it was not ready within %s", t.ColdStart),
	}}
}
