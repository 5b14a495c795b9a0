// Package health knows which endpoints are worth a call: what calls and probes
// found out about each, for as long as anything refers to it.
package health

import "time"

// A Config says when an endpoint is passed over. It does not change.
type Config struct {
	// EjectAfter is how many failures in a row eject an endpoint.
	EjectAfter int

	// EjectFor is for how long, the first time. The time doubles, with
	// jitter, up to EjectForMax.
	EjectFor, EjectForMax time.Duration

	// MaxEjected is the share of a model's endpoints that may be ejected at
	// once, from 0 to 1. Those that could not be reached do not count.
	MaxEjected float64

	// Probe, if its path is set, is how endpoints are asked.
	Probe Probe
}

// A Probe is a request that endpoints are asked with.
type Probe struct {
	// Path is the path and query, relative to the endpoint's base path.
	Path string

	// Interval is the time between two probes, Timeout that for one.
	Interval, Timeout time.Duration

	// Passes and Fails are how many in a row change what is thought of an
	// endpoint.
	Passes, Fails int
}
