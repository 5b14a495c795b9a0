package sources

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/k8sdiscovery"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(Kubernetes))
}

// Kubernetes is a source of a model's endpoints in a Kubernetes cluster: the
// ready pods behind a Service, behind all Services with some labels, or the pods
// with some labels. The cluster is that of the `flexinfer` app.
//
// An endpoint that is not ready, or terminates, gets no call; those that
// terminate and still serve are used only while there is no other. A pod with
// two addresses is one endpoint, reached by its IPv4 address. Endpoints have the
// labels pod, node and zone as far as the cluster knows them.
//
// A port whose appProtocol is https or kubernetes.io/h2c is spoken to in that
// way, any other in plain HTTP.
//
// The gateway's service account needs to list and watch EndpointSlices of the
// namespace, or its pods.
type Kubernetes struct {
	// The namespace to look in.
	Namespace string `json:"namespace,omitempty"`

	// The name of a Service. One of `service`, `selector` and `pods` is
	// required.
	Service string `json:"service,omitempty"`

	// A label selector for EndpointSlices, which have the labels of their
	// Services.
	Selector string `json:"selector,omitempty"`

	// A label selector for pods, for those that no Service stands for.
	Pods string `json:"pods,omitempty"`

	// The name or the number of the port, as EndpointSlices have it: the
	// number is the pods' own, not the Service's. For pods it is a number and
	// required. Default: the port named http, or else the first.
	Port string `json:"port,omitempty"`

	// What the endpoints do: `prefill`, `decode` or `both`. It becomes their
	// label role.
	Role string `json:"role,omitempty"`

	// The name that the endpoints know the model by. Default: the model's
	// name.
	Model string `json:"model,omitempty"`

	// Each endpoint's share of the load relative to others, 1 to 100.
	// Default: `1`.
	Weight int `json:"weight,omitempty"`

	// Words about the endpoints, for strategies and the admin API. They win
	// over those of the cluster.
	Labels map[string]string `json:"labels,omitempty"`

	// Header fields to set on requests to the endpoints. Values may hold
	// global placeholders, such as {env.KEY}.
	Headers map[string]string `json:"headers,omitempty"`

	// The most calls that each endpoint may have in flight. Default: as many
	// as come.
	MaxInflight int `json:"max_inflight,omitempty"`

	attributes k8sdiscovery.Attributes
	selector   labels.Selector
	endpoints  *k8sdiscovery.Endpoints // nil until connected
}

// CaddyModule returns the Caddy module information.
func (*Kubernetes) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.sources.kubernetes",
		New: func() caddy.Module { return new(Kubernetes) },
	}
}

// Provision sets up k, but for the cluster.
func (k *Kubernetes) Provision(caddy.Context) error {
	if err := k.Check(); err != nil {
		return err
	}
	k.attributes = k8sdiscovery.Attributes{
		Role: k.Role, Model: k.Model, Weight: k.Weight, Labels: k.Labels, MaxInflight: k.MaxInflight,
	}
	var err error
	if k.attributes.Header, err = headerOf(k.Headers); err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	return nil
}

// Check returns an error if k cannot be a source.
func (k *Kubernetes) Check() (err error) {
	forms := 0
	for _, form := range []string{k.Service, k.Selector, k.Pods} {
		if form != "" {
			forms++
		}
	}
	switch {
	case forms != 1:
		return errors.New("a source of a cluster's endpoints is a service, a selector or pods: write one of them")
	case k.Service != "" && len(validation.IsDNS1123Label(k.Service)) > 0:
		return fmt.Errorf("%q is not the name of a Service, such as qwen3-8b", k.Service)
	}
	if err := CheckNamespace(k.Namespace); err != nil {
		return err
	}
	if k.Service == "" {
		if k.selector, err = labels.Parse(k.Selector + k.Pods); err != nil {
			return fmt.Errorf("%q is not a label selector, such as app=qwen3-8b: %w", k.Selector+k.Pods, err)
		}
	}
	return k.checkProperties()
}

