// Package health knows which endpoints are worth a call: what calls and probes
// found out about each, for as long as anything refers to it.
//
// # Ownership and concurrency
//
// Endpoints hold a [State]; the [Registry] itself holds it only weakly. So an
// endpoint that goes away and comes back while anything refers to it, such as
// a table of another model or of the configuration before, finds its state.
//
// Reading a state takes no lock: a [Registry] counts the states that are in
// trouble, and each state publishes what is wrong with it as an immutable
// value. Only outcomes that change something take the state's own lock.
package health

import (
	"cmp"
	"time"
)

// Defaults of a [Config] and of a [Probe].
const (
	DefaultEjectAfter  = 3
	DefaultEjectFor    = 10 * time.Second
	DefaultEjectForMax = 5 * time.Minute
	DefaultMaxEjected  = 0.5

	DefaultInterval = 10 * time.Second
	DefaultTimeout  = 2 * time.Second
	DefaultPasses   = 2
	DefaultFails    = 3
)

// A Config says when an endpoint is passed over. It does not change. Fields
// that are 0 stand for their defaults; they are filled in where they are used,
// and a nil Config holds nothing but defaults.
type Config struct {
	// EjectAfter is how many failures in a row eject an endpoint. Default: 3.
	EjectAfter int

	// EjectFor is for how long, the first time. The time doubles, with
	// jitter, up to EjectForMax, and is forgotten when the endpoint stayed in
	// for EjectForMax. Defaults: 10 s and 5 min.
	EjectFor, EjectForMax time.Duration

	// MaxEjected is the share of a model's endpoints that failures may have
	// ejected at once, from 0 to 1. Those that could not be reached do not
	// count: they serve nobody. Default: 0.5; a negative share is 0.
	MaxEjected float64

	// Probe, if its path is set, is how endpoints are asked.
	Probe Probe
}

// normal returns c with its defaults filled in. c may be nil.
func (c *Config) normal() Config {
	var n Config
	if c != nil {
		n = *c
	}
	n.EjectAfter = cmp.Or(n.EjectAfter, DefaultEjectAfter)
	n.EjectFor = cmp.Or(n.EjectFor, DefaultEjectFor)
	n.EjectForMax = cmp.Or(n.EjectForMax, DefaultEjectForMax)
	return n
}

// MayEject reports whether one more of n endpoints may be ejected when so many
// are, if share is a [Config.MaxEjected].
func MayEject(share float64, ejected, n int) bool {
	const rounding = 1e-9 // 29 % of 100 are 29
	return float64(ejected+1) <= cmp.Or(share, DefaultMaxEjected)*float64(n)+rounding
}

// A Probe is a request that endpoints are asked with. Fields that are 0 stand
// for their defaults.
type Probe struct {
	// Path is the path and query, relative to the endpoint's base path.
	// Without it there are no probes.
	Path string

	// Interval is the time between two probes, Timeout that for one.
	// Defaults: 10 s and 2 s.
	Interval, Timeout time.Duration

	// Passes and Fails are how many in a row change what is thought of an
	// endpoint. Defaults: 2 and 3.
	Passes, Fails int
}

// normal returns p with its defaults filled in.
func (p Probe) normal() Probe {
	p.Interval = cmp.Or(p.Interval, DefaultInterval)
	p.Timeout = cmp.Or(p.Timeout, DefaultTimeout)
	p.Passes = cmp.Or(p.Passes, DefaultPasses)
	p.Fails = cmp.Or(p.Fails, DefaultFails)
	return p
}

// stale returns the age at which the last probe says nothing any more: nobody
// probes the endpoint now, or not this way.
func (p Probe) stale() time.Duration { return 3 * (p.Interval + p.Timeout) }

// A Level says how willingly an endpoint is picked.
type Level uint8

// The levels, the best first.
const (
	// Fit: it takes its part of the load, or a call on trial.
	Fit Level = iota

	// Busy: it said so a moment ago, or is warming up and has as many calls
	// as it should. It is picked when no endpoint is fit.
	Busy

	// Ejected: it fails, or cannot be reached. It is picked when there is no
	// other.
	Ejected
)
