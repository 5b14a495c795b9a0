package caddyfile

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/caddy/v2/modules/metrics"

	"github.com/flexinfer/caddy-flexinfer/modules/gateway"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

// passedOn are the subdirectives of reverse_proxy that the flexinfer directive
// passes on: they decide neither where a call goes nor when a stream flows.
var passedOn = []string{
	"flush_interval", "handle_response", "header_down", "header_up", "proxy_status_name", "replace_status",
	"rewrite", "stream_buffer_size", "stream_close_delay", "stream_timeout", "trusted_proxies", "verbose_logs",
}

// refused says of other subdirectives of reverse_proxy what to write instead.
var refused = map[string]string{
	"to":                      `name upstreams after the directive, or in a model block of the global flexinfer option: to <addresses...>`,
	"dynamic":                 `models and their endpoints come from the global flexinfer option: model <name> { ... }`,
	"lb_policy":               `write: routing <strategy>`,
	"lb_retries":              inGlobal + `retries <count>`,
	"lb_retry_match":          inGlobal + `retries <count> { on <statuses...> }`,
	"lb_try_duration":         inGlobal + `retries <count>`,
	"lb_try_interval":         inGlobal + `retries <count>`,
	"request_buffers":         `requests are read to their end anyway; write in the global flexinfer option: max_body <size>`,
	"response_buffers":        `a buffered answer holds streams back; leave it out`,
	"method":                  `a call keeps its method; leave it out`,
	"transport":               `write times in the global flexinfer option: timeouts { ... }; for the rest compose the site by hand: route { flexinfer_call; reverse_proxy { dynamic flexinfer; lb_policy flexinfer; transport flexinfer { ... } } }`,
	"max_fails":               inGlobal + `health { eject_after <count> }`,
	"fail_duration":           inGlobal + `health { eject_for <duration> }`,
	"unhealthy_status":        inGlobal + `health { unhealthy_status <statuses...> }`,
	"unhealthy_latency":       inGlobal + `timeouts { first_byte <duration> }`,
	"unhealthy_request_count": `a strategy picks by load; write: routing least-loaded`,
	"health_uri":              inGlobal + `health { uri <path> }`,
	"health_interval":         inGlobal + `health { interval <duration> }`,
	"health_timeout":          inGlobal + `health { timeout <duration> }`,
	"health_passes":           inGlobal + `health { passes <count> }`,
	"health_fails":            inGlobal + `health { fails <count> }`,
}

// inGlobal says where options are that hold for a model wherever it is used.
const inGlobal = `write in the global flexinfer option: `

// parseSite sets up the whole gateway: health, metrics and the list of models,
// everything else proxied. Syntax:
//
//	flexinfer [<matcher>] [<upstreams...>] {
//	    routing <strategy> [<options...>]
//
//	    # as in reverse_proxy
//	    header_up   [+|-]<field> [<value|regexp> [<replacement>]]
//	    header_down [+|-]<field> [<value|regexp> [<replacement>]]
//	    trusted_proxies [private_ranges] <ranges...>
//	    rewrite <to>
//	    flush_interval     <duration>
//	    stream_buffer_size <size>
//	    stream_timeout     <duration>
//	    stream_close_delay <duration>
//	    verbose_logs
//	    proxy_status_name <name>
//	    @name {
//	        status <code...>
//	        header <field> [<value>]
//	    }
//	    replace_status  [<matcher>] <status_code>
//	    handle_response [<matcher>] {
//	        <directives...>
//	    }
//	}
//
// With upstreams the models are those that the upstreams list, and each call
// goes to the upstreams that list its model; else they are those of the global
// option. The directive
//
//	flexinfer
//
// is the same as
//
//	metrics /metrics
//	route {
//	    flexinfer_call # which also answers /healthz, /readyz and /v1/models here
//	    reverse_proxy {
//	        dynamic   flexinfer
//	        lb_policy flexinfer
//	        transport flexinfer
//	    }
//	}
func parseSite(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	if !h.Next() {
		return nil, h.ArgErr()
	}

	// the user's matcher is a prerequisite of all routes below
	userMatcherSet, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}

	// what is left in the dispenser after this is for reverse_proxy
	h.Next() // consume directive name
	at := *h.Dispenser
	d := h.NewFromNextSegment()
	handler, err := takeSiteOptions(d)
	if err != nil {
		return nil, err
	}
	if handler.SourcesRaw == nil && h.Option("flexinfer") == nil {
		return nil, at.Err("no models: name upstreams, such as: flexinfer 10.0.0.5:8000, or declare models in the global option: { flexinfer { model <name> { ... } } }")
	}

	proxy := new(reverseproxy.Handler)
	if err := proxy.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	if err := proxy.FinalizeUnmarshalCaddyfile(h); err != nil {
		return nil, err
	}
	proxy.DynamicUpstreamsRaw = json.RawMessage(`{"source":"flexinfer"}`)
	proxy.LoadBalancing = &reverseproxy.LoadBalancing{SelectionPolicyRaw: json.RawMessage(`{"policy":"flexinfer"}`)}
	proxy.TransportRaw = json.RawMessage(`{"protocol":"flexinfer"}`)

	subroute := caddyhttp.Subroute{Routes: caddyhttp.RouteList{
		{
			MatcherSetsRaw: []caddy.ModuleMap{{"path": h.JSON(caddyhttp.MatchPath{"/metrics"})}},
			HandlersRaw:    []json.RawMessage{caddyconfig.JSONModuleObject(metrics.Metrics{}, "handler", "metrics", nil)},
		},
		{
			HandlersRaw: []json.RawMessage{
				caddyconfig.JSONModuleObject(handler, "handler", "flexinfer", nil),
				caddyconfig.JSONModuleObject(proxy, "handler", "reverse_proxy", nil),
			},
		},
	}}
	if userMatcherSet != nil {
		return []httpcaddyfile.ConfigValue{{
			Class: "route",
			Value: caddyhttp.Route{
				MatcherSetsRaw: []caddy.ModuleMap{userMatcherSet},
				HandlersRaw:    []json.RawMessage{caddyconfig.JSONModuleObject(subroute, "handler", "subroute", nil)},
			},
		}}, nil
	}
	return []httpcaddyfile.ConfigValue{{Class: "route", Value: subroute}}, nil
}

