package caddyfile

import (
	"encoding/json"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

// clusterInto returns the option kubernetes. Syntax:
//
//	kubernetes {
//	    namespace    <namespaces...>|*
//	    kubeconfig   <path>
//	    context      <name>
//	    api_group    <group>
//	    gpu_groups   on|off
//	    sync_timeout <duration>
//	}
//
// All of it may be left out, the block too: then the cluster is the one that the
// gateway runs in.
func clusterInto(cluster **sources.Cluster) option {
	return option{read: func(d *caddyfile.Dispenser) error {
		c := new(sources.Cluster)
		*cluster = c
		return block(map[string]option{
			"namespace": words("models", func(name string) error {
				c.Namespaces = append(c.Namespaces, name)
				return sources.CheckNamespaces(c.Namespaces)
			}),
			"kubeconfig": word("/etc/kubeconfig", func(path string) error {
				c.Kubeconfig = path
				return nil
			}),
			"context": word("prod", func(name string) error {
				c.Context = name
				return nil
			}),
			"api_group": word("inference.flexinfer.ai", func(name string) error {
				c.APIGroup = name
				return sources.CheckAPIGroup(name)
			}),
			"gpu_groups":   value("on", onOff, func(on bool) { c.GPUGroups = on }),
			"sync_timeout": value("10s", timeAbove0, func(t caddy.Duration) { c.SyncTimeout = t }),
		}).read(d)
	}}
}

// discoveryInto returns the options endpoints, selector and pods of a model,
// which are short for `source kubernetes` and the same words.
func discoveryInto(list *[]json.RawMessage) option {
	return option{many: true, read: func(d *caddyfile.Dispenser) error {
		k := new(sources.Kubernetes)
		if err := k.UnmarshalForm(d); err != nil {
			return err
		}
		*list = append(*list, caddyconfig.JSONModuleObject(k, "source", "kubernetes", nil))
		return nil
	}}
}
