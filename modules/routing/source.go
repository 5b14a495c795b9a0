package routing

import (
	"context"
	"time"
)

// A Source knows models and the endpoints that serve them.
//
// One that has work to do in the background is a [Starter] too, and one that
// needs time to look around a [Settler].
type Source interface {
	// Models returns what the source knows now and a channel that is closed
	// when it knows something else. It does no I/O. The channel is nil if
	// the answer never changes. The caller does not modify the slice, nor
	// what it leads to; a model that has not changed keeps its Endpoints and
	// Traits, the very same, so that a change costs what changed.
	Models() ([]Model, <-chan struct{})
}

// A Starter is a source with work to do in the background. Start begins it
// once the whole configuration is in order; the module's Cleanup ends it.
type Starter interface{ Start() error }

// A Settler is a source that needs time to look around. Until it is settled
// an unknown model is not refused for good. The channel that Models returns is
// closed also when the source settles.
type Settler interface{ Settled() bool }

// A Model is one of a source's models with the endpoints that serve it. A
// source that serves a single model's block leaves Name empty.
type Model struct {
	Name string

	// Aliases are other names for the model. One that is the name of
	// another model stands for that one, unless the source has Traits for
	// its models.
	Aliases []string

	// Adapters are the names of its LoRA adapters, which stay in the body.
	Adapters []string

	Endpoints []Spec

	// Traits is what else the source knows, nil if that is nothing. Of the
	// traits of a model's block only the State counts, while there is no
	// endpoint.
	Traits *Traits
}

// Traits are what a source may know of a model beyond where it is served. The
// zero value of each means that the source does not say, and the configuration
// holds. They do not change; a change makes new ones.
type Traits struct {
	// Strategy is the name of the strategy that picks, as users type it, and
	// Options what follows it: name=value pairs, separated by commas. With
	// one that is not known, or has such options, calls go to the Service.
	Strategy, Options string

	// Service is where calls go when no endpoint can be picked.
	Service *Spec

	// ServePaths are the beginnings of the paths that the model serves. None
	// stands for all.
	ServePaths []string

	// Groups are the labels of which the model claims a share: a call for
	// one goes to one of the models that claim it. Only those with the
	// highest Priority of the ones that can serve get any.
	Groups   []string
	Priority int

	// ContextWindow is the model's, in tokens.
	ContextWindow int

	// ColdStart is how long the model may take to wake.
	ColdStart time.Duration

	// State says whether the model serves calls. The zero State is that it
	// does, as far as it has endpoints.
	State State

	// Activator wakes the model when it is [Asleep]; nil if nobody does.
	Activator Activator

	// Created is the Unix time at which the model came to be.
	Created int64

	// Metadata is what /v1/models says of it besides.
	Metadata map[string]any
}

// A State says whether a model serves calls.
type State struct {
	Phase Phase

	// Message is why not, for people. It is bounded and one line.
	Message string

	// Substage is what a model does that loads, in a word.
	Substage string

	// RetryAfter is when to ask again, 0 if that is not known.
	RetryAfter time.Duration
}

// A Phase is a stage in the life of a model that may sleep.
type Phase uint8

// The phases.
const (
	// Serving: calls go to the model's endpoints or its service.
	Serving Phase = iota

	// Asleep: calls wait in the model's queue until it is awake. It is
	// woken, unless it wakes already.
	Asleep

	// Failed: it could not be woken. Calls that wait are refused; those that
	// come later have it tried again.
	Failed

	// Stalled: it wakes, and gets nowhere. Calls are refused, those that wait
	// and those that come.
	Stalled

	// Parked: it is not to be served. Calls are refused as if there were no
	// such model, and do not wake it.
	Parked

	// Preempted: another model has taken its place for good. Calls are
	// refused for now, and do not wake it.
	Preempted
)

// Refuses reports whether calls are refused in this phase rather than wait.
func (p Phase) Refuses() bool { return p == Stalled || p == Parked || p == Preempted }

// String returns the phase in one word.
func (p Phase) String() string {
	return [...]string{"serving", "asleep", "failed", "stalled", "parked", "preempted"}[p]
}

// An Activator wakes models that sleep. Its methods may be called at any time
// and from any goroutine. It is a pointer, or comparable otherwise.
//
// One that has models stay awake while they are used is a [Keeper] too, one
// that tells others how many calls wait a [Herald], and one that finds out by
// itself whether its model is awake a [Watcher] and perhaps a [Doubter].
type Activator interface {
	// Activate asks for a model to be woken and returns as soon as that is
	// under way; an error says that it is not. It is called once at a time
	// for a model, however many calls wait, and again after a while for one
	// that did not wake. The context ends when no call waits any more.
	Activate(ctx context.Context, model string) error
}

// A Keeper is an activator that wants to know of the calls for its models.
type Keeper interface {
	// Use says that a call for the model begins. The caller calls done when
	// the call has ended, once. Neither does I/O. A background call is one
	// that is no reason to keep the model awake once it has ended.
	Use(model string, background bool) (done func())
}

// A Herald is an activator that tells others how many calls wait.
type Herald interface {
	// Waiting says how many calls wait for the model now. It does no I/O; of
	// calls in quick succession the last counts.
	Waiting(model string, calls int)
}

// A Doubter is an activator that finds out anew whether its model is awake when
// a call could not even connect to it.
type Doubter interface {
	// Refused says that a call could not. It does no I/O.
	Refused()
}

// A Watcher is an activator of a single model that knows whether it is awake.
// Without one a source's word counts.
type Watcher interface {
	// State returns what is known now and a channel that is closed when
	// something else is. It does no I/O.
	State() (State, <-chan struct{})
}
