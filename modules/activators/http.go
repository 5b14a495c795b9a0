// Package activators holds the modules that wake models.
package activators

import (
	"context"
	"errors"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(HTTP))
}

// HTTP wakes a model by a request to whatever starts its engine, and stops it by
// another when the model is not used. What is known of the model lives across
// reloads; a model that leaves the configuration is not stopped.
//
// Models with the same ready request are taken to have the same engine.
type HTTP struct {
	// The request that starts the engine. It may be answered before the
	// engine is awake. It is given up when no call has waited for 5 s, and
	// not made again within 5 s after a good answer, unless the engine was
	// awake since.
	StartRequest *Request `json:"start"`

	// The request that stops it when it is idle. Without one it is never
	// stopped, and idle_timeout is an error. Until it has ceased to answer,
	// for 30 s at most, it is not started again. A gateway knows of its own
	// calls only, and of all of those to the model's endpoints: where several
	// gateways serve the model, each would stop it under the others.
	StopRequest *Request `json:"stop,omitempty"`

	Watch

	start, stop *action
}

// httpKey says which engine it is.
type httpKey struct{ method, url string }

// CaddyModule returns the Caddy module information.
func (*HTTP) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.activators.http",
		New: func() caddy.Module { return new(HTTP) },
	}
}

// Provision sets up h. It makes no request.
func (h *HTTP) Provision(caddy.Context) (err error) {
	if err := h.Validate(); err != nil {
		return err
	}
	if h.start, err = h.StartRequest.provision("start", "POST"); err != nil {
		return err
	}
	if h.StopRequest != nil {
		if h.stop, err = h.StopRequest.provision("stop", "POST"); err != nil {
			return err
		}
	}
	if err := h.provision(httpKey{h.Ready.Method, h.Ready.URL}, httpLever{h}); err != nil {
		return err
	}
	h.plan.start = h.start
	return nil
}

// Validate returns an error if h cannot work.
func (h *HTTP) Validate() error {
	if h.StartRequest == nil {
		return errors.New("nothing starts the model; write, for example, start POST http://10.0.0.9:9000/start")
	}
	if err := h.StartRequest.validate("start"); err != nil {
		return err
	}
	if h.StopRequest != nil {
		if err := h.StopRequest.validate("stop"); err != nil {
			return err
		}
	}
	if err := h.validate(); err != nil {
		return err
	}
	if h.StopRequest == nil && h.IdleTimeout != nil && *h.IdleTimeout > 0 {
		return errors.New("idle_timeout needs a request that stops the model; write, for example, stop POST http://10.0.0.9:9000/stop, or leave out idle_timeout")
	}
	return nil
}

// httpLever makes the requests that start and stop an engine.
type httpLever struct{ *HTTP }

func (h httpLever) on(ctx context.Context, e *engine, _ string) error {
	return e.start(ctx, h.plan)
}

func (h httpLever) off(ctx context.Context, e *engine) error {
	limited, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := h.stop.do(limited, e.client); err != nil {
		return err
	}
	return e.settle(ctx, h.plan)
}

func (h httpLever) can(e *engine) bool { return h.stop != nil && e.awake }

func (httpLever) leave(*engine) {}

// UnmarshalCaddyfile sets up h. Syntax:
//
//	http {
//	    start [<method>] <url> {
//	        header <field> <value>
//	        body   <text>
//	    }
//	    ready [<method>] <url> {
//	        ...
//	    }
//	    stop  [<method>] <url> {
//	        ...
//	    }
//	    interval     <duration>
//	    idle_timeout <duration>
//	}
//
// Methods are POST unless given, and GET for ready. Of the options only start
// and ready have to be there. `header` may be repeated.
func (h *HTTP) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return h.unmarshal(d, h.Validate, map[string]func(*caddyfile.Dispenser) error{
		"start": requestInto(&h.StartRequest),
		"stop":  requestInto(&h.StopRequest),
	})
}

// Interface guards
var (
	_ caddy.Module          = (*HTTP)(nil)
	_ caddy.Provisioner     = (*HTTP)(nil)
	_ caddy.Validator       = (*HTTP)(nil)
	_ caddy.CleanerUpper    = (*HTTP)(nil)
	_ caddyfile.Unmarshaler = (*HTTP)(nil)
	_ routing.Starter       = (*HTTP)(nil)
	_ routing.Activator     = (*HTTP)(nil)
	_ routing.Keeper        = (*HTTP)(nil)
	_ routing.Watcher       = (*HTTP)(nil)
)
