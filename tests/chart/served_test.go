package chart

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// may asks the API server whether an account may do something, written as
// "patch models/status.ai.flexinfer".
func may(t *testing.T, account *cluster.Account, namespace, what string) bool {
	t.Helper()
	verb, rest, _ := strings.Cut(what, " ")
	name, group, _ := strings.Cut(rest, ".")
	resource, sub, _ := strings.Cut(name, "/")
	review, err := kube.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   account.User(),
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + account.Namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: sub,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// What the rights of the chart come to, as the API server sees it.
func TestRightsInCluster(t *testing.T) {
	see := []string{"list", "watch"}
	read := append(see[:2:2], "get") // what is written to, too
	always := map[string][]string{
		"endpointslices.discovery.k8s.io": see,
		"services":                        see,
	}
	for _, group := range []string{"ai.flexinfer", "inference.flexinfer.ai"} {
		always["models."+group] = read
		always["models/status."+group] = []string{"patch"}
		always["modeldeployments."+group] = append(read[:3:3], "patch")
		always["modeldeployments/status."+group] = []string{"patch"}
		always["loraadapters."+group] = see
	}
	with := func(more map[string][]string) map[string][]string {
		all := maps.Clone(always)
		maps.Copy(all, more)
		return all
	}
	for name, tt := range map[string]struct {
		values    string
		elsewhere bool // and the rights in other namespaces too
		want      map[string][]string
	}{
		"default":        {``, false, always},
		"pods":           {`kubernetes: {pods: true}`, false, with(map[string][]string{"pods": see})},
		"all namespaces": {`kubernetes: {namespaces: ["*"]}`, true, always},
		"gpu groups": {`kubernetes: {gpuGroups: true}`, false, with(map[string][]string{
			"gpugroups.ai.flexinfer": append(read[:3:3], "patch"), "gpugroups.inference.flexinfer.ai": append(read[:3:3], "patch"),
		})},
	} {
		t.Run(name, func(t *testing.T) {
			ns, other := kube.Namespace(t), kube.Namespace(t)
			r := upgrade(t, ns, "proxy: {replicaCount: 0}\n"+tt.values)
			t.Cleanup(func() { r.uninstall(t) })
			account := kube.AccountNamed(ns, r.object())
			resources := []string{
				"secrets", "configmaps", "pods", "pods/exec", "nodes", "serviceaccounts/token", "deployments.apps",
				"gpugroups.ai.flexinfer", "gpugroups.inference.flexinfer.ai", "gpugroups/status.ai.flexinfer",
			}
			for resource := range always {
				resources = append(resources, resource)
			}
			for _, resource := range resources {
				for _, verb := range []string{"get", "list", "watch", "patch", "update", "create", "delete", "deletecollection"} {
					what := verb + " " + resource
					want := slices.Contains(tt.want[resource], verb)
					if got := may(t, account, ns, what); got != want {
						t.Errorf("%s: allowed %t, want %t", what, got, want)
					}
					if got := may(t, account, other, what); got != (want && tt.elsewhere) {
						t.Errorf("%s in another namespace: allowed %t", what, got)
					}
				}
			}
		})
	}
}

// The chart's rights are what the gateway needs for its models, and each of
// those that it uses for them is missed if it is gone.
func TestServes(t *testing.T) {
	ns := kube.Namespace(t)
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{})
	service(t, ns, "m")
	deployment(t, ns, "m", 2)
	k.WaitPods(t, 2)
	values := fmt.Sprintf(`
proxy:
  replicaCount: 0
  timeouts: {queue: 90s, coldStart: 5m}
  routing: {explicitKeyMaxLength: 64, systemSegmentMaxLength: 1024, documentSegmentMaxLength: 128, labelGroupMode: least-loaded}
  maxTokensClamp: {enabled: false, promptReserveTokens: 1024}
kubernetes: {pods: true}
extraFlexinfer: |
  model by-service {
  	endpoints %[1]s/m:http
  }
  model by-selector {
  	selector %[1]s kubernetes.io/service-name=m
  }
  model by-pods {
  	pods %[1]s flexinfer.ai/model=m 8000
  }
`, ns)
	r := upgrade(t, ns, values)
	models := []string{"by-service", "by-selector", "by-pods"}
	g, account := r.start(t), kube.AccountNamed(ns, r.object())
	for _, model := range models {
		harness.Eventually(t, harness.Patience, model+" is served by a pod", func() bool { return served(t, g, model) })
	}
	if ready := g.Get(t, "/readyz"); ready.Status != http.StatusOK {
		t.Errorf("readyz: %s", ready)
	}
	if log := strings.Join(g.Logs().Lines(), "\n"); strings.Contains(log, "environment") {
		t.Errorf("the gateway does not take what the chart puts into its environment:\n%s", log)
	}
	needs := []string{"list endpointslices", "watch endpointslices", "list pods", "watch pods"}
	harness.Eventually(t, harness.Patience, "each of these rights is used: "+strings.Join(needs, ", "), func() bool {
		done := acts(t, account, http.StatusOK)
		return !slices.ContainsFunc(needs, func(what string) bool { return !done[what] })
	})
	wantNoneRefused(t, account)
	g.Stop()

	role, err := kube.Client.RbacV1().Roles(ns).Get(t.Context(), r.object(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range []string{"endpointslices", "pods"} {
		less := slices.DeleteFunc(slices.Clone(role.Rules), func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.Resources, resource)
		})
		account.Allow(t, less...)
		g := r.start(t)
		harness.Eventually(t, harness.Patience, "the log says that it may not read "+resource, func() bool {
			return strings.Contains(strings.Join(g.Logs().Lines(), "\n"), `resources: [\"`+resource+`\"]`)
		})
		for _, model := range models {
			gone := (model == "by-pods") == (resource == "pods")
			if gone && served(t, g, model) {
				t.Errorf("without the right to read %s %s is served", resource, model)
			}
			if !gone {
				harness.Eventually(t, harness.Patience, model+" is served", func() bool { return served(t, g, model) })
			}
		}
		g.Stop()
	}
	account.Allow(t, role.Rules...)
}

