package sources

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalCaddyfile sets up the source from Caddyfile tokens. Syntax:
//
//	kubernetes endpoints <namespace>/<service>[:<port>]
//	kubernetes selector  <namespace> <labels> [<port>]
//	kubernetes pods      <namespace> <labels> <port>
//
// Each may have a block:
//
//	{
//	    role         prefill|decode|both
//	    weight       <1-100>
//	    label        <name> <value>
//	    model        <name>
//	    max_inflight <calls>
//	    header       <field> <value>
//	}
//
// `label` and `header` may be repeated. In the block of a model the word
// kubernetes is left out.
func (k *Kubernetes) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume source name
	if !d.NextArg() {
		return d.Err("kubernetes needs to know where to look: endpoints <namespace>/<service>[:<port>], selector <namespace> <labels>, or pods <namespace> <labels> <port>")
	}
	return k.UnmarshalForm(d)
}

// UnmarshalForm is UnmarshalCaddyfile with the dispenser at the word endpoints,
// selector or pods.
func (k *Kubernetes) UnmarshalForm(d *caddyfile.Dispenser) error {
	form := d.Val()
	args := d.RemainingArgs()
	switch form {
	case "endpoints":
		if len(args) != 1 {
			return d.Err("endpoints needs a Service: endpoints <namespace>/<service>[:<port>], such as: endpoints models/qwen3-8b:http")
		}
		if err := k.SetService(args[0]); err != nil {
			return d.WrapErr(err)
		}
	case "selector":
		if len(args) != 2 && len(args) != 3 {
			return d.Err("selector needs a namespace and the labels of a Service, and may have a port: selector <namespace> <labels> [<port>], such as: selector models app=qwen3-8b")
		}
		k.Namespace, k.Selector = args[0], args[1]
		k.Port = strings.Join(args[2:], "")
	case "pods":
		if len(args) != 3 {
			return d.Err("pods needs a namespace, labels and a port: pods <namespace> <labels> <port>, such as: pods models app=qwen3-8b 8000")
		}
		k.Namespace, k.Pods, k.Port = args[0], args[1], args[2]
	default:
		return d.Errf("unknown word %q; write endpoints, selector or pods", form)
	}
	at := *d // for what is wrong with the line
	if err := k.Check(); err != nil {
		return at.WrapErr(err)
	}
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if seen[option] && option != "label" && option != "header" {
			return d.Errf("%s is there twice in %s; keep one", option, form)
		}
		seen[option] = true
		if err := k.unmarshalProperty(d, form, option); err != nil {
			return err
		}
	}
	return nil
}

// unmarshalProperty reads one property of the endpoints.
func (k *Kubernetes) unmarshalProperty(d *caddyfile.Dispenser, form, option string) error {
	args := d.RemainingArgs()
	switch option {
	case "label", "header":
		return k.unmarshalPair(d, option, args)
	case "role", "weight", "model", "max_inflight":
	default:
		return d.Errf("unknown option %q in %s; known: header, label, max_inflight, model, role, weight", option, form)
	}
	if len(args) != 1 {
		example := map[string]string{"role": "decode", "weight": "2", "model": "Qwen/Qwen3-8B", "max_inflight": "8"}[option]
		return d.Errf("%s needs one value, such as: %s %s", option, option, example)
	}
	n, err := strconv.Atoi(args[0])
	switch option {
	case "role":
		k.Role = args[0]
	case "model":
		k.Model = args[0]
	case "weight":
		if k.Weight = n; err != nil || n == 0 {
			return d.Errf("weight is %q; write a number from 1 to 100, such as 2", args[0])
		}
	case "max_inflight":
		if k.MaxInflight = n; err != nil || n < 1 {
			return d.Errf("max_inflight is %q; write a whole number, 1 or more, such as 8", args[0])
		}
	}
	if err := k.checkProperties(); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

func (k *Kubernetes) unmarshalPair(d *caddyfile.Dispenser, option string, args []string) error {
	into, example := &k.Labels, "region eu"
	if option == "header" {
		into, example = &k.Headers, `Authorization "Bearer {env.KEY}"`
	}
	if len(args) != 2 {
		return d.Errf("%s needs a name and a value, such as: %s %s", option, option, example)
	}
	name := args[0]
	if option == "header" {
		if err := CheckHeader(name, args[1]); err != nil {
			return d.WrapErr(err)
		}
		name = http.CanonicalHeaderKey(name)
	}
	if _, ok := (*into)[name]; ok {
		return d.Errf("%s %s is there twice; keep one", option, name)
	}
	if *into == nil {
		*into = make(map[string]string)
	}
	(*into)[name] = args[1]
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Kubernetes)(nil)
