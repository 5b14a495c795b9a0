package health

import "time"

// A probing is what the probes of one kind found out.
type probing struct {
	passes, fails int // in a row
	down          bool
	at            time.Duration // of the last that told
	next          time.Duration // when the next is due
}

// Claim returns 0 if a probe of the endpoint is due now, which it then is for
// the caller alone, else how long until one may be. Two configurations that
// overlap, or follow each other quickly, share their endpoints' probes so.
func (s *State) Claim(p Probe) (wait time.Duration) {
	p = p.normal()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.mark.registry.Now()
	r := s.probing(p, now)
	if now < r.next {
		return r.next - now
	}
	r.next = now + jitter(p.Interval)
	return 0
}

// Abandon says that the probe that was claimed last tells nothing and that
// another is due.
func (s *State) Abandon(p Probe) {
	p = p.normal()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.mark.registry.Now()
	s.probing(p, now).next = now
}

// Probed says how a probe went. So many fails in a row eject the endpoint, so
// many passes in a row bring it back: from that, and also from an ejection by
// calls that could not reach it. One that was ejected because calls failed is
// left to calls: its engine may be broken behind a path that answers.
//
// The word of probes holds for a few intervals. When they cease, because
// another configuration has none, calls on trial decide.
func (s *State) Probed(p Probe, pass bool) {
	p = p.normal()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.mark.registry.Now()
	r := s.probing(p, now)
	if now-r.at >= p.stale() {
		r.passes, r.fails, r.down = 0, 0, false // it began anew
	}
	r.at = now
	if pass {
		r.passes, r.fails = r.passes+1, 0
		r.down = r.down && r.passes < p.Passes
	} else {
		r.passes, r.fails = 0, r.fails+1
		r.down = r.down || r.fails >= p.Fails
	}
	until := time.Duration(0)
	for p, r := range s.probes {
		if end := r.at + p.stale(); r.down && end > now {
			until = max(until, end)
		}
	}
	switch {
	case until > 0:
		if !s.is.ejected || !s.is.probed {
			s.out("probe")
			s.is.certain, s.is.probed = true, true
		}
		s.is.until, s.is.trialAt = until, until
	case s.is.ejected && s.is.certain && r.passes >= p.Passes:
		s.restore(now, "probe")
	}
	s.publish(now)
}

// probing returns what probes of a kind found out, and drops what those found
// that nobody makes any more. The caller holds mu.
func (s *State) probing(p Probe, now time.Duration) *probing {
	for other, r := range s.probes {
		if other != p && now-max(r.at, r.next) >= other.stale() {
			delete(s.probes, other)
		}
	}
	r := s.probes[p]
	if r == nil {
		if s.probes == nil {
			s.probes = make(map[Probe]*probing)
		}
		r = new(probing)
		s.probes[p] = r
	}
	return r
}
