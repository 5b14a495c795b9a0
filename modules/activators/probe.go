package activators

import (
	"context"
	"errors"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
)

const (
	defaultInterval = 10 * time.Second // between probes, awake or asleep
	firstPause      = 200 * time.Millisecond
	longestPause    = time.Second // between probes while something is to happen
	probeTimeout    = 2 * time.Second

	// missesAllowed is how many probes in a row may go wrong before an engine
	// that was awake is not: one that is busy may be slow to answer. A refused
	// connection counts at once.
	missesAllowed = 3

	// settleTime is how long an engine may still answer after it was told to
	// stop.
	settleTime = 30 * time.Second

	// partingTime is how long an engine is said to sleep before it is
	// stopped: a call that saw it awake may be about to begin.
	partingTime = 250 * time.Millisecond
)

// run probes the engine, and stops it when it is idle.
func (e *engine) run(ctx context.Context) {
	defer close(e.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time // the next probe
	for pause := firstPause; ; {
		e.stopIfIdle(ctx)
		if !time.Now().Before(due) {
			e.probe(ctx)
			wait, soon := e.pause(pause)
			due = time.Now().Add(wait)
			if soon {
				pause = min(pause*3/2, longestPause)
			} else {
				pause = firstPause
			}
		}
		timer.Reset(min(time.Until(due), e.idleIn()))
		select {
		case <-ctx.Done():
			return
		case <-e.kick:
			pause, due = firstPause, time.Time{}
		case <-timer.C:
		}
	}
}

// pause returns how long to wait for the next probe, and whether that is the
// time given, because something is about to happen.
func (e *engine) pause(given time.Duration) (wait time.Duration, soon bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = defaultInterval
	if p := e.plan(); p != nil {
		wait = p.interval
	}
	if !e.awake && (e.waking || e.process != nil) || e.awake && e.misses > 0 {
		return min(given, wait), true
	}
	return wait, false
}

// idleIn returns when to see whether the engine is idle.
func (e *engine) idleIn() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.plan()
	if p == nil || p.idle == 0 || !p.lever.can(e) {
		return time.Hour
	}
	if left, ok := e.idleLeft(p); ok {
		return max(left, 0)
	}
	return p.idle // calls are under way, or wait: it is not idle before
}

// probe asks the engine whether it is ready.
func (e *engine) probe(ctx context.Context) {
	e.mu.Lock()
	p, turn := e.plan(), e.turn
	e.mu.Unlock()
	if p == nil {
		return
	}
	err := e.ask(ctx, p)
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if turn != e.turn {
		return
	}
	doubtful := e.known != nil
	if doubtful {
		close(e.known)
		e.known = nil
	}
	if err == nil {
		if !e.awake {
			e.idleSince = time.Now()
		}
		if e.readyAt.IsZero() {
			e.readyAt = time.Now()
		}
		e.awake, e.waking, e.misses, e.detail = true, false, 0, ""
		e.started()
		e.failed, e.retryAt = "", time.Time{}
		e.publish()
		return
	}
	e.misses++
	if e.awake && !doubtful && e.misses < missesAllowed && !errors.Is(err, syscall.ECONNREFUSED) {
		return
	}
	e.awake, e.asleep, e.detail = false, public(err), bounded(err.Error())
	e.publish()
}

// ask makes the request that says whether the engine is ready.
func (e *engine) ask(ctx context.Context, p *plan) error {
	if err := e.taken(p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return p.ready.do(ctx, e.client)
}

// idleLeft returns how long until the engine is to be stopped for want of
// calls. The caller holds mu.
func (e *engine) idleLeft(p *plan) (left time.Duration, ok bool) {
	if p.idle == 0 || e.calls > 0 || e.known != nil || !e.awake && e.wanted > 0 || e.stopped != nil || !p.lever.can(e) {
		return 0, false
	}
	return time.Until(e.idleSince.Add(p.idle)), true
}

// idlePlan returns the plan by which the engine is to be stopped now for want of
// calls, nil if it is not. The caller holds mu.
func (e *engine) idlePlan() *plan {
	p := e.plan()
	if p == nil {
		return nil
	}
	if left, ok := e.idleLeft(p); !ok || left > 0 {
		return nil
	}
	return p
}

// part says that the engine sleeps, and notes a little later that it is being
// stopped, by p. A call that begins in between has it stay: gone is nil then.
func (e *engine) part(ctx context.Context, p *plan) (gone chan struct{}) {
	parting := make(chan struct{})
	e.mu.Lock()
	if e.idlePlan() != p {
		e.mu.Unlock()
		return nil
	}
	e.parting = parting
	e.publish()
	e.mu.Unlock()
	waiting, cancel := context.WithTimeout(ctx, partingTime)
	defer cancel()
	select {
	case <-parting:
	case <-waiting.Done():
	}
	busy := e.busy() // without mu: it is not ours
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.parting != parting {
		return nil
	}
	if busy || e.idlePlan() != p || ctx.Err() != nil {
		e.stay()
		return nil
	}
	e.parting = nil
	return e.stopping()
}

// stopIfIdle stops an engine that has had no call for long enough. Calls that
// come meanwhile find it asleep.
func (e *engine) stopIfIdle(ctx context.Context) {
	e.mu.Lock()
	p := e.idlePlan()
	e.mu.Unlock()
	if p == nil {
		return
	}
	if e.busy() {
		e.mu.Lock()
		e.idleSince = time.Now()
		e.mu.Unlock()
		return
	}
	gone := e.part(ctx, p)
	if gone == nil {
		return
	}
	e.mu.Lock()
	model := e.model
	e.mu.Unlock()

	logger := caddy.Log().Named("flexinfer")
	logger.Info("model is idle: stopping it", zap.String("model", model), zap.Duration("idle_timeout", p.idle))
	err := p.lever.off(ctx, e)
	if err != nil && ctx.Err() == nil {
		logger.Warn("an idle model could not be stopped", zap.String("model", model), zap.Error(err))
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	e.idleSince = time.Now() // if it still runs it may do so for as long again
	e.gone(gone)
}

// stopping notes that the engine is being stopped. The caller holds mu.
func (e *engine) stopping() (gone chan struct{}) {
	e.stopped = make(chan struct{})
	e.awake, e.waking, e.misses = false, false, 0
	e.turn++
	e.publish()
	return e.stopped
}

// gone notes that it has been. The caller holds mu.
func (e *engine) gone(gone chan struct{}) {
	e.stopped = nil
	e.asleep, e.detail = "it was stopped", ""
	e.turn++
	e.publish()
	close(gone)
	e.look()
}

// settle waits until the engine has ceased to answer after it was told to.
func (e *engine) settle(ctx context.Context, p *plan) error {
	limit := time.Now().Add(settleTime)
	for pause := firstPause; e.ask(ctx, p) == nil; pause = min(pause*3/2, longestPause) {
		if time.Now().After(limit) {
			return errStillReady
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
	return nil
}

var errStillReady = errors.New("it was told to stop and still says that it is ready after 30s")
