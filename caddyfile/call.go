package caddyfile

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/gateway"
)

// parseCall sets up the flexinfer handler from Caddyfile tokens, for sites
// composed by hand: a reverse_proxy with `dynamic flexinfer` follows it. Syntax:
//
//	flexinfer_call [<matcher>] [<strategy> [<options...>]]
//
// A strategy stands in for that of the model.
func parseCall(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // consume directive name
	handler := new(gateway.Handler)
	if h.NextArg() {
		strategy, err := app.ParseStrategy(h.Dispenser)
		if err != nil {
			return nil, err
		}
		handler.StrategyRaw = strategy
	}
	return handler, endLine(h.Dispenser, "flexinfer_call")
}
