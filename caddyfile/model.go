package caddyfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

// parseModel reads a model. Syntax:
//
//	model <name> [<addresses...>] {
//	    alias   <names...>
//	    adapter <names...>
//	    routing <strategy> [<options...>]
//	    to <addresses...> {
//	        model  <name>
//	        weight <1-100>
//	        label  <name> <value>
//	        header <field> <value>
//	        max_inflight <calls>
//	    }
//	    endpoints <namespace>/<service>[:<port>]
//	    selector  <namespace> <labels> [<port>]
//	    pods      <namespace> <labels> <port>
//	    source  <module> [<options...>]
//	    service <address>
//	    service_label <labels...>
//	    priority <number>
//	    activate <activator> [<options...>]
//	    cold_start_timeout <duration>
//	    context_window <tokens>|auto
//	    retries [<count>] {
//	        <options...>
//	    }
//	    timeouts {
//	        first_byte <duration>
//	        gap        <duration>
//	    }
//	    health {
//	        <options...>
//	    }
//	}
//
// An address is host:port, or a URL with the scheme http, https or h2c and
// perhaps a base path. The properties in the block of `to` are those of each
// of its addresses. `endpoints`, `selector` and `pods` find endpoints in
// a Kubernetes cluster, see [sources.Kubernetes], and may have such a block too.
// `source` is for other modules that discover endpoints. All of these may be
// repeated, as may `alias`, `adapter`, `service_label`, `label` and `header`. The
// options of `retries` and `health` are those of the global option; what a model
// leaves out there is as it says.
func (g *global) parseModel(d *caddyfile.Dispenser) (*app.Model, error) {
	if !d.NextArg() {
		return nil, d.Err("a model needs a name: model <name> { ... }")
	}
	at := *d
	m := &app.Model{Name: d.Val()}
	if err := g.names.Add("model", m.Name, m.Name); err != nil {
		return nil, d.WrapErr(err)
	}
	var ups upstreams
	for d.NextArg() {
		if err := ups.add(d.Val()); err != nil {
			return nil, d.WrapErr(err)
		}
	}
	var discovered []json.RawMessage
	err := readBlock(d, fmt.Sprintf("model %q", m.Name), map[string]option{
		"alias": words("qwen-latest", func(name string) error {
			m.Aliases = append(m.Aliases, name)
			return g.names.Add("alias", name, m.Name)
		}),
		"adapter": words("my-lora", func(name string) error {
			m.Adapters = append(m.Adapters, name)
			return g.names.Add("adapter", name, m.Name)
		}),
		"routing": {read: strategyInto(&m.RoutingRaw)},
		"to":      {many: true, read: ups.parseTo},
		"source": {many: true, read: func(d *caddyfile.Dispenser) error {
			raw, err := parseSource(d)
			discovered = append(discovered, raw)
			return err
		}},
		"endpoints": discoveryInto(&discovered),
		"selector":  discoveryInto(&discovered),
		"pods":      discoveryInto(&discovered),
		"service": word("qwen3-8b.models.svc:8000", func(address string) error {
			m.Service = address
			if _, err := sources.ParseAddress(address); err != nil {
				return fmt.Errorf("service: %w", err)
			}
			return nil
		}),
		"service_label": words("chat", func(label string) error {
			m.ServiceLabels = append(m.ServiceLabels, label)
			return sources.CheckName(label)
		}),
		"priority":           value("100", wholeNumber, func(n int) { m.Priority = n }),
		"activate":           {read: activateInto(&m.ActivateRaw)},
		"cold_start_timeout": value("60s", timeAbove0, func(t caddy.Duration) { m.ColdStartTimeout = t }),

		"context_window": windowInto(m),
		"retries":        retriesInto(&m.Retries),
		"timeouts":       timeoutsInto(&m.Timeouts, true),
		"health":         g.healthTimes(healthInto(&m.Health), &m.Health, g.health),
	})
	if err != nil {
		return nil, err
	}
	if len(ups.list) > 0 {
		m.SourcesRaw = append(m.SourcesRaw, caddyconfig.JSONModuleObject(
			&sources.Static{Upstreams: ups.list}, "source", "static", nil))
	}
	m.SourcesRaw = append(m.SourcesRaw, discovered...)
	if len(m.SourcesRaw) == 0 && m.Service == "" {
		return nil, at.Errf("model %q has nowhere to send its calls: list its engines, to <host:port...>, or name a service", m.Name)
	}
	return m, nil
}

