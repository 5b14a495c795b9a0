package app

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/queue"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Queue says how calls wait for a model that sleeps, or whose endpoints all
// have as many calls as they may. Each model has a queue of its own, first in,
// first out.
type Queue struct {
	// How many calls may wait for a model, 1 or more. One more is refused
	// with 503. Default: `100`.
	MaxSize int `json:"max_size,omitempty"`

	// How long a call may wait; or as long as the model may take to wake, if
	// that is longer. Then it is refused with 504. Default: `60s`.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How long a model may take to wake. Then the calls that wait for it are
	// refused with 503. Default: `60s`.
	ColdStartTimeout caddy.Duration `json:"cold_start_timeout,omitempty"`

	// How long a FlexInfer model may load its weights without getting on.
	// Then its calls are refused with 503. Default: `120s`.
	StalledLoad caddy.Duration `json:"stalled_load,omitempty"`

	// How often waking a model is tried again if asking for it fails.
	// Default: never.
	Backoff *Backoff `json:"backoff,omitempty"`
}

// Backoff is the pauses between attempts to wake a model: initial × 2ⁿ before
// retry n, at most max, times a random factor from 0.5 to 1.5.
type Backoff struct {
	// How many attempts may follow the first, 1 or more.
	Retries int `json:"retries"`

	// Half of the pause before the first of them. Default: `5s`.
	Initial caddy.Duration `json:"initial,omitempty"`

	// The longest pause. Default: `30s`.
	Max caddy.Duration `json:"max,omitempty"`
}

// defaultQueue is the options where nothing is set.
var defaultQueue = Queue{
	MaxSize:          100,
	Timeout:          caddy.Duration(60 * time.Second),
	ColdStartTimeout: caddy.Duration(60 * time.Second),
	StalledLoad:      caddy.Duration(120 * time.Second),
}

const (
	defaultBackoffInitial = 5 * time.Second
	defaultBackoffMax     = 30 * time.Second
)

// over returns q with what it leaves out as in base. q may be nil.
func (q *Queue) over(base Queue) Queue {
	if q == nil {
		return base
	}
	base.MaxSize = cmp.Or(q.MaxSize, base.MaxSize)
	base.Timeout = cmp.Or(q.Timeout, base.Timeout)
	base.ColdStartTimeout = cmp.Or(q.ColdStartTimeout, base.ColdStartTimeout)
	base.StalledLoad = cmp.Or(q.StalledLoad, base.StalledLoad)
	base.Backoff = cmp.Or(q.Backoff, base.Backoff)
	return base
}

func (q *Queue) validate() error {
	if q == nil {
		return nil
	}
	err := noneNegative(
		number{"max_size", int64(q.MaxSize)}, number{"timeout", int64(q.Timeout)},
		number{"cold_start_timeout", int64(q.ColdStartTimeout)}, number{"stalled_load", int64(q.StalledLoad)})
	if err != nil || q.Backoff == nil {
		return err
	}
	if err := q.Backoff.Check(); err != nil {
		return fmt.Errorf("backoff: %w", err)
	}
	return nil
}

// Check returns an error if b cannot be.
func (b *Backoff) Check() error {
	initial, most := cmp.Or(time.Duration(b.Initial), defaultBackoffInitial), cmp.Or(time.Duration(b.Max), defaultBackoffMax)
	switch {
	case b.Retries < 1:
		return fmt.Errorf("%d retries; write 1 or more, or leave backoff out", b.Retries)
	case initial < 0, most < 0:
		return errors.New("a pause is negative; leave it out for its default")
	case most < initial:
		return fmt.Errorf("the longest pause, %s, is below the initial %s; write them the other way round", most, initial)
	}
	return nil
}

// config returns how often waking is tried. b may be nil.
func (b *Backoff) config() queue.Backoff {
	if b == nil {
		return queue.Backoff{}
	}
	return queue.Backoff{
		Retries: b.Retries,
		Initial: cmp.Or(time.Duration(b.Initial), defaultBackoffInitial),
		Max:     cmp.Or(time.Duration(b.Max), defaultBackoffMax),
	}
}

// StalledLoad returns how long a FlexInfer model may load its weights without
// getting on.
func (a *App) StalledLoad() time.Duration {
	return time.Duration(a.Queue.over(defaultQueue).StalledLoad)
}

// CheckLabelGroups returns an error if LabelGroups cannot be value.
func CheckLabelGroups(value string) error {
	modes := make([]string, len(catalog.GroupModes))
	for i, m := range catalog.GroupModes {
		modes[i] = string(m)
	}
	return checkChoice("label_groups", value, modes)
}

// groupMode returns how a label's calls find their model.
func (a *App) groupMode() catalog.GroupMode {
	return cmp.Or(catalog.GroupMode(a.LabelGroups), catalog.GroupRoundRobin)
}

const activatorNamespace = "flexinfer.activators"

// ParseActivator reads the activator at the dispenser's current token, with
// its options, into a module's JSON.
func ParseActivator(d *caddyfile.Dispenser) (json.RawMessage, error) {
	return parseGuest[routing.Activator](d, activatorNamespace, "activator", "an activator")
}

// A Named activator wants to know which model it is for.
type Named interface{ Name(model string) }

// A Counter is an activator that wants to know how many calls are in flight at
// its model's endpoints, those of other configurations as well.
type Counter interface{ Watches(inflight func() int) }

// loadActivator loads a model's activator and notes whether Start starts it. A
// model without has nil.
func (a *App) loadActivator(ctx caddy.Context, m *Model) (routing.Activator, error) {
	if m.ActivateRaw == nil {
		return nil, nil
	}
	v, err := ctx.LoadModule(m, "ActivateRaw")
	if err != nil {
		return nil, fmt.Errorf("loading activator: %w", err)
	}
	act, ok := v.(routing.Activator)
	if !ok {
		return nil, fmt.Errorf("module %T is not an activator", v)
	}
	if n, ok := v.(Named); ok {
		n.Name(m.Name)
	}
	if c, ok := v.(Counter); ok {
		c.Watches(func() int { return a.state.inflight(m.Name) })
	}
	return act, a.adopt(ctx, v)
}
