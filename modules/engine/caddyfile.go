package engine

import (
	"slices"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	return handler, nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	flexinfer_engine [<matcher>] {
//	    name                      <name>
//	    model                     <names...>
//	    ttft                      <duration>
//	    prefill_tokens_per_second <rate>
//	    tokens_per_second         <rate>
//	    kv_blocks                 <count>
//	    block_size                <tokens>
//	    max_num_seqs              <count>
//	    max_model_len             <tokens>
//	}
//
// The block may be left out. `model` may be repeated. A rate or a duration of 0
// is no delay.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	if d.NextArg() {
		return d.Errf("flexinfer_engine takes no argument %q: settings go into a block, for example flexinfer_engine { model %[1]s }", d.Val())
	}
	seen := make(map[string]bool)
	for d.NextBlock(0) {
		name := d.Val()
		if seen[name] && name != "model" {
			return d.Errf("%s is already set: write it once", name)
		}
		seen[name] = true
		if err := h.unmarshalOption(d, name); err != nil {
			return err
		}
		if d.NextArg() {
			return d.Errf("%s takes one value: remove %q", name, d.Val())
		}
		if d.NextBlock(1) {
			return d.Errf("%s takes no block", name)
		}
	}
	return nil
}

func (h *Handler) unmarshalOption(d *caddyfile.Dispenser, name string) error {
	switch name {
	case "name":
		return unmarshalArg(d, &h.Name)
	case "model":
		args := d.RemainingArgs()
		if len(args) == 0 {
			return d.Errf("model needs a name: write, for example, model qwen3-8b")
		}
		for _, model := range args {
			if slices.Contains(h.Models, model) {
				return d.Errf("model %q is named twice: write it once", model)
			}
			h.Models = append(h.Models, model)
		}
		return nil
	case "ttft":
		var text string
		if err := unmarshalArg(d, &text); err != nil {
			return err
		}
		v, err := caddy.ParseDuration(text)
		if err != nil || v < 0 {
			return d.Errf("ttft %q is not a duration: write one such as 20ms, or 0 for none", text)
		}
		h.TTFT = new(caddy.Duration(v))
		return nil
	case "prefill_tokens_per_second":
		return unmarshalRate(d, name, &h.PrefillTokensPerSecond)
	case "tokens_per_second":
		return unmarshalRate(d, name, &h.TokensPerSecond)
	case "kv_blocks":
		return unmarshalCount(d, name, &h.KVBlocks)
	case "block_size":
		return unmarshalCount(d, name, &h.BlockSize)
	case "max_num_seqs":
		return unmarshalCount(d, name, &h.MaxNumSeqs)
	case "max_model_len":
		return unmarshalCount(d, name, &h.MaxModelLen)
	}
	return d.Errf("unrecognized subdirective %q: write name, model, ttft, prefill_tokens_per_second, tokens_per_second, "+
		"kv_blocks, block_size, max_num_seqs or max_model_len", name)
}

func unmarshalArg(d *caddyfile.Dispenser, into *string) error {
	if !d.NextArg() {
		return d.ArgErr()
	}
	*into = d.Val()
	return nil
}

func unmarshalRate(d *caddyfile.Dispenser, name string, into **float64) error {
	var text string
	if err := unmarshalArg(d, &text); err != nil {
		return err
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0) || v > 1e12 {
		return d.Errf("%s %q is not a rate: write a number of tokens per second such as 200, or 0 for no delay", name, text)
	}
	*into = &v
	return nil
}

func unmarshalCount(d *caddyfile.Dispenser, name string, into *int) error {
	var text string
	if err := unmarshalArg(d, &text); err != nil {
		return err
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < 1 || v > 1<<31-1 {
		return d.Errf("%s %q is not a count: write a whole number of at least 1", name, text)
	}
	*into = v
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
