package chart

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

const examples = "../../examples/kubernetes/"

// resources are where the kinds of the examples' objects are.
var resources = map[string]schema.GroupVersionResource{
	"ServiceAccount": corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
	"Service":        corev1.SchemeGroupVersion.WithResource("services"),
	"Deployment":     appsv1.SchemeGroupVersion.WithResource("deployments"),
	"Role":           {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":    {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
}

// create makes the objects of a file, in which the API server may find nothing
// that it does not know.
func create(t *testing.T, file string, options metav1.CreateOptions) {
	t.Helper()
	b, err := os.ReadFile(examples + file)
	if err != nil {
		t.Fatal(err)
	}
	options.FieldValidation = metav1.FieldValidationStrict
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096); ; {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := kube.Dynamic.Resource(resources[object.GetKind()]).Namespace(object.GetNamespace()).
			Create(t.Context(), &object, options); err != nil {
			t.Errorf("%s: %s: %v", file, object.GetKind(), err)
		}
	}
}

// The manifests of the example are ones that a cluster takes, and the gateway
// of the example serves its engines with the rights that it has there.
func TestKubernetesExample(t *testing.T) {
	const ns = "models"
	if _, err := kube.Client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{})
	create(t, "vllm.yaml", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	create(t, "engines.yaml", metav1.CreateOptions{})
	engines := k.WaitPods(t, 2)
	create(t, "gateway.yaml", metav1.CreateOptions{})
	k.WaitPods(t, 4)

	gateway, err := kube.Client.AppsV1().Deployments(ns).Get(t.Context(), "flexinfer-gateway", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	account := kube.AccountNamed(ns, gateway.Spec.Template.Spec.ServiceAccountName)
	caddyfile, err := os.ReadFile(examples + "Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	g := startAs(t, account, string(caddyfile), nil)
	harness.Eventually(t, harness.Patience, "the engines serve the model", func() bool {
		served(t, g, "qwen3-8b")
		return engines[0].Upstream.Served()+engines[1].Upstream.Served() > 0
	})
	harness.Eventually(t, harness.Patience, "both engines are endpoints of it, and no other pod", func() bool {
		models := g.Models(t)
		return len(models) == 1 && len(models[0].Endpoints) == 2
	})
	wantNoneRefused(t, account)
}
