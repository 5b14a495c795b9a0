// Command xcaddy is Caddy with its standard modules and the FlexInfer
// gateway, as `xcaddy build` would make it, but built from this module's own
// go.sum.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/flexinfer/caddy-flexinfer"
)

func main() {
	caddycmd.Main()
}