// upstreams collects upstreams, none of them twice.
type upstreams struct {
	list []sources.Upstream
	seen map[string]bool
}

// add appends the upstream at address.
func (u *upstreams) add(address string) error {
	spec, err := sources.ParseAddress(address)
	if err != nil {
		return err
	}
	if u.seen[spec.URL()] {
		return fmt.Errorf("upstream %q is there twice; to send it more, give it a weight", address)
	}
	if u.seen == nil {
		u.seen = make(map[string]bool)
	}
	u.seen[spec.URL()] = true
	u.list = append(u.list, sources.Upstream{Address: address})
	return nil
}

// parseTo reads a line of addresses and the block of properties that they
// share.
func (u *upstreams) parseTo(d *caddyfile.Dispenser) error {
	first := len(u.list)
	for d.NextArg() {
		if err := u.add(d.Val()); err != nil {
			return d.WrapErr(err)
		}
	}
	if len(u.list) == first {
		return d.Err("to needs an address, such as: to 10.0.0.5:8000")
	}
	var shared sources.Upstream
	err := readBlock(d, "to", map[string]option{
		"model": word("Qwen/Qwen3-8B", func(name string) error {
			shared.Model = name
			return sources.CheckUpstreamModel(name)
		}),
		"weight": value("2", weight, func(n int) { shared.Weight = n }),

		"max_inflight": value("8", numberFrom(1), func(n int) { shared.MaxInflight = n }),

		"label":  pair("region eu", &shared.Labels, func(_, _ string) error { return nil }),
		"header": pair(`Authorization "Bearer {env.KEY}"`, &shared.Headers, sources.CheckHeader),
	})
	if err != nil {
		return err
	}
	for i := range u.list[first:] {
		up := &u.list[first+i]
		up.Model, up.Weight, up.Labels, up.Headers = shared.Model, shared.Weight, shared.Labels, shared.Headers
		up.MaxInflight = shared.MaxInflight
	}
	return nil
}

func weight(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || sources.CheckWeight(n) != nil {
		return 0, errors.New("a number from 1 to 100")
	}
	return n, nil
}

// pair returns an option that takes a name and a value, and may be repeated
// with other names.
func pair(example string, into *map[string]string, check func(name, value string) error) option {
	return option{many: true, read: func(d *caddyfile.Dispenser) error {
		what := d.Val()
		var name, value string
		if !d.Args(&name, &value) {
			return d.Errf("%s needs a name and a value, such as: %s %s", what, what, example)
		}
		if err := check(name, value); err != nil {
			return d.WrapErr(err)
		}
		if what == "header" {
			name = http.CanonicalHeaderKey(name)
		}
		if _, ok := (*into)[name]; ok {
			return d.Errf("%s %s is there twice; keep one", what, name)
		}
		if *into == nil {
			*into = make(map[string]string)
		}
		(*into)[name] = value
		return endLine(d, what)
	}}
}

// parseSource reads a module that discovers endpoints.
func parseSource(d *caddyfile.Dispenser) (json.RawMessage, error) {
	if !d.NextArg() {
		return nil, d.Err("source needs the name of a module of flexinfer.sources")
	}
	name := d.Val()
	module, err := caddyfile.UnmarshalModule(d, "flexinfer.sources."+name)
	if err != nil {
		return nil, err
	}
	if _, ok := module.(routing.Source); !ok {
		return nil, d.Errf("module flexinfer.sources.%s (%T) is not a source of endpoints", name, module)
	}
	return caddyconfig.JSONModuleObject(module, "source", name, nil), nil
}
