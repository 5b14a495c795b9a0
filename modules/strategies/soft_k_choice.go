package strategies

import (
	"fmt"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(SoftKChoice))
}

// SoftKChoice looks at all endpoints, takes the k that have the fewest calls
// in flight, and picks one of those at random, with a chance in proportion to
// weight / (1 + calls in flight). An overloaded endpoint is never among them,
// as it can be in a random draw of two, and the last choice is still random,
// so that several gateways do not all run to the same endpoint.
//
//	routing soft-k-choice {
//		k 2
//	}
type SoftKChoice struct {
	// How many of the least loaded endpoints to choose from, 1 or more. 1 is
	// strictly the least loaded. Default: `2`.
	K int `json:"k,omitempty"`

	random source
}

const defaultK = 2

// CaddyModule returns the Caddy module information.
func (*SoftKChoice) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.strategies.soft_k_choice",
		New: func() caddy.Module { return new(SoftKChoice) },
	}
}

// Validate implements [caddy.Validator].
func (c *SoftKChoice) Validate() error {
	if c.K < 0 {
		return fmt.Errorf("k %d: it is 1 or more; leave it out for %d", c.K, defaultK)
	}
	return nil
}

// Pick implements [routing.Strategy].
func (c *SoftKChoice) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	k := c.K
	if k == 0 {
		k = defaultK
	}
	for range attempts {
		i, load := c.choose(req, s, k)
		if i < 0 {
			return routing.Decision{}
		}
		if lease := s.TryAcquire(i, load); lease != nil {
			return routing.Decision{Lease: lease}
		}
	}
	if i, _ := c.choose(req, s, k); i >= 0 {
		return routing.Decision{Lease: s.Acquire(i)}
	}
	return routing.Decision{}
}

// choose returns an endpoint and the load it was chosen by; -1 if none is
// usable.
func (c *SoftKChoice) choose(req *routing.Request, s *routing.Snapshot, k int) (best, load int) {
	// A candidate is its load in the upper half of rank, above a random
	// number. Those of least rank are the k least loaded, and of equals that
	// compete for the last places each has the same chance.
	type candidate struct {
		rank uint64
		i    int
	}
	var few [8]candidate // sorted by rank; on the stack, as k is small
	found := few[:0]
	random := c.random.uint64()
	for i := range s.Len() {
		if !s.Usable(req, i) {
			continue
		}
		rank := uint64(s.Load(i)) << 32
		if len(found) == k && rank > found[k-1].rank {
			continue
		}
		random = random*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
		rank |= random >> 32
		if len(found) == k {
			if rank > found[k-1].rank {
				continue
			}
			found = found[:k-1]
		}
		at, _ := slices.BinarySearchFunc(found, rank, func(c candidate, rank uint64) int {
			if c.rank < rank {
				return -1
			}
			return 1
		})
		found = slices.Insert(found, at, candidate{rank, i})
	}
	if len(found) == 0 {
		return -1, 0
	}
	chance := func(c candidate) float64 {
		return float64(s.At(c.i).Weight) / float64(1+c.rank>>32)
	}
	sum := 0.0
	for _, c := range found {
		sum += chance(c)
	}
	chosen := found[0]
	dart := float64(mix(random, 0)>>11) / (1 << 53) * sum
	for _, c := range found {
		chosen = c
		if dart -= chance(c); dart < 0 {
			break
		}
	}
	return chosen.i, int(chosen.rank >> 32)
}

// UnmarshalCaddyfile sets up c. Syntax:
//
//	soft-k-choice {
//		k <number>
//	}
func (c *SoftKChoice) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return options(d, map[string]func(string) error{"k": positive(&c.K)})
}

// Interface guards
var (
	_ routing.Strategy      = (*SoftKChoice)(nil)
	_ caddy.Validator       = (*SoftKChoice)(nil)
	_ caddyfile.Unmarshaler = (*SoftKChoice)(nil)
)
