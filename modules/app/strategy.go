package app

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const strategyNamespace = "flexinfer.strategies"

// StrategyNames returns the names of the strategies in this binary, as users
// type them.
func StrategyNames() []string {
	var names []string
	for _, m := range caddy.GetModules(strategyNamespace) {
		names = append(names, strings.ReplaceAll(m.ID.Name(), "_", "-"))
	}
	slices.Sort(names)
	return names
}

// ParseStrategy reads the strategy at the dispenser's current token, with its
// options, into a module's JSON.
func ParseStrategy(d *caddyfile.Dispenser) (json.RawMessage, error) {
	typed := d.Val()
	id := strings.ReplaceAll(typed, "-", "_")
	if _, err := caddy.GetModule(strategyNamespace + "." + id); err != nil {
		return nil, d.Errf("unknown strategy %q; write one of: %s", typed, strings.Join(StrategyNames(), ", "))
	}
	unm, err := caddyfile.UnmarshalModule(d, strategyNamespace+"."+id)
	if err != nil {
		return nil, err
	}
	if _, ok := unm.(routing.Strategy); !ok {
		return nil, d.Errf("module %s.%s is not a strategy", strategyNamespace, id)
	}
	return caddyconfig.JSONModuleObject(unm, "strategy", id, nil), nil
}

// strategyOf returns the strategy that a source names for a model, with its
// options as name=value pairs. Models that ask for the same share it.
func (a *App) strategyOf(name, options string) (routing.Strategy, error) {
	key := [2]string{name, options}
	a.naming.Lock()
	defer a.naming.Unlock()
	if s, ok := a.named[key]; ok {
		return s, nil
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
	a.unload = append(a.unload, cancel)
	a.named[key] = s
	return s, nil
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
	return ParseStrategy(d)
}
