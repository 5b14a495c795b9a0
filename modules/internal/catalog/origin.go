package catalog

import (
	"slices"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// An origin is what a model was made of. As long as that is the same, so is
// the model.
type origin struct {
	found             [][]routing.Spec // the very slices of the sources
	traits            *routing.Traits
	aliases, adapters []string
	state             routing.State
}

func (o *origin) equal(p *origin) bool {
	return o.traits == p.traits && o.state == p.state &&
		slices.EqualFunc(o.found, p.found, same) &&
		slices.Equal(o.aliases, p.aliases) && slices.Equal(o.adapters, p.adapters)
}

// same reports whether two slices are the same piece of memory.
func same(a, b []routing.Spec) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
