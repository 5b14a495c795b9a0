package app

import "github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"

// Ready reports whether c has had time to find its models, or this process has
// had all of them once: a reload that has the gateway look somewhere new does
// not make it leave a load balancer.
func (a *App) Ready(c *catalog.Catalog) bool {
	if a.state.settled.Load() {
		return true
	}
	all := true
	for _, t := range tablesOf(a) {
		all = all && t.Settled()
	}
	if all {
		a.state.settled.Store(true)
	}
	return c.Table().Settled()
}