func (k *Kubernetes) checkProperties() error {
	if err := checkPort(k.Port, k.Pods != ""); err != nil {
		return err
	}
	if k.Role != "" {
		if err := CheckRole(k.Role); err != nil {
			return err
		}
	}
	if k.Model != "" {
		if err := CheckUpstreamModel(k.Model); err != nil {
			return err
		}
	}
	if k.Weight != 0 {
		if err := CheckWeight(k.Weight); err != nil {
			return err
		}
	}
	if k.MaxInflight < 0 {
		return fmt.Errorf("max_inflight is %d; write a number from 1 on", k.MaxInflight)
	}
	return nil
}

// checkPort returns an error if port is no port: by number, or by name unless
// only numbers will do.
func checkPort(port string, number bool) error {
	n, err := strconv.Atoi(port)
	switch {
	case err == nil && (n < 1 || n > 65535), err != nil && number:
		return fmt.Errorf("port is %q; write a number from 1 to 65535", port)
	case err != nil && port != "" && len(validation.IsDNS1123Label(port)) > 0:
		return fmt.Errorf("port is %q; write a number from 1 to 65535, or a port's name, such as http", port)
	}
	return nil
}

// CheckRole returns an error if an endpoint cannot have that role.
func CheckRole(role string) error {
	switch role {
	case "prefill", "decode", "both":
		return nil
	}
	return fmt.Errorf("role is %q; write prefill, decode or both", role)
}

// Connect has k look in this cluster. It is called once, after Provision.
func (k *Kubernetes) Connect(c *Cluster) {
	at, from := c.Where(k.Namespace), c.Discovery()
	switch {
	case k.Service != "":
		k.endpoints = from.Service(at, k.Service, k.Port, k.attributes)
	case k.Selector != "":
		k.endpoints = from.Selector(at, k.selector, k.Port, k.attributes)
	default:
		port, _ := strconv.Atoi(k.Port) // as Check has made sure
		k.endpoints = from.Pods(at, k.selector, port, k.attributes)
	}
}

// Models implements [routing.Source].
func (k *Kubernetes) Models() ([]routing.Model, <-chan struct{}) { return k.endpoints.Models() }

// Settled implements [routing.Settler].
func (k *Kubernetes) Settled() bool { return k.endpoints.Settled() }

// Start implements [routing.Starter].
func (k *Kubernetes) Start() error { return k.endpoints.Start() }

// Cleanup ends what Start began.
func (k *Kubernetes) Cleanup() error {
	if k.endpoints != nil {
		k.endpoints.Close()
	}
	return nil
}

// String returns the namespace and what is looked for in it, as users write
// them.
func (k *Kubernetes) String() string {
	what := k.Selector + k.Pods
	if k.Service == "" {
		return k.Namespace + " " + what
	}
	if k.Port != "" {
		return k.Namespace + "/" + k.Service + ":" + k.Port
	}
	return k.Namespace + "/" + k.Service
}

// SetService takes over a Service as users write it: its namespace and name,
// and perhaps a port.
func (k *Kubernetes) SetService(text string) error {
	path, port, hasPort := strings.Cut(text, ":")
	namespace, service, ok := strings.Cut(path, "/")
	if !ok || hasPort && port == "" {
		return fmt.Errorf("%q is not a Service; write <namespace>/<service>[:<port>], such as models/qwen3-8b:http", text)
	}
	k.Namespace, k.Service, k.Port = namespace, service, port
	return k.Check()
}

// Interface guards
var (
	_ caddy.Module       = (*Kubernetes)(nil)
	_ caddy.Provisioner  = (*Kubernetes)(nil)
	_ caddy.CleanerUpper = (*Kubernetes)(nil)
	_ routing.Source     = (*Kubernetes)(nil)
	_ routing.Starter    = (*Kubernetes)(nil)
	_ routing.Settler    = (*Kubernetes)(nil)
)
