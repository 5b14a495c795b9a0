package k8sdiscovery

import (
	"os"
	"strings"
)

// namespaceFile is where a pod finds the namespace that it runs in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Namespace returns the namespace to look in where none is named: that in the
// environment variable POD_NAMESPACE, else that of the context or, in a cluster,
// of the pod, else default.
func (cfg Config) Namespace() string {
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	if cfg.Kubeconfig != "" || cfg.Context != "" {
		if ns, _, err := cfg.client().Namespace(); err == nil && ns != "" {
			return ns
		}
	} else if b, err := os.ReadFile(namespaceFile); err == nil {
		if ns := strings.TrimSpace(string(b)); ns != "" {
			return ns
		}
	}
	return "default"
}

// Namespace returns the namespace to look in where none is named.
func (c *Cluster) Namespace() string { return c.cfg.Namespace() }
