// Package k8sdiscovery finds endpoints in a Kubernetes cluster: informers in,
// models out. It knows nothing of HTTP servers and their configuration.
//
// A [Cluster] is one connection. What it is asked about it watches, each
// resource in each namespace once, however many ask. Who asks gets a source of
// one model, such as [Cluster.Service], which does no I/O: it has what the
// watches have brought in so far, and keeps it while the API server is away.
package k8sdiscovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const userAgent = "flexinfer-gateway"

// Requests to the API server beyond the first of a watch are the writes of
// activators, which come in bursts.
const (
	requestsPerSecond = 100
	requestBurst      = 200
)

var errClosed = errors.New("the connection to the cluster is closed")

// Config says which cluster is meant.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file, and Context the context in
	// it. With a context alone the file is the one that kubectl takes. With
	// neither, it is the cluster that the process runs in.
	Kubeconfig, Context string

	// Logger returns the logger to use now. A Cluster outlives the
	// configuration that made it, and that one's logger.
	Logger func() *zap.Logger
}

// A Cluster is a connection to a cluster, with the watches that somebody needs.
type Cluster struct {
	cfg     Config
	ctx     context.Context // done when the cluster is closed
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	link  *link // nil until opened
	feeds map[feedKey]*feed

	served map[schema.GroupVersionResource]struct{} // of FlexInfer's resources, as far as was asked
}

// A link is what it takes to talk to the API server.
type link struct {
	config  *rest.Config
	client  *http.Client
	dynamic *dynamic.DynamicClient
}

// New returns a cluster that nothing is known of yet. It does no I/O, so that a
// configuration can be checked where there is no cluster. Close must be called
// in the end.
func New(cfg Config) *Cluster {
	c := &Cluster{cfg: cfg, feeds: make(map[feedKey]*feed), served: make(map[schema.GroupVersionResource]struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Open reads how to reach the cluster, unless it has been read. It does not ask
// the API server for anything: one that is away now may come.
func (c *Cluster) Open() error {
	_, err := c.open()
	return err
}

func (c *Cluster) open() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		return c.link, nil
	}
	if c.ctx.Err() != nil {
		return nil, errClosed
	}
	config, err := c.cfg.rest()
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	config.WarningHandlerWithContext = rest.NoWarnings{}
	l := &link{config: config}
	if l.client, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("setting up the connection to the cluster: %w", err)
	}
	if l.dynamic, err = dynamic.NewForConfigAndClient(config, l.client); err != nil {
		return nil, fmt.Errorf("setting up the connection to the cluster: %w", err)
	}
	c.link = l
	return l, nil
}

// rest returns how to reach the cluster that cfg means.
func (cfg Config) rest() (*rest.Config, error) {
	if cfg.Kubeconfig == "" && cfg.Context == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("the gateway does not run in a cluster: write kubernetes { kubeconfig <path> }, or run it in a pod with a service account")
		}
		if err != nil {
			return nil, fmt.Errorf("reading the pod's service account: %w", err)
		}
		return config, nil
	}
	if cfg.Kubeconfig != "" {
		if _, err := os.Stat(cfg.Kubeconfig); err != nil {
			return nil, fmt.Errorf("kubeconfig: %w", err)
		}
	}
	config, err := cfg.client().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	return config, nil
}

// client returns what a kubeconfig says.
func (cfg Config) client() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if cfg.Kubeconfig != "" {
		rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.Kubeconfig}
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: cfg.Context})
}

// Close ends all watches. Sources made of c keep what they know.
func (c *Cluster) Close() {
	c.mu.Lock()
	c.cancel()
	l := c.link
	c.mu.Unlock()
	c.running.Wait()
	if l != nil {
		utilnet.CloseIdleConnectionsFor(l.client.Transport)
	}
}

// logger returns the logger to use now.
func (c *Cluster) logger() *zap.Logger { return c.cfg.Logger() }
