package health

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// busyFor is how long a busy signal counts that does not say, busyMost
	// how long any does.
	busyFor  = time.Second
	busyMost = 5 * time.Second

	// busyRun busy signals with no success among them eject an endpoint if
	// they took busySpan at least.
	busyRun  = 20
	busySpan = 10 * time.Second

	// trialGap is the time between the first two calls on trial. It doubles
	// up to trialGapMost, so that an endpoint that hangs swallows few.
	trialGap     = time.Second
	trialGapMost = 8 * time.Second

	// slowStart is how long an endpoint that returned warms up. The number
	// of calls that it should have doubles each second from 1 on.
	slowStart = 10 * time.Second
)

// A State is what is known of one endpoint's health. Its methods may be called
// from any goroutine. A nil State is always fit.
//
// Two things eject an endpoint. Calls do, if a run of them fails: then it is
// out for a time, and after that a call may try it now and then, until one of
// them tells. Probes do, and then only they bring it back, for as long as
// there are any.
type State struct {
	view  atomic.Pointer[view] // nil while the endpoint is plainly fit
	dirty atomic.Bool          // a success changes something
	mark  *mark

	mu sync.Mutex // guards what follows
	is view       // as published

	failures  int // since the last success
	busies    int
	busySince time.Duration
	ejections int           // as many times in a row
	tried     bool          // a call was begun since it was ejected
	gap       time.Duration // to the next trial
	probes    map[Probe]*probing
}

// A view is what readers see of a state.
type view struct {
	busyUntil time.Duration

	ejected bool
	certain bool          // there is no doubt about it: it could not be reached
	probed  bool          // by probes
	until   time.Duration // from then on calls are let in on trial
	trialAt time.Duration // when the next one may be

	warming  bool
	returned time.Duration
}

func (v *view) level(now time.Duration, load int) Level {
	switch {
	case v.ejected && now < v.trialAt:
		return Ejected
	case v.ejected:
		return Fit
	case now < v.busyUntil:
		return Busy
	case v.warming && now-v.returned < slowStart && load >= 1<<((now-v.returned)/time.Second):
		return Busy
	}
	return Fit
}

// Level returns how willingly the endpoint is picked when it has so many calls
// in flight. It changes nothing.
func (s *State) Level(load int) Level {
	if s == nil {
		return Fit
	}
	v := s.view.Load()
	if v == nil {
		return Fit
	}
	return v.level(s.mark.registry.Now(), load)
}

// Healthy reports whether the endpoint is not ejected. One that is on trial is
// not healthy yet, one that is merely busy is.
func (s *State) Healthy() bool {
	if s == nil {
		return true
	}
	v := s.view.Load()
	return v == nil || !v.ejected
}

// Suspect reports whether the endpoint is ejected though it can be reached.
func (s *State) Suspect() bool {
	if s == nil {
		return false
	}
	v := s.view.Load()
	return v != nil && v.ejected && !v.certain
}

var untroubled atomic.Int64

// Troubled returns the number of endpoints in the state's registry that are
// not plainly fit. While it is 0 there is no need to look at any of them.
func (s *State) Troubled() *atomic.Int64 {
	if s == nil {
		return &untroubled
	}
	return &s.mark.registry.troubled
}

