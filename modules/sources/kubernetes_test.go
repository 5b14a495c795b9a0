package sources

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// elsewhere returns a cluster of which there is not even a kubeconfig.
func elsewhere(t *testing.T) *Cluster {
	t.Helper()
	c := &Cluster{Kubeconfig: filepath.Join(t.TempDir(), "none")}
	if err := c.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestKubernetesWithoutACluster(t *testing.T) {
	for _, config := range []string{
		`{"namespace": "models", "service": "qwen", "port": "http", "role": "decode", "weight": 2, "labels": {"a": "b"}, "max_inflight": 8}`,
		`{"namespace": "models", "selector": "app=qwen,tier in (a, b)"}`,
		`{"namespace": "models", "pods": "app", "port": "8000"}`,
	} {
		m, err := provision(t, "flexinfer.sources.kubernetes", config)
		if err != nil {
			t.Fatalf("%s: %v", config, err)
		}
		k := m.(*Kubernetes)
		k.Connect(elsewhere(t))
		models, changed := k.Models()
		if len(models) != 1 || models[0].Name != "" || len(models[0].Endpoints) != 0 || changed == nil || k.Settled() {
			t.Errorf("%s: before the start: %+v, settled %v", config, models, k.Settled())
		}
		if err := k.Start(); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
			t.Errorf("%s: the start says %v", config, err)
		}
		if err := k.Cleanup(); err != nil {
			t.Error(err)
		}
	}
}

func TestKubernetesErrors(t *testing.T) {
	for _, tt := range []struct{ name, config, remedy string }{
		{"nothing", `{"namespace": "models"}`, "write one of them"},
		{"two forms", `{"namespace": "models", "service": "a", "pods": "b", "port": "1"}`, "write one of them"},
		{"no namespace", `{"service": "a"}`, "not the name of a namespace"},
		{"service", `{"namespace": "models", "service": "A_b"}`, "not the name of a Service"},
		{"selector", `{"namespace": "models", "selector": "a=b=c"}`, "not a label selector"},
		{"port", `{"namespace": "models", "service": "a", "port": "0"}`, "a number from 1 to 65535"},
		{"port's name", `{"namespace": "models", "service": "a", "port": "My Port"}`, "or a port's name"},
		{"pods' port", `{"namespace": "models", "pods": "a"}`, "a number from 1 to 65535"},
		{"role", `{"namespace": "models", "service": "a", "role": "x"}`, "prefill, decode or both"},
		{"weight", `{"namespace": "models", "service": "a", "weight": 101}`, "from 1 to 100"},
		{"max_inflight", `{"namespace": "models", "service": "a", "max_inflight": -1}`, "from 1 on"},
		{"model", `{"namespace": "models", "service": "a", "model": "\u0000"}`, "model: the name"},
		{"header", `{"namespace": "models", "service": "a", "headers": {"Host": "b"}}`, "header_up Host"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := provision(t, "flexinfer.sources.kubernetes", tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.remedy) {
				t.Errorf("got %v, want it to contain %q", err, tt.remedy)
			}
		})
	}
}

func TestKubernetesCaddyfile(t *testing.T) {
	k := new(Kubernetes)
	err := k.UnmarshalCaddyfile(caddyfile.NewTestDispenser("kubernetes endpoints models/qwen:http {\n\trole decode\n\tlabel a b\n}"))
	if err != nil || k.Namespace != "models" || k.Service != "qwen" || k.Port != "http" || k.Role != "decode" || k.Labels["a"] != "b" {
		t.Errorf("got %+v, %v", k, err)
	}
}

func TestClustersAreShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	t.Setenv("CLUSTER_TEST_KUBECONFIG", path)
	first, second := &Cluster{Kubeconfig: path, Namespaces: []string{"*"}}, &Cluster{Kubeconfig: "{env.CLUSTER_TEST_KUBECONFIG}"}
	other := &Cluster{Kubeconfig: path, Context: "other"}
	for _, c := range []*Cluster{first, second, other} {
		if err := c.Provision(caddy.Context{}); err != nil {
			t.Fatal(err)
		}
	}
	if first.Discovery() != second.Discovery() || first.Discovery() == other.Discovery() {
		t.Error("a cluster is not what its kubeconfig and context say")
	}
	if !first.Where("models").Wide || second.Where("models").Wide {
		t.Error("* is not all namespaces")
	}
	for _, c := range []*Cluster{first, second, other, first, nil} { // once more has no effect
		if err := c.Cleanup(); err != nil {
			t.Error(err)
		}
	}
	clusters.Range(func(key, _ any) bool {
		t.Errorf("%v is still there", key)
		return true
	})
}

func TestClusterErrors(t *testing.T) {
	for _, tt := range []struct {
		name, remedy string
		c            Cluster
	}{
		{"namespace", "not the name of a namespace", Cluster{Namespaces: []string{"A"}}},
		{"all and one", "leave out the others", Cluster{Namespaces: []string{"*", "a"}}},
		{"twice", "there twice", Cluster{Namespaces: []string{"a", "a"}}},
		{"api_group", "not the name of an API group", Cluster{APIGroup: "a/b"}},
		{"sync_timeout", "write a time above 0", Cluster{SyncTimeout: -1}},
		{"kubeconfig", "CLUSTER_TEST_UNSET", Cluster{Kubeconfig: "{env.CLUSTER_TEST_UNSET}"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.c.Provision(caddy.Context{}); err == nil || !strings.Contains(err.Error(), tt.remedy) {
				t.Errorf("got %v, want it to contain %q", err, tt.remedy)
			}
		})
	}
}
