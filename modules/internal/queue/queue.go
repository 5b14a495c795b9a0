// Package queue makes calls wait: for a model that sleeps to be woken, or for
// room where all endpoints have as many calls as they may. Each model has one
// queue, bounded, first in, first out, which outlives reloads.
package queue

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Why a call does not get its turn. That the model does not wake is a
// [*StateError].
var (
	// ErrFull: as many wait as may.
	ErrFull = errors.New("the queue is full")

	// ErrTimeout: it has waited for as long as it may.
	ErrTimeout = errors.New("the wait is over")

	// ErrGone: the model has left the configuration, or the cluster.
	ErrGone = errors.New("the model is gone")
)

// A StateError says that calls do not wait for a model in this state.
type StateError struct{ State routing.State }

// Error implements error.
func (e *StateError) Error() string { return "the model is " + e.State.Phase.String() }

// A Target is what the configuration and the sources say of a queue's model at
// one moment. It does not change.
type Target struct {
	// Max is how many calls may wait, Timeout for how long each, and
	// ColdStart how long waking the model may take.
	Max                int
	Timeout, ColdStart time.Duration

	// Backoff says how often waking is tried.
	Backoff Backoff

	// State is the model's, and Activator wakes it; nil if nobody does.
	State     routing.State
	Activator routing.Activator

	// Metrics records how calls wait.
	Metrics *metrics.Model

	// Report is told how long waking the model took, and why it did not wake
	// if it did not. It may be nil.
	Report func(took time.Duration, problem string)
}

// wait returns how long a call may wait: for a model that may have to wake, as
// long as that may take at least.
func (t *Target) wait() time.Duration {
	if t.Activator == nil && t.State.Phase == routing.Serving {
		return t.Timeout
	}
	return max(t.Timeout, t.ColdStart)
}

// A Queue is where the calls for one model wait.
type Queue struct {
	model  string
	length atomic.Int64
	target atomic.Pointer[Target] // nil if the model is not there

	mu      sync.Mutex
	waiters list.List // of *waiter
	closed  bool      // the process ends

	// One has the turn if turn is set, the head as a rule: it tries to go. If
	// again is set something has changed since it began to.
	turn, again bool

	known  *Target       // the last that was not nil: who is told how many wait
	waking *waking       // the attempt to wake the model, nil if there is none
	woke   time.Duration // how long the last took that succeeded
}

// A Try is what comes of a call's attempt to go.
type Try uint8

// The outcomes.
const (
	// Full: there is no room, for this call or for another.
	Full Try = iota

	// Held: there is none where this call has to go. Another may find some.
	Held

	// Went: it has found an endpoint.
	Went
)

// A Place is where in the queue a call goes.
type Place uint8

// The places.
const (
	// New: behind all others, if there is room.
	New Place = iota

	// Moved: behind all others, room or no room. It had a place in another
	// queue.
	Moved

	// Again: before all others. It had its turn already.
	Again
)

// A waiter is one call that waits.
type waiter struct {
	at   *list.Element
	turn chan struct{} // gets the turn; holds one
	has  bool          // has the turn
	end  chan error    // why it does not wait any longer; holds one
}

// all counts the calls that wait in all queues.
var all atomic.Int64

// AnyWaits reports whether any call waits in any queue.
func AnyWaits() bool { return all.Load() != 0 }

// NewQueue returns the queue of a model. Nothing gets its turn before Set.
func NewQueue(model string) *Queue { return &Queue{model: model} }

// Len returns how many calls wait.
func (q *Queue) Len() int { return int(q.length.Load()) }

