package strategies

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// BoundedLoad holds the options of a ring with bounded load. An endpoint takes
// a key while its load, that call included, is at most
//
//	max(load_floor, ⌈load_factor × mean⌉)
//
// where the mean is that of all endpoints that may be picked, that call
// included; an endpoint's share of it follows its weight. Else the key goes to
// the next endpoint on the ring that has room, and so on (Mirrokni, Thorup and
// Zadimoghaddam, Consistent Hashing with Bounded Loads, 2016; the floor is for
// small loads, where a bound of two calls would part chats for no gain).
type BoundedLoad struct {
	// How far above the mean an endpoint's load may rise: 1 or more, or 0
	// for no bound. Default: `1.25` for prefix, `2` for session_affinity.
	LoadFactor *float64 `json:"load_factor,omitempty"`

	// The number of calls that an endpoint may always have in flight, 1 or
	// more. Default: `4`.
	LoadFloor int `json:"load_floor,omitempty"`
}

func (b *BoundedLoad) validate() error {
	if b.LoadFactor != nil {
		if err := checkFactor(*b.LoadFactor); err != nil {
			return fmt.Errorf("load_factor %v: %w", *b.LoadFactor, err)
		}
	}
	if b.LoadFloor < 0 {
		return fmt.Errorf("load_floor %d: it is 1 or more; leave it out for 4", b.LoadFloor)
	}
	return nil
}

func checkFactor(f float64) error {
	if f == 0 || f >= 1 && !math.IsInf(f, 0) {
		return nil
	}
	return errors.New("write a number from 1 on, such as 1.25, or 0 for no bound")
}

// bounded are the setters of the options in a Caddyfile.
func (b *BoundedLoad) bounded() map[string]func(string) error {
	return map[string]func(string) error{
		"load_factor": func(value string) error {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				f = math.NaN() // says what to write
			}
			b.LoadFactor = &f
			return checkFactor(f)
		},
		"load_floor": positive(&b.LoadFloor),
	}
}

// positive is the setter of a whole number from 1 on.
func positive(n *int) func(string) error {
	return func(value string) error {
		v, err := strconv.Atoi(value)
		if err != nil || v < 1 {
			return errors.New("write a whole number from 1 on")
		}
		*n = v
		return nil
	}
}

// Where calls without a usable key go.
const (
	keylessLeastLoaded = "least-loaded"
	keylessService     = "service"
)

func checkKeyless(value string) error {
	switch value {
	case keylessLeastLoaded, keylessService:
		return nil
	}
	return fmt.Errorf("write one of: %s, %s", keylessLeastLoaded, keylessService)
}

func keylessOption(field *string) func(string) error {
	return func(value string) error {
		*field = value
		return checkKeyless(value)
	}
}

func validateKeyless(value string) error {
	if value == "" {
		return nil
	}
	if err := checkKeyless(value); err != nil {
		return fmt.Errorf("keyless %s: %w", value, err)
	}
	return nil
}

// pickKeyless picks for a call without a usable key: the service, if asked
// for and there is one, else the least loaded.
func pickKeyless(req *routing.Request, s *routing.Snapshot, service bool) routing.Decision {
	if service {
		if lease := acquireService(req, s); lease != nil {
			return routing.Decision{Lease: lease, Reason: "keyless"}
		}
	}
	return routing.Decision{Lease: leastLoaded(req, s), Reason: "keyless"}
}

// options parses a strategy's options: name, or name { option value … }. The
// dispenser's next token is the name. Each option is there once, with one
// value.
func options(d *caddyfile.Dispenser, set map[string]func(value string) error) error {
	d.Next()
	name := d.Val()
	if d.NextArg() {
		return d.Errf("%s takes no arguments; its options are written in braces after it", name)
	}
	given := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		parse, ok := set[option]
		switch {
		case !ok && len(set) == 0:
			return d.Errf("%s has no option %s, nor any other; leave out the braces", name, option)
		case !ok:
			return d.Errf("%s has no option %s; write one of: %s", name, option, names(set))
		case given[option]:
			return d.Errf("%s is there twice", option)
		}
		given[option] = true
		args := d.RemainingArgs()
		if len(args) != 1 {
			return d.Errf("%s takes one value", option)
		}
		if err := parse(args[0]); err != nil {
			return d.Errf("%s %s: %v", option, args[0], err)
		}
	}
	return nil
}

func names[T any](set map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(set)), ", ")
}
