package caddyfile

import (
	"encoding/json"
	"errors"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
)

// queueInto returns the option queue. Syntax:
//
//	queue {
//	    max_size           <calls>
//	    timeout            <duration>
//	    cold_start_timeout <duration>
//	    stalled_load       <duration>
//	    backoff            <retries> [<initial> [<max>]]
//	}
func queueInto(queue **app.Queue) option {
	q := new(app.Queue)
	return blockInto(queue, q, map[string]option{
		"max_size":           value("100", numberFrom(1), func(n int) { q.MaxSize = n }),
		"timeout":            value("60s", timeAbove0, func(t caddy.Duration) { q.Timeout = t }),
		"cold_start_timeout": value("60s", timeAbove0, func(t caddy.Duration) { q.ColdStartTimeout = t }),
		"stalled_load":       value("120s", timeAbove0, func(t caddy.Duration) { q.StalledLoad = t }),
		"backoff":            {read: backoffInto(&q.Backoff)},
	})
}

func backoffInto(backoff **app.Backoff) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		b := new(app.Backoff)
		*backoff = b
		args := d.RemainingArgs()
		if len(args) == 0 || len(args) > 3 {
			return d.Err("backoff needs the number of retries and perhaps the initial and the longest pause, such as: backoff 3 5s 30s")
		}
		var err error
		if b.Retries, err = numberFrom(1)(args[0]); err != nil {
			return d.Errf("backoff is %q; write %w, such as 3", args[0], err)
		}
		for i, pause := range []*caddy.Duration{&b.Initial, &b.Max} {
			if len(args) <= i+1 {
				break
			}
			if *pause, err = timeAbove0(args[i+1]); err != nil {
				return d.Errf("backoff has the pause %q; write %w, such as 5s", args[i+1], err)
			}
		}
		if err := b.Check(); err != nil {
			return d.Errf("backoff: %w", err)
		}
		return endLine(d, "backoff")
	}
}

// activateInto returns a reader of an option that takes an activator.
func activateInto(raw *json.RawMessage) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) (err error) {
		if !d.NextArg() {
			return d.Err("activate needs the name of an activator, such as: activate http { ... }")
		}
		*raw, err = app.ParseActivator(d)
		return err
	}
}

func wholeNumber(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, errors.New("a whole number")
	}
	return n, nil
}
