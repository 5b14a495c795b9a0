package activators

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Watch says how to find out whether a model is awake, and when to stop it.
type Watch struct {
	// The request that a model answers well when it serves calls. It is made
	// each 200 ms at first while the model wakes, then each second, and has
	// 2 s to be answered. When the gateway starts, calls wait until it has
	// been made once: an answer other than a good one, or none, means that
	// the model sleeps. Later three in a row do, or a connection that is
	// refused. It is also made when a call finds no connection to the model,
	// as when the gateway starts.
	Ready *Request `json:"ready"`

	// How often the request is made otherwise, 100ms or more. Default: `10s`.
	Interval caddy.Duration `json:"interval,omitempty"`

	// After how long without a call the model is stopped; `0` is never.
	// Default: `10m`.
	IdleTimeout *caddy.Duration `json:"idle_timeout,omitempty"`

	model  string
	dial   dialFunc
	key    any // in the pool; nil if nothing is held
	engine *engine
	plan   *plan
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

const (
	defaultIdleTimeout = 10 * time.Minute
	shortestInterval   = 100 * time.Millisecond
)

func (w *Watch) validate() error {
	if w.Ready == nil {
		return errors.New("nothing says when the model is awake; write, for example, ready GET http://10.0.0.5:8000/health")
	}
	if err := w.Ready.validate("ready"); err != nil {
		return err
	}
	if w.Interval != 0 && time.Duration(w.Interval) < shortestInterval {
		return fmt.Errorf("interval is %s; write a time of %s or more, such as 10s", time.Duration(w.Interval), shortestInterval)
	}
	if w.IdleTimeout != nil && *w.IdleTimeout < 0 {
		return fmt.Errorf("idle_timeout is %s; write a time, such as 10m, or 0 for never", time.Duration(*w.IdleTimeout))
	}
	return nil
}

// provision makes the plan of a configuration that is valid.
func (w *Watch) provision(key any, l lever) error {
	if w.Interval == 0 {
		w.Interval = caddy.Duration(defaultInterval)
	}
	idle := defaultIdleTimeout
	if w.IdleTimeout != nil {
		idle = time.Duration(*w.IdleTimeout)
	}
	ready, err := w.Ready.provision("ready", "GET")
	if err != nil {
		return err
	}
	w.plan = &plan{ready: ready, interval: time.Duration(w.Interval), idle: idle, lever: l}
	if w.engine, err = loadEngine(key, w.dial); err != nil {
		return err
	}
	w.key = key
	return nil
}

// Name says which model is woken; it is for the log alone.
func (w *Watch) Name(model string) { w.model = model }

// Watches gives w what counts the calls that are under way at the model's
// endpoints, of all configurations. While there are any the model is not idle.
// It is called before Start.
func (w *Watch) Watches(inflight func() int) { w.plan.inflight = inflight }

// Start begins to ask whether the model is awake, unless an earlier
// configuration has.
func (w *Watch) Start() error {
	w.engine.begin(w.plan, w.model)
	return nil
}

// Cleanup ends what Provision and Start began. What calls that are still under
// way use stays valid.
func (w *Watch) Cleanup() error {
	if w.key == nil {
		return nil
	}
	key := w.key
	w.key = nil
	w.engine.end(w.plan)
	_, err := engines.Delete(key)
	return err
}

// Activate implements [routing.Activator].
func (w *Watch) Activate(ctx context.Context, model string) error {
	return w.engine.activate(ctx, w.plan, model)
}

// Use implements [routing.Keeper].
func (w *Watch) Use(model string, _ bool) (done func()) { return w.engine.use(model) }

// Refused says that a call could not even connect to the model. It does no I/O.
// The model is probed at once; until it has answered, calls wait.
func (w *Watch) Refused() { w.engine.refused() }

// State implements [routing.Watcher].
func (w *Watch) State() (routing.State, <-chan struct{}) { return w.engine.State() }

// unmarshal reads a block of the options in more, and those of w. The next token
// is the module's name. What lacks is said by validate, with its line.
func (w *Watch) unmarshal(d *caddyfile.Dispenser, validate func() error, more map[string]func(*caddyfile.Dispenser) error) error {
	d.Next()
	name := d.Val()
	at := *d
	if d.NextArg() {
		return d.Errf("%s takes no arguments; its options are written in braces after it", name)
	}
	options := map[string]func(*caddyfile.Dispenser) error{
		"ready":    requestInto(&w.Ready),
		"interval": durationInto(&w.Interval, "10s"),
		"idle_timeout": func(d *caddyfile.Dispenser) error {
			w.IdleTimeout = new(caddy.Duration)
			return durationInto(w.IdleTimeout, "10m")(d)
		},
	}
	maps.Copy(options, more)
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		read, ok := options[option]
		switch {
		case !ok:
			return d.Errf("%s has no option %s; write one of: %s", name, option, strings.Join(slices.Sorted(maps.Keys(options)), ", "))
		case seen[option] && option != "env":
			return d.Errf("%s is there twice; keep one", option)
		}
		seen[option] = true
		if err := read(d); err != nil {
			return err
		}
		if d.NextBlock(d.Nesting()) {
			return d.Errf("%s takes no block", option)
		}
	}
	if err := validate(); err != nil {
		return at.WrapErr(err)
	}
	return nil
}

// requestInto reads an option that is a request.
func requestInto(r **Request) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		*r = new(Request)
		return (*r).unmarshal(d)
	}
}

// durationInto reads an option that is a time.
func durationInto(into *caddy.Duration, example string) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		name := d.Val()
		args := d.RemainingArgs()
		if len(args) != 1 {
			return d.Errf("%s takes one time, such as: %s %s", name, name, example)
		}
		t, err := caddy.ParseDuration(args[0])
		if err != nil || t < 0 {
			return d.Errf("%s is %q; write a time, such as %s", name, args[0], example)
		}
		*into = caddy.Duration(t)
		return nil
	}
}
