package routing

import "github.com/flexinfer/caddy-flexinfer/modules/internal/health"

// A Level says how willingly an endpoint is picked. The less, the better.
type Level = health.Level

// The levels of health.
const (
	// Fit: it takes its part of the load. So does one that was ejected some
	// time ago, for one call now and then, to see what it does.
	Fit = health.Fit

	// Busy: it said so a moment ago, or it is just back and has as many
	// calls as it should have yet.
	Busy = health.Busy

	// Ejected: it fails, or cannot be reached.
	Ejected = health.Ejected
)

// Pick has a strategy pick from s: among the fit endpoints, or else among the
// busy ones as well, or else among all that were not tried, because a call is
// not refused for what is thought of an endpoint's health. It rather waits for
// one that has no room than go to one that is ejected.
func Pick(strategy Strategy, req *Request, s *Snapshot) Decision {
	d := strategy.Pick(req, s)
	if d.Lease == nil && s.limited { // one may have had no room just then
		d = strategy.Pick(req, s.again(s.tolerated))
	}
	for level := s.tolerated + 1; d.Lease == nil && level <= Ejected && s.Len() > 0; level++ {
		if level == Ejected && s.Tolerating(Busy).crowded(req) {
			d.Full = true
			return d
		}
		d = strategy.Pick(req, s.again(level))
	}
	if d.Lease == nil {
		d.Full = s.Tolerating(Ejected).crowded(req)
	}
	return d
}

// again returns s for one more look in the same turn, at endpoints with this
// level of health as well.
func (s *Snapshot) again(level Level) *Snapshot {
	t := s.Tolerating(level)
	t.sameTurn = true
	return t
}

// Tolerating returns a snapshot like s in which endpoints with this level of
// health are usable, and those with a better one. In s itself those that are
// fit are.
func (s *Snapshot) Tolerating(level Level) *Snapshot {
	t := *s
	t.tolerated = level
	return &t
}

// MayEject reports whether failures of calls may have one more endpoint
// ejected, if they may eject this share of all. Those that cannot be reached
// do not count. 0 stands for a half, a negative share for none.
func (s *Snapshot) MayEject(share float64) bool {
	ejected := 0
	for _, h := range s.health {
		if h.Suspect() {
			ejected++
		}
	}
	return health.MayEject(share, ejected, len(s.health))
}
