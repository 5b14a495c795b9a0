package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const strategyNamespace = "flexinfer.strategies"

// ParseStrategy reads the strategy at the dispenser's current token, with its
// options, into a module's JSON.
func ParseStrategy(d *caddyfile.Dispenser) (json.RawMessage, error) {
	return parseGuest[routing.Strategy](d, strategyNamespace, "strategy", "a strategy")
}

// A namedStrategy is one that a source has named.
type namedStrategy struct {
	routing.Strategy
	since  time.Time
	unload context.CancelFunc
}

// strategyOf returns the strategy that a source names for a model, with its
// options as name=value pairs. Models that ask for the same share it.
func (a *App) strategyOf(name, options string) (routing.Strategy, error) {
	key := [2]string{name, options}
	a.naming.Lock()
	defer a.naming.Unlock()
	if n, ok := a.named[key]; ok {
		n.since = time.Now()
		a.named[key] = n
		return n.Strategy, nil
	}
	raw, err := a.parseNamed(name, options)
	if err != nil {
		return nil, err
	}
	var holder struct {
		StrategyRaw json.RawMessage `caddy:"namespace=flexinfer.strategies inline_key=strategy"`
	}
	holder.StrategyRaw = raw
	// A context of its own: models come when the app's has been used up.
	ctx, cancel := caddy.NewContext(a.ctx)
	s, _, err := a.LoadStrategy(ctx, &holder, "StrategyRaw", raw)
	if err != nil {
		cancel()
		return nil, err
	}
	a.dropUnused()
	a.named[key] = namedStrategy{s, time.Now(), cancel}
	return s, nil
}

// dropUnused unloads the named strategies that no model has any more, once they
// have become many: annotations change. The caller holds a.naming.
func (a *App) dropUnused() {
	const (
		many  = 64
		young = time.Minute // it may be on its way into a table
	)
	if len(a.named) < many {
		return
	}
	used := make(map[routing.Strategy]bool)
	for _, c := range a.catalogs {
		for _, m := range c.Table().Models() {
			used[m.Strategy] = true
		}
	}
	for key, n := range a.named {
		if !used[n.Strategy] && time.Since(n.since) > young {
			n.unload()
			delete(a.named, key)
		}
	}
}

// parseNamed turns a strategy's name and its options into a module's JSON.
func (a *App) parseNamed(name, options string) (json.RawMessage, error) {
	tokens := []caddyfile.Token{{Text: name, Line: 1}}
	if options = strings.TrimSpace(options); options != "" {
		line := 1
		add := func(texts ...string) {
			line++
			for _, text := range texts {
				tokens = append(tokens, caddyfile.Token{Text: text, Line: line})
			}
		}
		tokens = append(tokens, caddyfile.Token{Text: "{", Line: 1})
		for option := range strings.SplitSeq(options, ",") {
			option, value, ok := strings.Cut(option, "=")
			option, value = strings.TrimSpace(option), strings.TrimSpace(value)
			if !ok || option == "" || value == "" {
				return nil, fmt.Errorf("routing options %q: write name=value, separated by commas", options)
			}
			add(option, value)
		}
		add("}")
	}
	d := caddyfile.NewDispenser(tokens)
	d.Next()
	raw, err := ParseStrategy(d)
	if err != nil {
		problem, _, _ := strings.Cut(err.Error(), ", at ") // there is no file
		return nil, errors.New(problem)
	}
	return raw, nil
}