// FlexInfer's resources need no line in the values: those of the release's
// namespace are served, kept awake and woken with the rights of the chart. Each
// of these is used, and is missed if it is gone.
func TestServesFlexInfer(t *testing.T) {
	const group = "ai.flexinfer"
	customResources(t, group)
	ns := kube.Namespace(t)
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{})
	for _, name := range []string{"m", "old"} {
		deployment(t, ns, name, 1)
		service(t, ns, name)
	}
	k.WaitPods(t, 2)
	resource(t, ns, group+"/v1alpha2", "Model", "m", `{"backend":"vllm","source":"HF://m"}`, `{"phase":"Ready"}`)
	resource(t, ns, group+"/v1alpha2", "LoRAAdapter", "lora", `{"adapterName":"lora","modelRef":"m"}`, ``)
	resource(t, ns, group+"/v1alpha1", "ModelDeployment", "old", `{"backend":"vllm","model":"old"}`,
		`{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}`)
	resource(t, ns, group+"/v1alpha1", "ModelDeployment", "sleeping", `{"backend":"vllm","model":"sleeping","replicas":0}`, ``)
	resource(t, ns, group+"/v1alpha1", "ModelDeployment", "grouped", `{"backend":"vllm","model":"grouped","replicas":0,"gpuGroupRef":"gpus"}`, ``)
	resource(t, ns, group+"/v1alpha1", "GPUGroup", "gpus", `{"models":[{"name":"grouped"},{"name":"other"}]}`, `{"phase":"Active","activeModel":"other"}`)

	r := upgrade(t, ns, "proxy: {replicaCount: 0}\nkubernetes: {gpuGroups: true, apiGroup: "+group+"}")
	account := kube.AccountNamed(ns, r.object())

	// use starts a gateway and has it serve and wake, until ok.
	use := func(what string, ok func(g *harness.Gateway) bool) {
		t.Helper()
		asleep(t, ns, group)
		g := r.start(t)
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		for _, model := range []string{"m", "lora", "old", "sleeping", "grouped"} {
			calls.Go(func() {
				for ctx.Err() == nil {
					_, _ = g.Try(ctx, http.MethodPost, "/v1/chat/completions", chat(model))
				}
			})
		}
		defer func() {
			cancel()
			calls.Wait()
			g.Stop()
		}()
		harness.Eventually(t, harness.Patience, what, func() bool { return ok(g) })
	}

	role, err := kube.Client.RbacV1().Roles(ns).Get(t.Context(), r.object(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	use("all is served, and each right is used", func(g *harness.Gateway) bool {
		for _, model := range []string{"m", "lora", "old"} {
			if !served(t, g, model) {
				return false
			}
		}
		done := acts(t, account, http.StatusOK)
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					// To get one is what a list has told already, but for what is written next.
					if !done[verb+" "+resource] && verb != "get" {
						return false
					}
				}
			}
		}
		return true
	})
	wantNoneRefused(t, account)

	for i, rule := range role.Rules {
		account.Allow(t, slices.Delete(slices.Clone(role.Rules), i, i+1)...)
		use(fmt.Sprintf("the rule %v is missed", rule), func(*harness.Gateway) bool {
			refused := acts(t, account, http.StatusForbidden)
			for _, resource := range rule.Resources {
				if !slices.ContainsFunc(rule.Verbs, func(verb string) bool { return refused[verb+" "+resource] }) {
					return false
				}
			}
			return true
		})
	}
	account.Allow(t, role.Rules...)
}