// takeSiteOptions reads the directive's own arguments and subdirectives out of
// d, and rewinds it.
func takeSiteOptions(d *caddyfile.Dispenser) (*gateway.Handler, error) {
	handler := &gateway.Handler{Operations: true}

	d.Next() // consume directive name
	var ups upstreams
	for d.NextArg() {
		if err := ups.add(d.Val()); err != nil {
			return nil, d.WrapErr(err)
		}
	}
	d.DeleteN(len(ups.list))
	if len(ups.list) > 0 {
		handler.SourcesRaw = []json.RawMessage{caddyconfig.JSONModuleObject(
			&sources.UpstreamModels{Upstreams: ups.list}, "source", "upstream_models", nil)}
	}

	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		if name != "routing" {
			if err := checkSubdirective(d, name); err != nil {
				return nil, err
			}
			d.NextSegment() // skip
			continue
		}
		if handler.StrategyRaw != nil {
			return nil, d.Err("routing is there twice in flexinfer; keep one")
		}
		segment := d.NextSegment()
		own := caddyfile.NewDispenser(segment)
		own.Next()
		if err := strategyInto(&handler.StrategyRaw)(own); err != nil {
			return nil, err
		}
		n := len(segment)
		if segment[n-1].Text != d.Val() {
			n += 2 // an empty block, which is not part of the segment
		}
		d.DeleteN(n)
	}
	d.Reset()
	return handler, nil
}

// ofGlobal are options of the global option, which hold for all sites.
var ofGlobal = []string{
	"health", "max_body", "max_tokens_clamp", "model", "response_model", "retries", "timeouts", "usage_metrics", "validate_requests",
}

// checkSubdirective returns an error if reverse_proxy is not to see the
// subdirective that is d's current token.
func checkSubdirective(d *caddyfile.Dispenser, name string) error {
	instead, ok := refused[name]
	switch {
	case strings.HasPrefix(name, "@"), slices.Contains(passedOn, name):
		return nil
	case slices.Contains(ofGlobal, name):
		return d.Errf("%s holds for all sites; write it in the global option: { flexinfer { %s ... } }", name, name)
	case ok:
		return d.Errf("%s does not belong in flexinfer: %s", name, instead)
	case places[name] != "" && name != "model":
		return d.Errf("%s does not belong in flexinfer here; write it in %s", name, places[name])
	case strings.HasPrefix(name, "health_"):
		return d.Errf("%s does not belong in flexinfer: %shealth { uri <path> }", name, inGlobal)
	}
	return d.Errf("unknown subdirective %q in flexinfer; known: routing, and of reverse_proxy: %s", name, strings.Join(passedOn, ", "))
}
