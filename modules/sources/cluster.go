package sources

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/k8sdiscovery"
)

// DefaultSyncTimeout is that of [Cluster].
const DefaultSyncTimeout = caddy.Duration(10 * time.Second)

// clusters holds a connection for each cluster that any configuration uses, so
// that a reload finds what is known of it.
var clusters = caddy.NewUsagePool()

type clusterKey struct{ kubeconfig, context string }

// Cluster says which Kubernetes cluster models and endpoints are looked for in.
// Nothing is asked of the cluster before the configuration starts, and one that
// does not answer then is waited for: its models come when it does. What is
// known of it serves on while it is away, and over reloads.
type Cluster struct {
	// The namespaces in which FlexInfer's resources are looked for; `*`
	// stands for all. Endpoints are looked for where a model says. Default:
	// the namespace that the gateway runs in, or that of the context.
	Namespaces []string `json:"namespaces,omitempty"`

	// The path of a kubeconfig file. Default: none, and the cluster is that
	// which the gateway runs in, reached as its pod's service account. The
	// path may hold global placeholders.
	Kubeconfig string `json:"kubeconfig,omitempty"`

	// The context in the kubeconfig. With a context alone the file is the
	// one that kubectl takes. Default: the current one.
	Context string `json:"context,omitempty"`

	// The API group of FlexInfer's resources. Default: whichever of
	// `inference.flexinfer.ai` and `ai.flexinfer` the cluster has.
	APIGroup string `json:"api_group,omitempty"`

	// Whether demand for a model that shares a GPU is written to its
	// GPUGroup, and the group's word is waited for. Default: `false`.
	GPUGroups bool `json:"gpu_groups,omitempty"`

	// How long the cluster may take to show what it has before /readyz stops
	// saying that the gateway is starting. Default: `10s`.
	SyncTimeout caddy.Duration `json:"sync_timeout,omitempty"`

	key  clusterKey
	pool *k8sdiscovery.Cluster // nil unless provisioned

	waker     *k8sdiscovery.Waker     // nil unless provisioned
	resources *k8sdiscovery.Resources // nil unless asked for
}

// allNamespaces is how users write all namespaces.
const allNamespaces = "*"

// Provision sets up c. Without a configuration it is nil's defaults.
func (c *Cluster) Provision(caddy.Context) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.SyncTimeout == 0 {
		c.SyncTimeout = DefaultSyncTimeout
	}
	repl := caddy.NewReplacer()
	path, err := repl.ReplaceOrErr(c.Kubeconfig, true, true)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	c.key = clusterKey{path, c.Context}
	v, _, err := clusters.LoadOrNew(c.key, func() (caddy.Destructor, error) {
		return pooledCluster{k8sdiscovery.New(k8sdiscovery.Config{
			Kubeconfig: path, Context: c.Context, Logger: clusterLogger,
		})}, nil
	})
	if err != nil {
		return err
	}
	c.pool = v.(pooledCluster).Cluster
	return c.provisionWaker()
}

func (c *Cluster) validate() error {
	if err := CheckNamespaces(c.Namespaces); err != nil {
		return err
	}
	if c.APIGroup != "" {
		if err := CheckAPIGroup(c.APIGroup); err != nil {
			return err
		}
	}
	if c.SyncTimeout < 0 {
		return fmt.Errorf("sync_timeout is %s; write a time above 0, such as 10s", time.Duration(c.SyncTimeout))
	}
	return nil
}

// CheckNamespaces returns an error if [Cluster] cannot have these.
func CheckNamespaces(names []string) error {
	for i, ns := range names {
		switch {
		case slices.Contains(names[:i], ns):
			return fmt.Errorf("namespace %s is there twice", ns)
		case ns == allNamespaces:
		default:
			if err := CheckNamespace(ns); err != nil {
				return err
			}
		}
	}
	if len(names) > 1 && slices.Contains(names, allNamespaces) {
		return errors.New("namespace * stands for all; leave out the others")
	}
	return nil
}

// CheckNamespace returns an error if no namespace can have that name.
func CheckNamespace(name string) error {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return fmt.Errorf("%q is not the name of a namespace, such as models", name)
	}
	return nil
}

// CheckAPIGroup returns an error if no API group can have that name.
func CheckAPIGroup(name string) error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%q is not the name of an API group, such as inference.flexinfer.ai", name)
	}
	return nil
}

// Cleanup gives c up.
func (c *Cluster) Cleanup() error {
	if c == nil || c.pool == nil {
		return nil
	}
	err := c.cleanupModels()
	c.pool = nil
	_, gone := clusters.Delete(c.key)
	return errors.Join(err, gone)
}

// Discovery returns the connection to the cluster.
func (c *Cluster) Discovery() *k8sdiscovery.Cluster { return c.pool }

// Wide reports whether all namespaces are looked at.
func (c *Cluster) Wide() bool { return slices.Contains(c.Namespaces, allNamespaces) }

// Where returns where a source looks that looks in this namespace.
func (c *Cluster) Where(namespace string) k8sdiscovery.Where {
	return k8sdiscovery.Where{Namespace: namespace, Wide: c.Wide(), SyncTimeout: time.Duration(c.SyncTimeout)}
}

// clusterLogger returns the logger of a cluster. It is looked up anew each time:
// one from a configuration would outlive it.
func clusterLogger() *zap.Logger { return caddy.Log().Named("flexinfer.kubernetes") }

// pooledCluster has the pool close the connection that nobody uses any more.
type pooledCluster struct{ *k8sdiscovery.Cluster }

// Destruct implements [caddy.Destructor].
func (p pooledCluster) Destruct() error {
	p.Close()
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner  = (*Cluster)(nil)
	_ caddy.CleanerUpper = (*Cluster)(nil)
)
