package app

import (
	"encoding/json"
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
