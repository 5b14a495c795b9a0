package caddyfile

import (
	"encoding/json"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
)

// parseGlobalOption sets up the flexinfer app from Caddyfile tokens. Syntax:
//
//	flexinfer {
//	    routing <strategy> [<options...>]
//	    model   <name> [<addresses...>] {
//	        ...
//	    }
//	    keys {
//	        explicit_key_max_length     <characters>
//	        system_segment_max_length   <bytes>
//	        document_segment_max_length <bytes>
//	        session_header              <fields...>
//	        session_field               <dotted_paths...>
//	    }
//	    max_body <size>
//	    retries [<count>] {
//	        on     <statuses...>|5xx|reset
//	        budget <percent>% <floor>
//	    }
//	    timeouts {
//	        dial       <duration>
//	        first_byte <duration>
//	        gap        <duration>
//	        keepalive  <duration>
//	    }
//	    health {
//	        eject_after      <count>
//	        eject_for        <duration>
//	        eject_for_max    <duration>
//	        max_ejected      <percent>%
//	        unhealthy_status <statuses...>|5xx
//	        uri              <path>
//	        interval         <duration>
//	        timeout          <duration>
//	        passes           <count>
//	        fails            <count>
//	    }
//	    queue {
//	        max_size           <calls>
//	        timeout            <duration>
//	        cold_start_timeout <duration>
//	        stalled_load       <duration>
//	        backoff            <retries> [<initial> [<max>]]
//	    }
//	    label_groups    <mode>
//	    reservation_ttl <duration>
//	    ledger {
//	        bucket <duration>
//	        ttl    <duration>
//	    }
//	    max_tokens_clamp [on|off] {
//	        prompt_reserve <tokens>|auto
//	    }
//	    response_model    asked|upstream
//	    usage_metrics     client|always
//	    validate_requests on|off
//	    debug_header      off|private|all
//	    env_ignore        <variables...>
//	    kubernetes {
//	        namespace    <namespaces...>|*
//	        kubeconfig   <path>
//	        context      <name>
//	        api_group    <group>
//	        gpu_groups   on|off
//	        sync_timeout <duration>
//	    }
//	}
//
// The options of a model are listed at parseModel; what may follow a strategy
// is the strategy's own affair. `model`, `session_header`, `session_field`,
// `on`, `unhealthy_status` and `env_ignore` may be repeated.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // consume option name
	if existing != nil {
		return nil, d.Err("there are two flexinfer blocks; write all options in one")
	}
	if d.NextArg() {
		return nil, d.Errf("flexinfer takes no %q here; write its options in a block", d.Val())
	}
	a := new(app.App)
	g := &global{health: &a.Health}
	err := readBlock(d, "flexinfer", map[string]option{
		"routing": {read: strategyInto(&a.RoutingRaw)},
		"model": {many: true, read: func(d *caddyfile.Dispenser) error {
			m, err := g.parseModel(d)
			a.Models = append(a.Models, m)
			return err
		}},
		"keys":              keysInto(&a.Keys),
		"max_body":          value("32MiB", size, func(n int64) { a.MaxBody = n }),
		"retries":           retriesInto(&a.Retries),
		"timeouts":          timeoutsInto(&a.Timeouts, false),
		"health":            g.healthTimes(healthInto(&a.Health), &a.Health, nil),
		"queue":             queueInto(&a.Queue),
		"label_groups":      choice("least-loaded", &a.LabelGroups, app.CheckLabelGroups),
		"reservation_ttl":   value("10s", timeFrom0, func(t caddy.Duration) { a.ReservationTTL = &t }),
		"ledger":            ledgerInto(&a.Ledger),
		"max_tokens_clamp":  clampInto(&a.MaxTokensClamp),
		"response_model":    choice("asked", &a.ResponseModel, app.CheckResponseModel),
		"usage_metrics":     choice("client", &a.UsageMetrics, app.CheckUsageMetrics),
		"validate_requests": value("on", onOff, func(on bool) { a.ValidateRequests = &on }),
		"debug_header":      choice("private", &a.DebugHeader, app.CheckDebugHeader),
		"kubernetes":        clusterInto(&a.Kubernetes),
		"env_ignore": words("PROXY_AUTH_ENABLED", func(name string) error {
			a.EnvIgnore = append(a.EnvIgnore, name)
			return nil
		}),
	})
	if err != nil {
		return nil, err
	}
	for _, check := range g.late {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return httpcaddyfile.App{Name: "flexinfer", Value: caddyconfig.JSON(a, nil)}, nil
}

// global is what is known while the global option is read.
type global struct {
	names  app.Names
	health **app.Health // of all models

	// late are checks for when all is read.
	late []func() error
}

// keysInto returns the option keys.
func keysInto(keys **app.Keys) option {
	k := new(app.Keys)
	return blockInto(keys, k, map[string]option{
		"explicit_key_max_length":     value("128", numberFrom(1), func(n int) { k.ExplicitKeyMaxLength = n }),
		"system_segment_max_length":   value("512", numberFrom(1), func(n int) { k.SystemSegmentMaxLength = n }),
		"document_segment_max_length": value("256", numberFrom(1), func(n int) { k.DocumentSegmentMaxLength = n }),
		"session_header": words("X-Chat-ID", func(field string) error {
			k.SessionHeaders = append(k.SessionHeaders, field)
			return app.CheckSessionHeader(field)
		}),
		"session_field": words("metadata.user_id", func(path string) error {
			k.SessionFields = append(k.SessionFields, path)
			return app.CheckSessionField(path)
		}),
	})
}

// ledgerInto returns the option ledger.
func ledgerInto(ledger **app.Ledger) option {
	l := new(app.Ledger)
	opt := blockInto(ledger, l, map[string]option{
		"bucket": value("5s", timeAbove0, func(t caddy.Duration) { l.Bucket = t }),
		"ttl":    value("600s", timeAbove0, func(t caddy.Duration) { l.TTL = t }),
	})
	return option{read: func(d *caddyfile.Dispenser) error {
		at := *d
		if err := opt.read(d); err != nil {
			return err
		}
		if err := l.Check(); err != nil {
			return at.Errf("ledger: %w", err)
		}
		return nil
	}}
}

// strategyInto returns a reader of an option that takes a strategy.
func strategyInto(raw *json.RawMessage) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) (err error) {
		name := d.Val()
		if !d.NextArg() {
			return d.Errf("%s needs a strategy, such as: %s prefix", name, name)
		}
		*raw, err = app.ParseStrategy(d)
		return err
	}
}
