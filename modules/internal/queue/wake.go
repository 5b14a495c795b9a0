package queue

import (
	"cmp"
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
	end     time.Time     // of the time that it may take
}

// leave ends a waking that nobody waits for any more, unless its time is over
// as well: then it is to be said that the model did not wake.
func (w *waking) leave() {
	const almost = 100 * time.Millisecond
	if time.Until(w.end) > almost {
		w.cancel()
	}
}

// A wakeError says why a model did not wake.
type wakeError struct {
	reason string // as metrics call it
	state  routing.State
	final  bool   // to try again is no use
	detail string // for the operator
}

func (e *wakeError) Error() string { return e.state.Message }

// errAsleep says that a model went back to sleep while calls wait for it.
var errAsleep = errors.New("it went back to sleep")

// wake begins to wake the model if it sleeps and nobody does. The caller holds
// mu.
func (q *Queue) wake(t *Target) {
	if q.waking != nil || q.closed || t.Activator == nil || t.State.Phase != routing.Asleep && t.State.Phase != routing.Failed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.ColdStart)
	q.waking = &waking{begun: time.Now(), by: t.Activator, cancel: cancel, changed: make(chan struct{}, 1), end: time.Now().Add(t.ColdStart)}
	go q.run(ctx, q.waking, t)
}

// run wakes the model, and ends when it serves, when that has failed, or when
// no call waits any more.
func (q *Queue) run(ctx context.Context, w *waking, t *Target) {
	defer w.cancel()
	err := q.bring(ctx, w, t)
	took := time.Since(w.begun)
	if q.ran(w, t, took, err) && t.Report != nil {
		problem := ""
		if failure, ok := errors.AsType[*wakeError](err); ok {
			problem = cmp.Or(failure.detail, failure.state.Message, failure.state.Phase.String())
		}
		t.Report(took, problem)
	}
}

// ran notes what has come of a waking, and reports whether it was let go on to
// its end.
func (q *Queue) ran(w *waking, t *Target, took time.Duration, err error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waking = nil
	now := q.target.Load()
	if err != nil && now != nil && now.Activator != w.by && q.waiters.Len() > 0 && !now.State.Phase.Refuses() {
		q.wake(now) // another configuration has another way
		return false
	}
	if q.serving() {
		err = nil // whoever had it woken may be gone by now
	}
	if err == nil {
		q.woke = took
		t.Metrics.Activated(took, true)
		if now != nil && !q.serving() && q.waiters.Len() > 0 { // it is gone again
			q.wake(now)
		}
		return true
	}
	if failure, ok := errors.AsType[*wakeError](err); ok {
		t.Metrics.Activated(took, false)
		t.Metrics.ActivationFailed(failure.reason)
		q.endAll(&StateError{State: failure.state})
		return true
	}
	t.Metrics.ActivationFailed(metrics.ActivationCancelled)
	if now != nil && q.waiters.Len() > 0 { // came when the last had just left
		q.wake(now)
	}
	return false
}

// bring has the model woken until it serves, as often as may be.
func (q *Queue) bring(ctx context.Context, w *waking, t *Target) error {
	for retry := 1; ; retry++ {
		now := q.target.Load()
		failed := now != nil && now.State.Phase == routing.Failed
		err := t.Activator.Activate(ctx, q.model)
		if err != nil {
			err = notActivated(err)
		} else {
			err = q.await(ctx, w, t, failed)
		}
		wait := t.Backoff.wait(retry)
		failure, _ := errors.AsType[*wakeError](err)
		switch {
		case err == nil, errors.Is(err, ErrGone), failure != nil && failure.final:
			return err
		case ctx.Err() != nil:
			return q.over(ctx, t)
		case errors.Is(err, errAsleep):
			wait = againAfter
			retry-- // whoever wakes it may have thought that nobody waits
		case retry > t.Backoff.Retries:
			return err
		default:
			t.Metrics.ActivationRetried(wait)
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return q.over(ctx, t)
		}
	}
}

// againAfter is how soon a model is woken again that went back to sleep.
const againAfter = time.Second

// notActivated says that nobody could be told to wake the model. The
// activator's error may say when to ask again.
func notActivated(err error) *wakeError {
	e := &wakeError{reason: metrics.ActivationScaleUp, state: routing.State{Phase: routing.Failed, Message: err.Error()}}
	if later, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok {
		e.state.RetryAfter = later.RetryAfter()
	}
	return e
}

// await returns when the model serves. It may have been said to have failed
// before it was woken, and be so for a while yet.
func (q *Queue) await(ctx context.Context, w *waking, t *Target, failed bool) error {
	woke := false // it was seen to do something
	grace := time.NewTimer(failedFor)
	defer grace.Stop()
	for {
		now := q.target.Load()
		if now == nil {
			return ErrGone
		}
		phase := now.State.Phase
		switch {
		case phase == routing.Serving:
			return nil
		case phase == routing.Failed && !failed, phase.Refuses():
			return &wakeError{reason: metrics.ActivationNotReady, state: now.State, final: phase.Refuses()}
		case phase == routing.Asleep && now.State.Substage != "":
			woke = true
		case phase == routing.Asleep && woke:
			return errAsleep
		}
		failed = failed && phase == routing.Failed
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
	e := &wakeError{reason: metrics.ActivationNotReady, final: true, state: routing.State{
		Phase:   routing.Failed,
		Message: fmt.Sprintf("it was not ready within %s", t.ColdStart),
	}}
	if now := q.target.Load(); now != nil && now.State.Message != "" {
		e.detail = e.state.Message + ": " + now.State.Message
	}
	return e
}
