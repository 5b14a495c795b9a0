package sources

import (
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/k8sdiscovery"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// wakers holds what wakes the models of a cluster, while any configuration uses
// it, so that a reload neither forgets who waits nor lets a model fall asleep.
var wakers = caddy.NewUsagePool()

type wakerKey struct {
	cluster   clusterKey
	apiGroup  string
	gpuGroups bool
}

func (c *Cluster) wakerKey() wakerKey { return wakerKey{c.key, c.APIGroup, c.GPUGroups} }

// Namespace returns the namespace of what is named without one: the first that
// is listed, or else that which the gateway runs in.
func (c *Cluster) Namespace() string {
	if len(c.Namespaces) > 0 && !c.Wide() {
		return c.Namespaces[0]
	}
	return c.pool.Namespace()
}

func (c *Cluster) provisionWaker() error {
	v, _, err := wakers.LoadOrNew(c.wakerKey(), func() (caddy.Destructor, error) {
		return pooledWaker{c.pool.Waker(k8sdiscovery.WakerConfig{
			APIGroup: c.APIGroup, GPUGroups: c.GPUGroups,
			OnScaleUp: metrics.ScaleUp, OnSwapSignal: metrics.SwapSignal, OnQueued: metrics.GroupQueued,
		})}, nil
	})
	if err == nil {
		c.waker = v.(pooledWaker).Waker
	}
	return err
}

// Waker returns what wakes the cluster's models.
func (c *Cluster) Waker() *k8sdiscovery.Waker { return c.waker }

// Resources returns the models that FlexInfer's resources in the cluster
// declare. One that loads its weights without progress for as long as
// stalledLoad counts as stalled; 0 is the default. One that does not say how
// long it may take to wake may take coldStart. It is called once.
func (c *Cluster) Resources(stalledLoad, coldStart time.Duration) *k8sdiscovery.Resources {
	namespaces, waker := c.Namespaces, c.waker
	if len(namespaces) == 0 {
		namespaces = []string{c.Namespace()}
	}
	c.resources = c.pool.Resources(k8sdiscovery.ResourcesConfig{
		Namespaces: namespaces, APIGroup: c.APIGroup, GPUGroups: c.GPUGroups,
		StalledLoad: stalledLoad, ColdStart: coldStart, SyncTimeout: time.Duration(c.SyncTimeout),
		Activator: func(ref k8sdiscovery.Ref) routing.Activator { return waker.Handle(ref) },
		OnStalled: metrics.StalledLoad,
	})
	return c.resources
}

// cleanupModels gives up the waker, and ends the resources.
func (c *Cluster) cleanupModels() error {
	if c.resources != nil {
		c.resources.Close()
		c.resources = nil
	}
	if c.waker == nil {
		return nil
	}
	c.waker = nil
	_, err := wakers.Delete(c.wakerKey())
	return err
}

// pooledWaker has the pool close the waker that nobody uses any more.
type pooledWaker struct{ *k8sdiscovery.Waker }

// Destruct implements [caddy.Destructor].
func (p pooledWaker) Destruct() error {
	p.Close()
	return nil
}
