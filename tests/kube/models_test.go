package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// FlexInfer's resources. Those under the other API group come in a test of
// their own.
var (
	models      = schema.GroupVersionResource{Group: "ai.flexinfer", Version: "v1alpha2", Resource: "models"}
	adapters    = schema.GroupVersionResource{Group: "ai.flexinfer", Version: "v1alpha2", Resource: "loraadapters"}
	deployments = schema.GroupVersionResource{Group: "ai.flexinfer", Version: "v1alpha1", Resource: "modeldeployments"}
	gpuGroups   = schema.GroupVersionResource{Group: "ai.flexinfer", Version: "v1alpha1", Resource: "gpugroups"}
)

const otherGroup = "inference.flexinfer.ai"

// What a gateway may be allowed besides.
var (
	seeServices  = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}}
	seeResources = rbacv1.PolicyRule{
		APIGroups: []string{models.Group, otherGroup},
		Resources: []string{"models", "modeldeployments", "loraadapters", "gpugroups"}, Verbs: []string{"get", "list", "watch"},
	}
	wakeModels = rbacv1.PolicyRule{
		APIGroups: []string{models.Group, otherGroup},
		Resources: []string{"models/status", "modeldeployments/status"}, Verbs: []string{"get", "patch", "update"},
	}
	wakeDeployments = rbacv1.PolicyRule{
		APIGroups: []string{models.Group, otherGroup}, Resources: []string{"modeldeployments", "gpugroups"}, Verbs: []string{"patch", "update"},
	}
	all = []rbacv1.PolicyRule{seeSlices, seeServices, seeResources, wakeModels, wakeDeployments}
)

// fields is a part of an object.
type fields = map[string]any

var installed sync.Map // API group → func() error

// install makes FlexInfer's resources known under an API group, once.
func install(t *testing.T, group string) {
	t.Helper()
	once, _ := installed.LoadOrStore(group, sync.OnceValue(func() error { return installCRDs(t, group) }))
	if err := once.(func() error)(); err != nil {
		t.Fatal(err)
	}
}

func installCRDs(t *testing.T, group string) error {
	text, err := os.ReadFile("crds/" + group + ".yaml")
	if err != nil {
		return err
	}
	client := kube.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		crd := new(unstructured.Unstructured)
		if err := yaml.Unmarshal([]byte(doc), &crd.Object); err != nil {
			return err
		}
		if _, err := client.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
			return err
		}
		harness.Eventually(t, harness.Patience, crd.GetName()+" is established", func() bool {
			now, err := client.Get(t.Context(), crd.GetName(), metav1.GetOptions{})
			if err != nil {
				return false
			}
			conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
			for _, c := range conditions {
				if c, ok := c.(fields); ok && c["type"] == "Established" && c["status"] == "True" {
					return true
				}
			}
			return false
		})
	}
	// It takes a moment longer until the API server tells of them, and a
	// gateway that asks meanwhile would do without.
	harness.Eventually(t, harness.Patience, "the API server tells of "+group, func() bool {
		told := 0
		for _, version := range []string{"/v1alpha1", "/v1alpha2"} {
			if list, err := kube.Client.Discovery().ServerResourcesForGroupVersion(group + version); err == nil {
				told += len(list.APIResources)
			}
		}
		return told == 2*4 // each with its status
	})
	return nil
}

// create makes one of FlexInfer's resources, with a status.
func create(t *testing.T, gvr schema.GroupVersionResource, ns, name string, annotations map[string]string, spec, status fields) {
	t.Helper()
	install(t, gvr.Group)
	kinds := map[string]string{"models": "Model", "loraadapters": "LoRAAdapter", "modeldeployments": "ModelDeployment", "gpugroups": "GPUGroup"}
	o := &unstructured.Unstructured{Object: fields{
		"apiVersion": gvr.GroupVersion().String(), "kind": kinds[gvr.Resource],
		"metadata": fields{"name": name}, "spec": spec,
	}}
	o.SetAnnotations(annotations)
	if _, err := kube.Dynamic.Resource(gvr).Namespace(ns).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if status != nil {
		change(t, gvr, ns, name, fields{"status": status}, "status")
	}
}