// Enter returns nil when the call may go: when try has reported that it found
// an endpoint. Calls go in the order in which they came, but for those that are
// held, and try is never called by two at a time that wait; one that finds
// nobody waiting tries at once.
func (q *Queue) Enter(ctx context.Context, place Place, try func() Try) error {
	t := q.target.Load()
	if t == nil {
		return ErrGone
	}
	if (place == Again || q.length.Load() == 0) && t.State.Phase == routing.Serving && try() == Went {
		return nil
	}
	begun := time.Now()
	w, err := q.join(place)
	if err != nil {
		return err
	}
	timeout := time.NewTimer(t.wait())
	defer timeout.Stop()
	defer func() {
		q.leave(w)
		t.Metrics.Waited(time.Since(begun))
	}()
	for {
		select {
		case <-w.turn:
			did := Full
			if q.serving() {
				did = try()
			}
			if did == Went {
				return nil
			}
			q.yield(w, did == Held)
		case err := <-w.end:
			// The one that had the model woken waits for just as long as
			// that may take.
			if time.Since(begun) >= t.wait() {
				return ErrTimeout
			}
			return err
		case <-timeout.C:
			return ErrTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *Queue) serving() bool {
	t := q.target.Load()
	return t != nil && t.State.Phase == routing.Serving
}

// join puts a call into the queue, and has the model woken if need be.
func (q *Queue) join(place Place) (*waiter, error) {
	w := &waiter{turn: make(chan struct{}, 1), end: make(chan error, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.target.Load()
	switch {
	case t == nil || q.closed:
		return nil, ErrGone
	case t.State.Phase.Refuses():
		return nil, &StateError{State: t.State}
	case place == New && q.waiters.Len() >= t.Max:
		t.Metrics.QueueRejected()
		return nil, ErrFull
	case place == Again:
		w.at = q.waiters.PushFront(w)
	default:
		w.at = q.waiters.PushBack(w)
	}
	t.Metrics.Queued()
	q.resized()
	q.wake(t)
	q.poke()
	return w, nil
}

// leave takes a call out of the queue. If it had the turn, the next one has.
func (q *Queue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiters.Remove(w.at)
	if w.has {
		q.turn = false
		q.poke()
	}
	q.resized()
	if q.waiters.Len() == 0 && q.waking != nil && !q.serving() {
		q.waking.leave()
	}
}

// resized tells others how many wait. The caller holds mu.
func (q *Queue) resized() {
	n := q.waiters.Len()
	all.Add(int64(n) - q.length.Swap(int64(n)))
	q.known.Metrics.QueueDepth(n)
	q.known.announce(q.model, n)
}

// announce tells the activator how many wait. t may be nil.
func (t *Target) announce(model string, n int) {
	if t == nil {
		return
	}
	if h, ok := t.Activator.(routing.Herald); ok {
		h.Waiting(model, n)
	}
}

// yield gives the turn back: to the head if something has changed meanwhile, or
// to the next in the queue if it is only this call that is held.
func (q *Queue) yield(w *waiter, held bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.has, q.turn = false, false
	next := w.at.Next()
	switch {
	case held && next != nil:
		q.give(next) // all get their turn before the head has it again
	case q.again:
		q.poke()
	}
}

// Poke says that there may be room for a call.
func (q *Queue) Poke() {
	if q.length.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.poke()
}

// poke gives the head the turn. The caller holds mu.
func (q *Queue) poke() {
	if q.turn {
		q.again = true
		return
	}
	q.again = false
	q.give(q.waiters.Front())
}

// give gives the turn to a waiter; nil if there is none. The caller holds mu.
func (q *Queue) give(e *list.Element) {
	if e != nil {
		w := e.Value.(*waiter)
		q.turn, w.has = true, true
		w.turn <- struct{}{}
	}
}

// Set says what holds for the model from now on; nil if it is not there any
// more.
func (q *Queue) Set(t *Target) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.target.Store(t)
	if n := q.waiters.Len(); t != nil {
		if n > 0 && (q.known == nil || q.known.Activator != t.Activator) {
			q.known.announce(q.model, 0)
			t.announce(q.model, n)
		}
		q.known = t
	}
	switch {
	case t == nil:
		q.endAll(ErrGone)
	case t.State.Phase.Refuses():
		q.endAll(&StateError{State: t.State})
	case t.State.Phase == routing.Serving:
		q.poke()
	case q.waiters.Len() > 0:
		q.wake(t)
	}
	if q.waking != nil {
		if t != nil && t.Activator != q.waking.by && t.State.Phase == routing.Asleep && t.State.Substage == "" {
			q.waking.cancel() // another is to wake what does not wake yet
		}
		select {
		case q.waking.changed <- struct{}{}:
		default:
		}
	}
}

// Close ends all waiting for good: the process stops.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.endAll(ErrGone)
	if q.waking != nil {
		q.waking.cancel()
	}
}

// endAll tells all that wait that they wait in vain. The caller holds mu.
func (q *Queue) endAll(err error) {
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		select {
		case e.Value.(*waiter).end <- err:
		default:
		}
	}
}

// RetryAfter returns when it is worth asking again for a model that a call
// could not wait for.
func (q *Queue) RetryAfter() time.Duration {
	const (
		busy   = 2 * time.Second  // calls end all the time
		asleep = 10 * time.Second // nobody knows
	)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.serving():
		return busy
	case q.waking == nil || q.woke == 0:
		return asleep
	}
	return max(time.Second, q.woke-time.Since(q.waking.begun))
}