// Picked notes that a call was given to the endpoint: if it is ejected, that is
// a trial, and the next will have to wait.
func (s *State) Picked() {
	if s == nil {
		return
	}
	if v := s.view.Load(); v == nil || !v.ejected {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.is.ejected {
		return
	}
	s.tried = true
	if now := s.mark.registry.Now(); now >= s.is.trialAt {
		s.is.trialAt = now + s.gap
		s.gap = min(2*s.gap, trialGapMost)
		s.publish(now)
	}
}

// Succeeded says that a call was answered, below 500 and neither with a
// client's error nor with a busy signal. It ends runs of failures and busy
// signals, and brings the endpoint back if calls had it ejected.
func (s *State) Succeeded() {
	if s == nil || !s.dirty.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.mark.registry.Now()
	s.failures, s.busies = 0, 0
	// A call from before the ejection says nothing about the time since.
	if s.is.ejected && s.tried && (!s.is.probed || now >= s.is.until) {
		s.restore(now, "call")
	}
	s.publish(now)
}

// Failed says that a call failed. It is certain if the endpoint could not be
// reached. mayEject is asked, if failures would eject the endpoint without
// that certainty, whether that may be; it looks at other states.
//
// An endpoint that should be out and must not be counts as busy for a moment
// after each failure: one that fails fast is always idle, and would draw most
// of the calls.
func (s *State) Failed(cfg *Config, certain bool, mayEject func() bool) {
	if s == nil {
		return
	}
	c := cfg.normal()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.mark.registry.Now()
	defer func() { s.publish(now) }()
	if s.is.ejected {
		if s.tried && now >= s.is.until {
			s.eject(now, &c, s.is.certain, "")
		}
		return
	}
	if s.failures++; s.failures < c.EjectAfter {
		return
	}
	if certain {
		s.eject(now, &c, true, "unreachable")
		return
	}
	r := s.mark.registry
	r.ejecting.Lock()
	defer r.ejecting.Unlock()
	if mayEject != nil && !mayEject() {
		s.is.busyUntil = max(s.is.busyUntil, now+busyFor)
		return
	}
	s.eject(now, &c, false, "failures")
	s.publish(now) // for the next to be counted
}

// Busy says that the endpoint answered a call with a busy signal, and how long
// it asked to be left alone; 0 if it did not say. Such an answer is no
// failure: only a long run of them with no success ejects the endpoint.
func (s *State) Busy(cfg *Config, retryAfter time.Duration) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.mark.registry.Now()
	if retryAfter <= 0 {
		retryAfter = busyFor
	}
	s.is.busyUntil = max(s.is.busyUntil, now+min(retryAfter, busyMost))
	if s.busies == 0 {
		s.busySince = now
	}
	s.busies++
	if !s.is.ejected && s.busies >= busyRun && now-s.busySince >= busySpan {
		c := cfg.normal()
		s.eject(now, &c, false, "busy")
	}
	s.publish(now)
}

// eject takes the endpoint out, or keeps it out for longer.
func (s *State) eject(now time.Duration, c *Config, certain bool, reason string) {
	if !s.is.ejected && now-s.is.returned >= c.EjectForMax {
		s.ejections = 0
	}
	out := c.EjectForMax
	if n := s.ejections; n < 32 && c.EjectFor<<n>>n == c.EjectFor {
		out = min(c.EjectFor<<n, out)
	}
	s.ejections++
	s.out(reason)
	s.is.certain, s.is.probed = certain, false
	s.is.until = now + jitter(out)
	s.is.trialAt = s.is.until
	for _, p := range s.probes {
		p.passes = 0
	}
}

// out takes the endpoint out, for how long is left to the caller.
func (s *State) out(reason string) {
	if !s.is.ejected {
		s.changed(false, reason)
	}
	s.is.ejected, s.is.warming = true, false
	s.tried, s.gap = false, trialGap
}

// restore brings the endpoint back.
func (s *State) restore(now time.Duration, reason string) {
	s.is = view{busyUntil: s.is.busyUntil, warming: true, returned: now}
	s.failures, s.busies = 0, 0
	s.changed(true, reason)
}

func (s *State) changed(healthy bool, reason string) {
	if f := s.mark.registry.OnChange; f != nil {
		f(s.mark.id, healthy, reason)
	}
}

// publish shows readers what is, less what has passed. The caller holds mu.
func (s *State) publish(now time.Duration) {
	if s.is.busyUntil <= now {
		s.is.busyUntil = 0
	}
	if s.is.warming && now-s.is.returned >= slowStart {
		s.is.warming = false
	}
	s.dirty.Store(s.failures > 0 || s.busies > 0 || s.is.ejected)
	troubled := s.is.ejected || s.is.warming || s.is.busyUntil > 0
	switch old := s.view.Load(); {
	case !troubled:
		s.view.Store(nil)
	case old == nil || *old != s.is:
		v := s.is
		s.view.Store(&v)
	}
	s.mark.set(troubled)
}
