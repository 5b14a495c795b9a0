package kube

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// allowEverywhere lets an account do what the rules say in all namespaces.
func allowEverywhere(t *testing.T, a *cluster.Account, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: a.Namespace + "-" + a.Name}
	if _, err := kube.Client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: a.Name, Namespace: a.Namespace}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// With `namespace *` the models of all namespaces are served and woken, those
// of namespaces that come later too, by one watch of each resource in the whole
// cluster.
func TestAllNamespaces(t *testing.T) {
	home := kube.Namespace(t)
	spaces := []string{kube.Namespace(t), kube.Namespace(t)}
	slices.Sort(spaces)
	first, second := spaces[0], spaces[1]
	u := upstreams(t, 6)
	serve(t, first, "wide-a", nil, u[0])
	create(t, models, first, "wide-a", inTurn, spec(), ready)
	serve(t, second, "wide-b", nil, u[1])
	create(t, models, second, "wide-b", inTurn, spec(), ready)
	create(t, adapters, second, "wide-lora", nil, fields{"adapterName": "wide-lora", "modelRef": "wide-b"}, nil)
	// Of two with one name that in the first namespace has it.
	for i, ns := range []string{second, first} {
		serve(t, ns, "wide-twice", nil, u[2+i])
		create(t, models, ns, "wide-twice", inTurn, spec(), ready)
	}
	a := kube.Account(t, home)
	cfg := discoveringConfig(t, a, model("wide-static", "endpoints "+second+"/wide-b"))
	cfg.Flexinfer = strings.Replace(cfg.Flexinfer, "namespace "+home, "namespace *", 1)

	g := harness.Start(t, cfg)
	harness.Eventually(t, harness.Patience, "the log names the rule of a ClusterRole", func() bool {
		return warned(g, "ClusterRole", "endpointslices", "list", "watch")
	})
	allowEverywhere(t, a, all...)
	harness.Eventually(t, recovery, "a model is there", func() bool { return len(endpointsOf(t, g, "wide-b")) == 1 })
	wantEndpoints(t, g, "wide-a", u[0])
	wantEndpoints(t, g, "wide-b", u[1])
	wantEndpoints(t, g, "wide-static", u[1])
	wantAnswer(t, g, "wide-lora", u[1])
	wantEndpoints(t, g, "wide-twice", u[3])
	harness.Eventually(t, harness.Patience, "the log says whose name is taken", func() bool {
		return warned(g, "Model "+second+"/wide-twice", "Model "+first+"/wide-twice")
	})
	if err := kube.Dynamic.Resource(models).Namespace(first).Delete(t.Context(), "wide-twice", deleteOptions); err != nil {
		t.Fatal(err)
	}
	wantEndpoints(t, g, "wide-twice", u[2])

	late := kube.Namespace(t)
	create(t, models, late, "wide-late", inTurn, spec(), idle)
	listed := func(name string) {
		t.Helper()
		harness.Eventually(t, harness.Patience, name+" is listed", func() bool {
			return strings.Contains(string(g.Get(t, "/v1/models").Body), `"`+name+`"`)
		})
	}
	listed("wide-late")
	answers := waiting(t, g, "wide-late", 2)
	wantWoken(t, late, "wide-late")
	serve(t, late, "wide-late", nil, u[4])
	setPhase(t, late, "wide-late", "Ready")
	wantAll(t, answers, 2, http.StatusOK, "")

	// A Deployment is scaled where it is.
	create(t, deployments, second, "wide-old", inTurn, fields{"backend": "vllm", "model": "wide-old", "replicas": 0}, idle)
	serve(t, second, "wide-old", nil, u[5])
	listed("wide-old")
	answers = waiting(t, g, "wide-old", 1)
	harness.Eventually(t, harness.Patience, "it is given a replica", func() bool {
		n, _, _ := unstructured.NestedInt64(get(t, deployments, second, "wide-old"), "spec", "replicas")
		return n == 1
	})
	change(t, deployments, second, "wide-old", fields{"status": fields{"conditions": []any{fields{"type": "Ready", "status": "True"}}}}, "status")
	wantAll(t, answers, 1, http.StatusOK, "")

	for what, n := range a.Watches(t) {
		if !strings.HasSuffix(what, "/") || n != 1 {
			t.Errorf("%d watches of %s", n, what)
		}
	}
}
