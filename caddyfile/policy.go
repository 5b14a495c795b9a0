package caddyfile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
)

// retriesInto returns the option retries, for all models or for one. Syntax:
//
//	retries [<count>] {
//	    on     <statuses...>|5xx|reset
//	    budget <percent>% <floor>
//	}
func retriesInto(retries **app.Retries) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		r := new(app.Retries)
		*retries = r
		at := *d
		if d.NextArg() {
			n, err := numberFrom(0)(d.Val())
			if err != nil {
				return d.Errf("retries is %q; write %w, such as 2", d.Val(), err)
			}
			r.Max = &n
			if d.NextArg() {
				return d.Errf("retries takes no %q here; write its options in a block", d.Val())
			}
		}
		err := readBlock(d, "retries", map[string]option{
			"on":     words("429 503", listed(&r.On, app.CheckRetryOn)),
			"budget": budgetInto(&r.Budget),
		})
		if err == nil && r.Max == nil && r.On == nil && r.Budget == nil {
			return at.Err("retries needs a value, such as: retries 2")
		}
		return err
	}}
}

// budgetInto returns the option budget of retries.
func budgetInto(budget **app.RetryBudget) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		var share, floor string
		if !d.Args(&share, &floor) {
			return d.Err("budget needs a percentage of the attempts and a number of retries in 10 seconds, such as: budget 20% 10")
		}
		p, err := percent(share)
		if err != nil {
			return d.Errf("budget is %q; write %w, such as 20%%", share, err)
		}
		n, err := numberFrom(0)(floor)
		if err != nil {
			return d.Errf("budget allows %q retries in 10 seconds; write %w, such as 10", floor, err)
		}
		*budget = &app.RetryBudget{Percent: &p, Floor: &n}
		return endLine(d, "budget")
	}}
}

// timeoutsInto returns the option timeouts, for all models or for one. Syntax:
//
//	timeouts {
//	    dial       <duration> # not in a model
//	    first_byte <duration>
//	    gap        <duration>
//	    keepalive  <duration> # not in a model
//	}
func timeoutsInto(timeouts **app.Timeouts, ofModel bool) option {
	t := new(app.Timeouts)
	options := map[string]option{
		"dial":       value("3s", timeAbove0, func(v caddy.Duration) { t.Dial = v }),
		"first_byte": value("10m", timeFrom0, func(v caddy.Duration) { t.FirstByte = &v }),
		"gap":        value("5m", timeFrom0, func(v caddy.Duration) { t.Gap = &v }),
		"keepalive":  value("4s", timeAbove0, func(v caddy.Duration) { t.KeepAlive = v }),
	}
	if ofModel {
		options["dial"], options["keepalive"] = ofAllModels("timeouts", "3s"), ofAllModels("timeouts", "4s")
	}
	return blockInto(timeouts, t, options)
}

// ofAllModels returns an option of a block that holds for all models, and is
// wrong in that of one.
func ofAllModels(block, example string) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		return d.Errf("%s holds for all models; write it in the flexinfer block: %s { %s %s }", d.Val(), block, d.Val(), example)
	}}
}

// healthInto returns the option health, for all models or for one. Syntax:
//
//	health {
//	    eject_after      <count>
//	    eject_for        <duration>
//	    eject_for_max    <duration>
//	    max_ejected      <percent>%
//	    unhealthy_status <statuses...>|5xx
//	    uri              <path>
//	    interval         <duration>
//	    timeout          <duration>
//	    passes           <count>
//	    fails            <count>
//	}
func healthInto(health **app.Health) option {
	h := new(app.Health)
	return blockInto(health, h, map[string]option{
		"eject_after":      value("3", numberFrom(1), func(n int) { h.EjectAfter = n }),
		"eject_for":        value("10s", timeAbove0, func(t caddy.Duration) { h.EjectFor = t }),
		"eject_for_max":    value("5m", timeAbove0, func(t caddy.Duration) { h.EjectForMax = t }),
		"max_ejected":      value("50%", percent, func(n int) { h.MaxEjected = &n }),
		"unhealthy_status": words("500 502 504", listed(&h.UnhealthyStatus, app.CheckStatus)),
		"uri": word("/health", func(uri string) error {
			h.URI = uri
			return app.CheckProbeURI(uri)
		}),
		"interval": value("10s", timeAbove0, func(t caddy.Duration) { h.Interval = t }),
		"timeout":  value("2s", timeAbove0, func(t caddy.Duration) { h.Timeout = t }),
		"passes":   value("2", numberFrom(1), func(n int) { h.Passes = n }),
		"fails":    value("3", numberFrom(1), func(n int) { h.Fails = n }),
	})
}

// healthTimes has g check, once all is read, that the times of a health fit
// together. base is nil if it is that of all models.
func (g *global) healthTimes(opt option, health, base **app.Health) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		at := *d
		g.late = append(g.late, func() error {
			var general *app.Health
			if base != nil {
				general = *base
			}
			if err := (*health).CheckTimes(general); err != nil {
				return at.Errf("health: %w", err)
			}
			return nil
		})
		return opt.read(d)
	}}
}

// clampInto returns the option max_tokens_clamp. Syntax:
//
//	max_tokens_clamp [on|off] {
//	    prompt_reserve <tokens>|auto
//	}
func clampInto(clamp **app.MaxTokensClamp) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		c := &app.MaxTokensClamp{Enabled: new(true)}
		*clamp = c
		if d.NextArg() {
			on, err := onOff(d.Val())
			if err != nil {
				return d.Errf("max_tokens_clamp is %q; write %w, or its options in a block", d.Val(), err)
			}
			if c.Enabled = &on; !on {
				return endLine(d, "max_tokens_clamp off")
			}
			if d.NextArg() {
				return d.Errf("max_tokens_clamp takes no %q here; write its options in a block", d.Val())
			}
		}
		return readBlock(d, "max_tokens_clamp", map[string]option{
			"prompt_reserve": value("512", tokensOrAuto, func(n int) { c.PromptReserve, c.PromptReserveAuto = n, n == 0 }),
		})
	}}
}

// windowInto returns the option context_window of a model.
func windowInto(m *app.Model) option {
	return value("32768", tokensOrAuto, func(n int) { m.ContextWindow, m.ContextWindowAuto = n, n == 0 })
}

// blockInto returns an option with a block that fills v, to which p is made to
// point.
func blockInto[T any](p **T, v *T, options map[string]option) option {
	opt := block(options)
	return option{read: func(d *caddyfile.Dispenser) error {
		*p = v
		return opt.read(d)
	}}
}

// listed returns what appends a word to a list, where it is not yet.
func listed(list *[]string, check func(string) error) func(string) error {
	return func(word string) error {
		if slices.Contains(*list, word) {
			return fmt.Errorf("%s is there twice; keep one", word)
		}
		*list = append(*list, word)
		return check(word)
	}
}

// percent parses a whole percentage.
func percent(text string) (int, error) {
	number, ok := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || n > 100 {
		return 0, errors.New("a percentage from 0% to 100%")
	}
	return n, nil
}

// tokensOrAuto parses a number of tokens, or auto, for which it returns 0.
func tokensOrAuto(text string) (int, error) {
	if text == "auto" {
		return 0, nil
	}
	n, err := numberFrom(1)(text)
	if err != nil {
		return 0, errors.New("a number of tokens, 1 or more, or auto")
	}
	return n, nil
}

// onOff parses a switch.
func onOff(text string) (bool, error) {
	switch text {
	case "on":
		return true, nil
	case "off":
		return false, nil
	}
	return false, errors.New("on or off")
}
