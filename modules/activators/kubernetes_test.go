package activators

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

func TestKubernetesCaddyfile(t *testing.T) {
	for text, want := range map[string]string{
		"kubernetes":                  `{}`,
		"kubernetes models/qwen3-8b":  `{"namespace":"models","name":"qwen3-8b"}`,
		"kubernetes models/qwen3.8b":  `{"namespace":"models","name":"qwen3.8b"}`,
		"kubernetes qwen3-8b":         "write <namespace>/<name>, such as models/qwen3-8b",
		"kubernetes models/":          "write <namespace>/<name>, such as models/qwen3-8b",
		"kubernetes /x":               "write <namespace>/<name>, such as models/qwen3-8b",
		"kubernetes Models/x":         `"Models" is not the name of a namespace`,
		"kubernetes models/a/b":       `"a/b" is not the name of a resource`,
		"kubernetes models/a b":       `leave out "b"`,
		"kubernetes {\n\tstart x\n}":  `leave out "start"`,
		"kubernetes m/x {\n\tidle\n}": `leave out "idle"`,
	} {
		t.Run(text, func(t *testing.T) {
			k := new(Kubernetes)
			err := k.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
			if err != nil {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %v, want %s", err, want)
				}
				return
			}
			if got, err := json.Marshal(k); err != nil || string(got) != want {
				t.Errorf("got %s %v, want %s", got, err, want)
			}
		})
	}
}

// connected returns k with a cluster that cannot be reached.
func connected(t *testing.T, k *Kubernetes, namespaces ...string) *Kubernetes {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	c := &sources.Cluster{Namespaces: namespaces, Kubeconfig: "/nowhere"}
	if err := c.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	k.Connect(c)
	return k
}

func TestKubernetesNamesItsResource(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "mine")
	for name, tt := range map[string]struct {
		k          *Kubernetes
		namespaces []string
		model      string
		namespace  string
		err        string
	}{
		"the model's name":       {&Kubernetes{}, []string{"models", "other"}, "qwen3-8b", "models", "how to reach the cluster"},
		"in all namespaces":      {&Kubernetes{}, []string{"*"}, "qwen3-8b", "mine", "how to reach the cluster"},
		"in none":                {&Kubernetes{}, nil, "qwen3-8b", "mine", "how to reach the cluster"},
		"its own":                {&Kubernetes{Namespace: "b", Name: "x"}, nil, "Qwen/Qwen3-8B", "b", "how to reach the cluster"},
		"no name for a resource": {&Kubernetes{}, nil, "Qwen/Qwen3-8B", "mine", "write activate kubernetes <namespace>/<name>"},
	} {
		t.Run(name, func(t *testing.T) {
			k := connected(t, tt.k, tt.namespaces...)
			if k.Namespace != tt.namespace {
				t.Errorf("namespace %s, want %s", k.Namespace, tt.namespace)
			}
			if err := k.Activate(t.Context(), tt.model); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %s", err, tt.err)
			}
			if first := k.of(tt.model); k.of(tt.model) != first {
				t.Error("another handle for the same model")
			}
			k.Use(tt.model, false)()
			k.Waiting(tt.model, 1)
		})
	}
}
