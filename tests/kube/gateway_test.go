package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// What a gateway may be allowed.
var (
	seeSlices = rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}}
	seePods   = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}}
)

// inCluster returns the configuration of a gateway that is the account, with
// models' blocks.
func inCluster(t *testing.T, a *cluster.Account, models ...string) harness.Config {
	t.Helper()
	return withKubeconfig(a.Namespace, a.Kubeconfig(t), models...)
}

// withKubeconfig is inCluster for a kubeconfig. Calls for a model without
// endpoints do not wait for long: most tests want to see that there are none.
func withKubeconfig(ns, path string, models ...string) harness.Config {
	return harness.Config{Flexinfer: "kubernetes {\n\tkubeconfig " + path + "\n\tnamespace " + ns + "\n}\n" +
		"queue {\n\ttimeout 300ms\n\tcold_start_timeout 300ms\n}\n" + strings.Join(models, "")}
}

// model returns a model's block, in which calls go to each endpoint in turn.
func model(name string, lines ...string) string {
	return "model " + name + " {\n\trouting round-robin\n\t" + strings.Join(lines, "\n\t") + "\n}\n"
}

// start starts a gateway that may see EndpointSlices of a namespace, with a
// model m that is made of what the lines say.
func start(t *testing.T, ns string, lines ...string) *harness.Gateway {
	t.Helper()
	return harness.Start(t, inCluster(t, kube.Account(t, ns, seeSlices), model("m", lines...)))
}

// chat returns the body of a chat that has nothing to route by.
func chat(model string) string { return fmt.Sprintf(`{"model":%q}`, model) }

// ask makes a call for a model, and returns the address of the upstream that
// answered, or what went wrong.
func ask(t *testing.T, g *harness.Gateway, model string) string {
	t.Helper()
	res, err := g.Try(t.Context(), http.MethodPost, "/v1/chat/completions", chat(model))
	switch {
	case err != nil:
		return err.Error()
	case res.Status != http.StatusOK:
		return res.String()
	}
	return harness.Decode[struct{ Upstream string }](t, res.Body).Upstream
}

// readAll returns the rest of an answer.
func readAll(t *testing.T, res *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("reading the answer: %v", err)
	}
	return string(body)
}

// endpointsOf returns the addresses of a model's endpoints, sorted.
func endpointsOf(t *testing.T, g *harness.Gateway, model string) []string {
	t.Helper()
	addrs := []string{}
	for _, m := range g.Models(t) {
		if m.Name == model {
			for _, e := range m.Endpoints {
				addrs = append(addrs, e.Address)
			}
		}
	}
	slices.Sort(addrs)
	return addrs
}

// wantEndpoints waits until a model has these endpoints and no others, and
// sees that calls reach each of them as often as any other.
func wantEndpoints(t *testing.T, g *harness.Gateway, model string, us ...*harness.Upstream) {
	t.Helper()
	want := []string{}
	for _, u := range us {
		want = append(want, u.Addr)
	}
	slices.Sort(want)
	var got []string
	if !harness.Within(harness.Patience, func() bool {
		got = endpointsOf(t, g, model)
		return slices.Equal(got, want)
	}) {
		t.Fatalf("the model %s has the endpoints %v, want %v", model, got, want)
	}
	const rounds = 5
	counts := make(map[string]int)
	for range rounds * len(us) {
		counts[ask(t, g, model)]++
	}
	for _, addr := range want {
		if counts[addr] != rounds {
			t.Fatalf("of %d calls in turn the endpoints got %v", rounds*len(us), counts)
		}
	}
}

// wantRefusal waits until a call for a model is refused with this status.
func wantRefusal(t *testing.T, g *harness.Gateway, model string, status int) *harness.Response {
	t.Helper()
	var res *harness.Response
	harness.Eventually(t, harness.Patience, fmt.Sprintf("a call for %s is refused with %d", model, status), func() bool {
		res = g.Post(t, "/v1/chat/completions", chat(model))
		return res.Status == status
	})
	return res
}

// cancellable returns a context for calls that leave.
func cancellable(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(t.Context())
}
