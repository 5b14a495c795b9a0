package chart

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// service makes a Service for the pods of a model, as FlexInfer's controller does.
func service(t *testing.T, ns, name string) {
	t.Helper()
	_, err := kube.Client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"flexinfer.ai/model": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8000)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// deployment makes a Deployment of pods for a model.
func deployment(t *testing.T, ns, name string, replicas int32) {
	t.Helper()
	kube.Deployment(t, ns, name, "flexinfer.ai/model", replicas)
}

// customResources has the cluster know FlexInfer's resources under a group.
func customResources(t *testing.T, group string) {
	t.Helper()
	b, err := os.ReadFile("../kube/crds/" + group + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	crds := kube.Dynamic.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096); ; {
		var crd unstructured.Unstructured
		if err := decoder.Decode(&crd); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if _, err := crds.Create(t.Context(), &crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		harness.Eventually(t, harness.Patience, crd.GetName()+" is known", func() bool {
			now, err := crds.Get(t.Context(), crd.GetName(), metav1.GetOptions{})
			if err != nil {
				return false
			}
			conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
			return slices.ContainsFunc(conditions, func(c any) bool {
				condition := c.(map[string]any)
				return condition["type"] == "Established" && condition["status"] == "True"
			})
		})
	}
}

// resource makes one of FlexInfer's resources, with a status if it has one.
func resource(t *testing.T, ns, version, kind, name, spec, status string) {
	t.Helper()
	object := unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": ns},
		"spec":     harness.Decode[map[string]any](t, []byte(spec)),
	}}
	gv, _ := schema.ParseGroupVersion(version)
	client := kube.Dynamic.Resource(gv.WithResource(strings.ToLower(kind) + "s")).Namespace(ns)
	made, err := client.Create(t.Context(), &object, metav1.CreateOptions{})
	if err == nil && status != "" {
		made.Object["status"] = harness.Decode[map[string]any](t, []byte(status))
		_, err = client.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatalf("%s %s: %v", kind, name, err)
	}
}
