// Package bypath is a strategy for the FlexInfer gateway as a third party
// writes one: in a module of its own, against modules/routing and Caddy alone.
//
//	xcaddy build --with github.com/flexinfer/caddy-flexinfer --with example.com/flexinfer-by-path
package bypath

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(ByPath{})
}

// ByPath divides a model's endpoints into pools by their label `pool`, and
// sends each path to one of them: embeddings, which come in bulk, to small
// machines of their own, say. Within a pool the least loaded endpoint is
// picked. Paths that are not named go to endpoints without the label.
type ByPath struct {
	// Path prefixes and the pools that serve them. The longest prefix wins.
	Pools map[string]string `json:"pools,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (ByPath) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.strategies.by_path",
		New: func() caddy.Module { return new(ByPath) },
	}
}

// Validate returns an error if there is nothing to go by.
func (b *ByPath) Validate() error {
	if len(b.Pools) == 0 {
		return errors.New("by-path needs a path and the pool that serves it")
	}
	for path := range b.Pools {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("by-path: %q is not a path; it has to begin with a slash", path)
		}
	}
	return nil
}

// Pick implements [routing.Strategy].
func (b *ByPath) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	pool := b.pool(req.Path)
	for {
		best, load := -1, 0
		for i := range s.Len() {
			if s.At(i).Labels["pool"] != pool || !s.Usable(req, i) {
				continue
			}
			if l := s.Load(i); best < 0 || l < load {
				best, load = i, l
			}
		}
		if best < 0 {
			return routing.Decision{} // the model's service, if it has one
		}
		if lease := s.TryAcquire(best, load); lease != nil {
			return routing.Decision{Lease: lease, Reason: "pool " + pool}
		}
		// Somebody else was quicker: the load is not what it was.
	}
}

func (b *ByPath) pool(path string) string {
	longest, pool := "", ""
	for prefix, p := range b.Pools {
		if strings.HasPrefix(path, prefix) && len(prefix) > len(longest) {
			longest, pool = prefix, p
		}
	}
	return pool
}

// UnmarshalCaddyfile sets up the strategy from Caddyfile tokens. Syntax:
//
//	by-path {
//	    <path> <pool>
//	}
func (b *ByPath) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume strategy name
	if d.NextArg() {
		return d.Errf("by-path takes no argument %q: write paths and pools into its block", d.Val())
	}
	b.Pools = make(map[string]string)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		path := d.Val()
		var pool string
		if !d.AllArgs(&pool) {
			return d.Errf("%s needs the name of one pool", path)
		}
		if _, ok := b.Pools[path]; ok {
			return d.Errf("%s is there twice", path)
		}
		b.Pools[path] = pool
	}
	if err := b.Validate(); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

// Interface guards
var (
	_ routing.Strategy      = (*ByPath)(nil)
	_ caddy.Validator       = (*ByPath)(nil)
	_ caddyfile.Unmarshaler = (*ByPath)(nil)
)
