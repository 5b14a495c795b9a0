package activators

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/k8sdiscovery"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

func init() {
	caddy.RegisterModule(new(Kubernetes))
}

// Kubernetes wakes a model by what it writes to its resource in a Kubernetes
// cluster, a Model or a ModelDeployment of FlexInfer's. The cluster is that of
// the `flexinfer` app. Models that the cluster itself declares need no such
// activator.
//
// To wake a Model its `status.lastActiveTime` is set to now, at which FlexInfer's
// controller starts it; a ModelDeployment without replicas gets one. While calls
// are under way the time of last use is written anew each minute, so that the
// controller lets the model run. With `gpu_groups` on, a ModelDeployment of a
// GPUGroup is not given a replica; the group is told how many calls wait, and
// since when, in its annotations.
//
// The gateway's service account needs these rights in the namespace: get models,
// patch models/status; get and patch modeldeployments, patch
// modeldeployments/status; with `gpu_groups`, get and patch gpugroups.
type Kubernetes struct {
	// The namespace of the resource. Default: the first namespace of the
	// app's `kubernetes`, or else the one that the gateway runs in.
	Namespace string `json:"namespace,omitempty"`

	// The name of the resource. Default: the model's name.
	Name string `json:"name,omitempty"`

	waker  *k8sdiscovery.Waker // nil until connected
	handle atomic.Pointer[k8sdiscovery.Handle]
}

// CaddyModule returns the Caddy module information.
func (*Kubernetes) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.activators.kubernetes",
		New: func() caddy.Module { return new(Kubernetes) },
	}
}

// Validate returns an error if k names no resource.
func (k *Kubernetes) Validate() error {
	if k.Namespace != "" {
		if err := sources.CheckNamespace(k.Namespace); err != nil {
			return err
		}
	}
	if k.Name != "" && !isResource(k.Name) {
		return fmt.Errorf("%q is not the name of a resource, such as qwen3-8b", k.Name)
	}
	return nil
}

func isResource(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

// Connect has k wake what is in this cluster. It is called once, after
// Provision.
func (k *Kubernetes) Connect(c *sources.Cluster) {
	k.waker = c.Waker()
	if k.Namespace == "" {
		k.Namespace = c.Namespace()
	}
}

// of returns the handle of the model, which is always the same one.
func (k *Kubernetes) of(model string) *k8sdiscovery.Handle {
	if h := k.handle.Load(); h != nil {
		return h
	}
	h := k.waker.Handle(k8sdiscovery.Ref{Namespace: k.Namespace, Name: cmp.Or(k.Name, model)})
	k.handle.Store(h)
	return h
}

// Activate implements [routing.Activator].
func (k *Kubernetes) Activate(ctx context.Context, model string) error {
	if k.Name == "" && !isResource(model) {
		return fmt.Errorf("%q is not the name of a resource; write activate kubernetes <namespace>/<name>", model)
	}
	return k.of(model).Activate(ctx, model)
}

// Use implements [routing.Keeper].
func (k *Kubernetes) Use(model string, background bool) (done func()) {
	return k.of(model).Use(model, background)
}

// Waiting implements [routing.Herald].
func (k *Kubernetes) Waiting(model string, calls int) { k.of(model).Waiting(model, calls) }

// UnmarshalCaddyfile sets up k. Syntax:
//
//	kubernetes [<namespace>/<name>]
//
// The resource is a Model or a ModelDeployment. Without it, it is the one with
// the model's name in the first namespace of the `kubernetes` option.
func (k *Kubernetes) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume activator name
	if d.NextArg() {
		var ok bool
		if k.Namespace, k.Name, ok = strings.Cut(d.Val(), "/"); !ok || k.Namespace == "" || k.Name == "" {
			return d.Errf("%q is not a resource; write <namespace>/<name>, such as models/qwen3-8b", d.Val())
		}
		if err := k.Validate(); err != nil {
			return d.WrapErr(err)
		}
	}
	if d.NextArg() {
		return d.Errf("kubernetes takes one resource; leave out %q", d.Val())
	}
	if d.NextBlock(d.Nesting()) {
		return d.Errf("kubernetes takes no options; leave out %q", d.Val())
	}
	return nil
}

// Interface guards
var (
	_ caddy.Module          = (*Kubernetes)(nil)
	_ caddy.Validator       = (*Kubernetes)(nil)
	_ caddyfile.Unmarshaler = (*Kubernetes)(nil)
	_ routing.Activator     = (*Kubernetes)(nil)
	_ routing.Keeper        = (*Kubernetes)(nil)
	_ routing.Herald        = (*Kubernetes)(nil)
)
