// Package caddyfile holds what the gateway's Caddyfile needs beyond single
// modules: the global option `flexinfer`, and the directives `flexinfer` and
// `flexinfer_call`. Each turns short text into plain Caddy JSON.
package caddyfile

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("flexinfer", parseGlobalOption)

	httpcaddyfile.RegisterHandlerDirective("flexinfer_call", parseCall)
	httpcaddyfile.RegisterDirectiveOrder("flexinfer_call", httpcaddyfile.Before, "reverse_proxy")

	httpcaddyfile.RegisterDirective("flexinfer", parseSite)
	httpcaddyfile.RegisterDirectiveOrder("flexinfer", httpcaddyfile.Before, "reverse_proxy")
}

// An option is what may stand in a block.
type option struct {
	// read reads the option, whose name is the current token, up to the end
	// of its line or block.
	read func(*caddyfile.Dispenser) error

	// many allows the option more than once.
	many bool
}

// Blocks, as errors call them.
const (
	globalBlock = "the flexinfer block of the global options"
	modelBlock  = "a model's block"
	toBlock     = "the block of to"
)

// places says in whose block an option belongs that is written in another.
var places = map[string]string{
	"alias":          modelBlock,
	"adapter":        modelBlock,
	"context_window": modelBlock,
	"endpoints":      modelBlock,
	"pods":           modelBlock,
	"selector":       modelBlock,
	"service":        modelBlock,
	"service_label":  modelBlock,
	"priority":       modelBlock,
	"activate":       modelBlock,
	"to":             modelBlock,

	"weight":       toBlock,
	"label":        toBlock,
	"header":       toBlock,
	"max_inflight": toBlock,

	"label_groups": globalBlock,
	"queue":        globalBlock,

	"debug_header":      globalBlock,
	"env_ignore":        globalBlock,
	"keys":              globalBlock,
	"kubernetes":        globalBlock,
	"ledger":            globalBlock,
	"max_body":          globalBlock,
	"max_tokens_clamp":  globalBlock,
	"model":             globalBlock + ", or, for an upstream's own name, in the block of to",
	"reservation_ttl":   globalBlock,
	"response_model":    globalBlock,
	"usage_metrics":     globalBlock,
	"validate_requests": globalBlock,
}

// readBlock reads a block of options. whose says in errors whose block it is.
func readBlock(d *caddyfile.Dispenser, whose string, options map[string]option) error {
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		opt, ok := options[name]
		if !ok {
			if place, ok := places[name]; ok {
				return d.Errf("%s does not belong in %s; write it in %s", name, whose, place)
			}
			return d.Errf("unknown option %q in %s; known: %s", name, whose, strings.Join(slices.Sorted(maps.Keys(options)), ", "))
		}
		if seen[name] && !opt.many {
			return d.Errf("%s is there twice in %s; keep one", name, whose)
		}
		seen[name] = true
		if err := opt.read(d); err != nil {
			return err
		}
	}
	return nil
}

// block returns an option whose own options stand in a block.
func block(options map[string]option) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		name := d.Val()
		if d.NextArg() {
			return d.Errf("%s takes no %q here; write its options in a block", name, d.Val())
		}
		return readBlock(d, name, options)
	}}
}

// words returns an option that takes one word or more, and may be repeated.
func words(example string, take func(string) error) option {
	return option{many: true, read: func(d *caddyfile.Dispenser) error {
		name := d.Val()
		if !d.NextArg() {
			return d.Errf("%s needs a value, such as: %s %s", name, name, example)
		}
		for more := true; more; more = d.NextArg() {
			if err := take(d.Val()); err != nil {
				return d.WrapErr(err)
			}
		}
		return endLine(d, name)
	}}
}

// word returns an option that takes one word.
func word(example string, take func(string) error) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		name := d.Val()
		if !d.NextArg() {
			return d.Errf("%s needs a value, such as: %s %s", name, name, example)
		}
		if err := take(d.Val()); err != nil {
			return d.WrapErr(err)
		}
		return endLine(d, name)
	}}
}

// value returns an option that takes one value. The error of parse says what
// to write.
func value[T any](example string, parse func(string) (T, error), take func(T)) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		name := d.Val()
		return word(example, func(text string) error {
			v, err := parse(text)
			if err != nil {
				return fmt.Errorf("%s is %q; write %w, such as %s", name, text, err, example)
			}
			take(v)
			return nil
		}).read(d)
	}}
}

// choice returns an option that is one of a few words.
func choice(example string, into *string, check func(string) error) option {
	return word(example, func(text string) error {
		*into = text
		return check(text)
	})
}

// endLine returns an error if the option's line goes on, or opens a block.
func endLine(d *caddyfile.Dispenser, name string) error {
	if d.NextArg() {
		return d.Errf("%s takes no %q here", name, d.Val())
	}
	if d.NextBlock(d.Nesting()) {
		return d.Errf("%s takes no block", name)
	}
	return nil
}

// numberFrom returns a parser of whole numbers from least on.
func numberFrom(least int) func(string) (int, error) {
	return func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < least {
			return 0, fmt.Errorf("a whole number, %d or more", least)
		}
		return n, nil
	}
}

// timeAbove0 parses a time that is not 0.
func timeAbove0(text string) (caddy.Duration, error) {
	t, err := caddy.ParseDuration(text)
	if err != nil || t <= 0 {
		return 0, errors.New("a time above 0")
	}
	return caddy.Duration(t), nil
}

// timeFrom0 parses a time that may be 0.
func timeFrom0(text string) (caddy.Duration, error) {
	t, err := caddy.ParseDuration(text)
	if err != nil || t < 0 {
		return 0, errors.New("a time, or 0")
	}
	return caddy.Duration(t), nil
}

// size parses a number of bytes that is not 0.
func size(text string) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 || n > math.MaxInt64 {
		return 0, errors.New("a size above 0")
	}
	return int64(n), nil
}
