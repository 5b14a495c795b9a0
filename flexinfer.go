// Package flexinfer is the FlexInfer gateway: Caddy modules that route
// OpenAI-style traffic to the replica that holds its KV cache. Import it into
// a Caddy build:
//
//	xcaddy build --with github.com/flexinfer/caddy-flexinfer
package flexinfer

import (
	// All modules, the directives and the commands register themselves.
	_ "github.com/flexinfer/caddy-flexinfer/caddyfile"
	_ "github.com/flexinfer/caddy-flexinfer/modules/activators"
	_ "github.com/flexinfer/caddy-flexinfer/modules/admin"
	_ "github.com/flexinfer/caddy-flexinfer/modules/app"
	_ "github.com/flexinfer/caddy-flexinfer/modules/command"
	_ "github.com/flexinfer/caddy-flexinfer/modules/engine"
	_ "github.com/flexinfer/caddy-flexinfer/modules/gateway"
	_ "github.com/flexinfer/caddy-flexinfer/modules/matchers"
	_ "github.com/flexinfer/caddy-flexinfer/modules/selection"
	_ "github.com/flexinfer/caddy-flexinfer/modules/sources"
	_ "github.com/flexinfer/caddy-flexinfer/modules/strategies"
	_ "github.com/flexinfer/caddy-flexinfer/modules/transport"
	_ "github.com/flexinfer/caddy-flexinfer/modules/upstreams"
)
