package transport

import (
	"sync"
	"sync/atomic"
	"time"
)

// A watchdog ends an attempt whose stream has stopped: before its first byte,
// or between two of them. The zero watchdog minds nothing.
type watchdog struct {
	a       *attempt
	waiting atomic.Int64 // since when, in ns since the attempt began; 0 if nobody does

	mu      sync.Mutex
	timer   *time.Timer
	limit   time.Duration // of the phase
	flowing bool          // the first byte has come
	stopped bool
}

// start gives the stream this long to its first byte; 0 is for ever. The
// attempt must be one that can be cancelled.
func (w *watchdog) start(a *attempt, firstByte time.Duration) {
	w.a = a
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(firstByte)
}

// flow begins the time between two bytes.
func (w *watchdog) flow() {
	if w.a == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flowing = true
	w.set(w.a.model.Policy.Gap)
}

// set begins a phase. The caller holds mu.
func (w *watchdog) set(limit time.Duration) {
	w.limit = limit
	switch {
	case w.stopped:
	case limit <= 0:
		if w.timer != nil {
			w.timer.Stop()
		}
	case w.timer == nil:
		w.timer = time.AfterFunc(limit, w.ring)
	default:
		w.timer.Reset(limit)
	}
}

func (w *watchdog) stop() {
	if w.a == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// wait and got stand before and after each wait for bytes: a client that is
// slow to take them is no concern of a watchdog.
func (w *watchdog) wait() {
	if w.a != nil {
		w.waiting.Store(max(int64(time.Since(w.a.began)), 1))
	}
}

func (w *watchdog) got() {
	if w.a != nil {
		w.waiting.Store(0)
	}
}

// ring ends the attempt if it is too late, or looks again when it may be.
func (w *watchdog) ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.limit <= 0 {
		return
	}
	if !w.flowing {
		w.a.cancel(errNoFirstByte)
		return
	}
	left := w.limit
	if since := w.waiting.Load(); since != 0 {
		left -= time.Since(w.a.began) - time.Duration(since)
	}
	if left <= 0 {
		w.a.cancel(errGap)
		return
	}
	w.timer.Reset(left)
}