// chat returns the body of a chat.
func chat(model string) string { return fmt.Sprintf(`{"model":%q}`, model) }

// served reports whether a pod answers a call for the model soon. A call for one
// without pods waits for them.
func served(t *testing.T, g *harness.Gateway, model string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	res, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", chat(model))
	return err == nil && res.Status == http.StatusOK &&
		strings.HasSuffix(harness.Decode[struct{ Upstream string }](t, res.Body).Upstream, ":8000")
}

// asleep takes back what a gateway has written to the resources of the test.
func asleep(t *testing.T, ns, group string) {
	t.Helper()
	for _, tt := range []struct{ version, resource, name, patch, sub string }{
		{"v1alpha2", "models", "m", `{"status":{"lastActiveTime":null}}`, "status"},
		{"v1alpha1", "modeldeployments", "old", `{"status":{"lastAccessTime":null}}`, "status"},
		{"v1alpha1", "modeldeployments", "sleeping", `{"spec":{"replicas":0}}`, ""},
		{"v1alpha1", "modeldeployments", "grouped", `{"spec":{"replicas":0}}`, ""},
		{"v1alpha1", "gpugroups", "gpus", `{"metadata":{"annotations":null}}`, ""},
	} {
		var subs []string
		if tt.sub != "" {
			subs = []string{tt.sub}
		}
		client := kube.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: tt.version, Resource: tt.resource})
		if _, err := client.Namespace(ns).Patch(t.Context(), tt.name, types.MergePatchType, []byte(tt.patch), metav1.PatchOptions{}, subs...); err != nil {
			t.Fatal(err)
		}
	}
}

// acts returns what the account did with this result, as "patch models/status".
func acts(t *testing.T, account *cluster.Account, status int) map[string]bool {
	t.Helper()
	done := make(map[string]bool)
	for _, act := range account.Acts(t) {
		if act.ResponseStatus.Code == status {
			done[strings.TrimSuffix(act.Verb+" "+act.ObjectRef.Resource+"/"+act.ObjectRef.Subresource, "/")] = true
		}
	}
	return done
}

// wantNoneRefused sees that the API server let the account do all that it tried.
func wantNoneRefused(t *testing.T, account *cluster.Account) {
	t.Helper()
	for what := range acts(t, account, http.StatusForbidden) {
		t.Errorf("refused: %s", what)
	}
}