// change merges a part of an object into it, perhaps into its status.
func change(t *testing.T, gvr schema.GroupVersionResource, ns, name string, part fields, subresources ...string) {
	t.Helper()
	patch, err := json.Marshal(part)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.Dynamic.Resource(gvr).Namespace(ns).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...); err != nil {
		t.Fatal(err)
	}
}

// setPhase writes a Model's phase.
func setPhase(t *testing.T, ns, name, phase string) {
	t.Helper()
	change(t, models, ns, name, fields{"status": fields{"phase": phase}}, "status")
}

// annotate changes an annotation of a Model; nil takes it away.
func annotate(t *testing.T, ns, name, key string, value any) {
	t.Helper()
	change(t, models, ns, name, fields{"metadata": fields{"annotations": fields{key: value}}})
}

// get returns an object.
func get(t *testing.T, gvr schema.GroupVersionResource, ns, name string) fields {
	t.Helper()
	o, err := kube.Dynamic.Resource(gvr).Namespace(ns).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return o.Object
}

// routing is the annotation that has a Model's calls go to its pods as they
// come.
func routing(strategy string) map[string]string {
	return map[string]string{"flexinfer.ai/routing": strategy}
}

// inTurn has them go to each in turn.
var inTurn = routing("round-robin")

// serve makes a Service for a model and slices for the upstreams, in which
// nothing happens by itself.
func serve(t *testing.T, ns, name string, annotations map[string]string, us ...*harness.Upstream) *corev1.Service {
	t.Helper()
	svc, err := kube.Client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, ns, sliceOf(name, name+"-a", endpointsAt(us...)...))
	return svc
}

// atService starts an upstream at the address that a Service's name stands for.
func atService(t *testing.T, svc *corev1.Service) *harness.Upstream {
	t.Helper()
	return harness.NewUpstreamAt(t, net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(svc.Spec.Ports[0].Port))), nil)
}

// spec returns the spec of a Model, with what else is given.
func spec(more ...fields) fields {
	s := fields{"backend": "vllm", "source": "HF://org/model"}
	for _, m := range more {
		maps.Copy(s, m)
	}
	return s
}

var ready = fields{"phase": "Ready"}

// discovering starts a gateway that reads the resources of a namespace, with
// further lines in its configuration, and waits until it has read them.
func discovering(t *testing.T, a *cluster.Account, lines ...string) *harness.Gateway {
	t.Helper()
	return startSettled(t, discoveringConfig(t, a, lines...))
}

// startSettled starts a gateway and waits until it is ready.
func startSettled(t *testing.T, cfg harness.Config) *harness.Gateway {
	t.Helper()
	g := harness.Start(t, cfg)
	harness.Eventually(t, harness.Patience, "the gateway is ready", func() bool { return g.Get(t, "/readyz").Status == http.StatusOK })
	return g
}

func discoveringConfig(t *testing.T, a *cluster.Account, lines ...string) harness.Config {
	t.Helper()
	return harness.Config{Flexinfer: fmt.Sprintf("kubernetes {\n\tkubeconfig %s\n\tnamespace %s\n}\n%s",
		a.Kubeconfig(t), a.Namespace, strings.Join(lines, "\n"))}
}

// wantAnswer waits until a call for a model is answered by an upstream.
func wantAnswer(t *testing.T, g *harness.Gateway, model string, u *harness.Upstream) {
	t.Helper()
	var got string
	if !harness.Within(harness.Patience, func() bool {
		got = ask(t, g, model)
		return got == u.Addr
	}) {
		t.Fatalf("a call for %s is answered by %s, want %s", model, got, u.Addr)
	}
}

// modelOf returns the model that an upstream was asked for last.
func modelOf(t *testing.T, u *harness.Upstream) string {
	t.Helper()
	return harness.Decode[struct{ Model string }](t, u.Last(t).Body).Model
}

var deleteOptions metav1.DeleteOptions
