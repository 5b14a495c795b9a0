package kube

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A Model without an annotation goes to its Service, one with it to its pods.
// Annotations that change act at once.
func TestResourceRouting(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstreams(t, 3)
	svc := atService(t, serve(t, ns, "m", nil, u...))
	create(t, models, ns, "m", nil, spec(), ready)
	g := discovering(t, kube.Account(t, ns, all...))
	wantAnswer(t, g, "m", svc)
	if got := modelOf(t, svc); got != "org/model" {
		t.Errorf("the Service was asked for the model %q, want that of the source", got)
	}
	if got := g.Chat(t, chat("m"), harness.Debug...).Route(); got["target"] != "service-dns" {
		t.Errorf("the route is %v, want the Service", got)
	}

	annotate(t, ns, "m", "flexinfer.ai/routing", "round-robin")
	wantAnswer(t, g, "m", u[0])
	wantEndpoints(t, g, "m", u...)

	annotate(t, ns, "m", "flexinfer.ai/routing", "session-affinity")
	one := func(session string) string {
		res := g.Chat(t, `{"model":"m","session_id":"`+session+`"}`)
		return harness.Decode[struct{ Upstream string }](t, res.Body).Upstream
	}
	harness.Eventually(t, harness.Patience, "a session stays where it is, and others are elsewhere", func() bool {
		places := make(map[string]bool)
		for _, session := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			place := one(session)
			for range 3 {
				if one(session) != place {
					return false
				}
			}
			places[place] = true
		}
		return len(places) > 1 && !places[svc.Addr]
	})

	annotate(t, ns, "m", "flexinfer.ai/routing", "by-the-moon")
	wantAnswer(t, g, "m", svc)
	harness.Eventually(t, harness.Patience, "a warning tells of the unknown strategy", func() bool { return warned(g, "by-the-moon") })

	annotate(t, ns, "m", "flexinfer.ai/routing", "round-robin")
	wantAnswer(t, g, "m", u[1])
	deleteSlice(t, ns, "m-a")
	wantAnswer(t, g, "m", svc)
	apply(t, ns, sliceOf("m", "m-b", at(u[2])))
	wantAnswer(t, g, "m", u[2])
}

// warned reports whether the gateway warned with all of the words in a line.
func warned(g *harness.Gateway, words ...string) bool {
	return slices.ContainsFunc(g.Logs().Lines(), func(line string) bool {
		return strings.Contains(line, `"level":"warn"`) &&
			!slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
}

// A model is asked for by its name, its aliases and its adapters, and its
// engine by the name that it knows.
func TestResourceNames(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstreams(t, 2)
	serve(t, ns, "m", nil, u[0])
	serve(t, ns, "plain", nil, u[1])
	create(t, models, ns, "m", inTurn, spec(fields{
		"config":  fields{"servedModelName": "Org/Served"},
		"litellm": fields{"servedModelName": "m-served", "aliases": []any{"m-alias", "m-other"}},
	}), ready)
	create(t, models, ns, "plain", inTurn, spec(fields{"source": "ollama://llama3:8b"}), ready)
	create(t, adapters, ns, "lora", nil, fields{"adapterName": "sql-lora", "modelRef": "m"}, nil)
	g := discovering(t, kube.Account(t, ns, all...))
	wantEndpoints(t, g, "m", u[0])
	for _, name := range []string{"m", "m-served", "m-alias", "m-other"} {
		wantAnswer(t, g, name, u[0])
		if got := modelOf(t, u[0]); got != "Org/Served" {
			t.Errorf("for %s the engine was asked for %q", name, got)
		}
	}
	wantAnswer(t, g, "sql-lora", u[0])
	if got := modelOf(t, u[0]); got != "sql-lora" {
		t.Errorf("for an adapter the engine was asked for %q", got)
	}
	wantAnswer(t, g, "plain", u[1])
	if got := modelOf(t, u[1]); got != "llama3:8b" {
		t.Errorf("the engine was asked for %q, want that of the source", got)
	}

	list := harness.Decode[struct {
		Data []struct {
			ID       string
			Created  int64
			Metadata fields
		}
	}](t, g.Get(t, "/v1/models").Body)
	if len(list.Data) != 3 || list.Data[0].ID != "m" || list.Data[1].ID != "sql-lora" || list.Data[2].ID != "plain" {
		t.Fatalf("/v1/models lists %v, want m with its adapter and plain", list.Data)
	}
	if m := list.Data[0]; m.Created == 0 || m.Metadata["backend"] != "vllm" || m.Metadata["source"] != "HF://org/model" || m.Metadata["ready"] != true {
		t.Errorf("/v1/models says of m: %v", m)
	}

	// What is taken away is not there, at once and for good.
	if err := kube.Dynamic.Resource(adapters).Namespace(ns).Delete(t.Context(), "lora", deleteOptions); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, g, "sql-lora", http.StatusNotFound)
	change(t, models, ns, "m", fields{"spec": fields{"litellm": fields{"aliases": []any{"m-new"}}}})
	wantAnswer(t, g, "m-new", u[0])
	wantRefusal(t, g, "m-alias", http.StatusNotFound)
	if err := kube.Dynamic.Resource(models).Namespace(ns).Delete(t.Context(), "plain", deleteOptions); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, g, "plain", http.StatusNotFound)
	for name := range g.Metrics(t) {
		if left := g.Metrics(t).Series(name, "model", "plain"); len(left) > 0 {
			t.Errorf("series of a model that is gone: %v", left)
		}
	}
}

// A Model bounds the paths that it serves, and the tokens that may be asked for.
func TestResourcePathsAndWindow(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstream(t)
	serve(t, ns, "m", nil, u)
	create(t, models, ns, "m", map[string]string{
		"flexinfer.ai/routing": "round-robin", "flexinfer.ai/serve-paths": " /v1/chat , /v1/embeddings",
	}, spec(fields{"config": fields{"maxModelLen": 4096}}), ready)
	g := discovering(t, kube.Account(t, ns, all...))
	wantEndpoints(t, g, "m", u)
	if res := g.Post(t, "/v1/completions", chat("m")); res.Status != http.StatusNotFound {
		t.Errorf("a path that is not served: %s", res)
	}
	if res := g.Post(t, "/v1/embeddings", chat("m")); res.Status != http.StatusOK {
		t.Errorf("a path that is served: %s", res)
	}
	if got := g.Metrics(t).Value("flexinfer_proxy_requests_total", "model", "m", "status", "endpoint_unsupported"); got != 1 {
		t.Errorf("%v requests are counted as unsupported, want 1", got)
	}
	res := g.Chat(t, `{"model":"m","max_tokens":100000}`)
	if got := res.Header.Get("X-Flexinfer-Maxtokens-Clamped"); got != "100000->3584" {
		t.Errorf("the tokens were clamped %q", got)
	}
	annotate(t, ns, "m", "flexinfer.ai/serve-paths", nil)
	harness.Eventually(t, harness.Patience, "all paths are served", func() bool {
		return g.Post(t, "/v1/completions", chat("m")).Status == http.StatusOK
	})
}

// Models that are not to be served are refused as what they are.
func TestResourceParkedAndPreempted(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstreams(t, 3)
	parked := fields{"litellm": fields{"enabled": false}}
	serve(t, ns, "parked", nil, u[0])
	serve(t, ns, "warm", nil, u[1])
	serve(t, ns, "behind", nil, u[2])
	create(t, models, ns, "parked", inTurn, spec(parked), fields{"phase": "Idle"})
	create(t, models, ns, "warm", inTurn, spec(parked), ready)
	create(t, models, ns, "behind", inTurn, spec(), fields{"phase": "Preempted", "sharedGroup": fields{"preemptedBy": "primary/other"}})
	g := discovering(t, kube.Account(t, ns, all...))
	wantAnswer(t, g, "warm", u[1])
	if e := wantRefusal(t, g, "parked", http.StatusNotFound).Refusal(t); e.Error.Code != "model_not_found" {
		t.Errorf("a parked model is refused with %v", e)
	}
	if e := wantRefusal(t, g, "behind", http.StatusServiceUnavailable).Refusal(t); e.Error.Code != "service_unavailable" {
		t.Errorf("a preempted model is refused with %v", e)
	}
	for name, status := range map[string]string{"parked": "parked", "behind": "parked_behind_primary"} {
		if got := g.Metrics(t).Value("flexinfer_proxy_requests_total", "model", name, "status", status); got < 1 {
			t.Errorf("no request is counted as %s", status)
		}
		if active := stringAt(get(t, models, ns, name), "status", "lastActiveTime"); active != "" {
			t.Errorf("a call woke %s", name)
		}
	}
}

// The older resource stands for a model too.
func TestResourceModelDeployment(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstream(t)
	serve(t, ns, "old", nil, u)
	create(t, deployments, ns, "old", inTurn, fields{"backend": "vllm", "model": "org/old", "replicas": 1},
		fields{"phase": "Running", "conditions": []any{fields{"type": "Ready", "status": "True"}}})
	g := discovering(t, kube.Account(t, ns, all...))
	wantEndpoints(t, g, "old", u)
	if got := modelOf(t, u); got != "org/old" {
		t.Errorf("the engine was asked for %q", got)
	}
}

// A gateway that has just started refuses no model for good that it may yet
// see.
func TestResourceStartWithoutAPI(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	relay := kube.Relay(t)
	u := upstream(t)
	serve(t, ns, "m", nil, u)
	create(t, models, ns, "m", inTurn, spec(), ready)
	path := kube.Account(t, ns, all...).KubeconfigThrough(t, relay)
	g := harness.Start(t, harness.Config{Flexinfer: "kubernetes {\n\tkubeconfig " + path + "\n\tnamespace " + ns + "\n\tsync_timeout 2m\n}"})
	if res := g.Get(t, "/readyz"); res.Status != http.StatusServiceUnavailable || !strings.Contains(string(res.Body), "starting") {
		t.Errorf("/readyz: %s", res)
	}
	if res := g.Post(t, "/v1/chat/completions", chat("m")); res.Status != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("a call while nothing is known: %s %v", res, res.Header)
	}
	relay.Open(t)
	harness.Eventually(t, recovery, "the gateway is ready", func() bool { return g.Get(t, "/readyz").Status == http.StatusOK })
	wantEndpoints(t, g, "m", u)
	wantRefusal(t, g, "unknown", http.StatusNotFound)
	relay.Cut()
	wantEndpoints(t, g, "m", u)
	if res := g.Get(t, "/readyz"); res.Status != http.StatusOK {
		t.Errorf("/readyz while the cluster is away: %s", res)
	}
}

// Resources that may not be read are named, and those that may be are served.
func TestResourcePartlyReadable(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstream(t)
	serve(t, ns, "m", nil, u)
	create(t, models, ns, "m", inTurn, spec(), ready)
	create(t, adapters, ns, "lora", nil, fields{"adapterName": "sql-lora", "modelRef": "m"}, nil)
	only := rbacv1.PolicyRule{APIGroups: []string{models.Group}, Resources: []string{"models"}, Verbs: []string{"list", "watch"}}
	a := kube.Account(t, ns, seeSlices, seeServices, only)
	g := discovering(t, a)
	wantEndpoints(t, g, "m", u)
	harness.Eventually(t, harness.Patience, "a warning names the rule", func() bool { return warned(g, "Role", models.Group, "loraadapters", "list", "watch") })
	wantRefusal(t, g, "sql-lora", http.StatusNotFound)
	a.Allow(t, all...)
	harness.Eventually(t, recovery, "the adapter is served", func() bool { return ask(t, g, "sql-lora") == u.Addr })
}

// Resources that the cluster does not know yet are picked up when it does, under
// FlexInfer's other API group too.
func TestResourceComeLater(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstream(t)
	cfg := discoveringConfig(t, kube.Account(t, ns, all...))
	cfg.Flexinfer = strings.Replace(cfg.Flexinfer, "kubernetes {\n", "kubernetes {\n\tapi_group "+otherGroup+"\n", 1)
	g := harness.Start(t, cfg)
	harness.Eventually(t, harness.Patience, "a warning tells that there are none", func() bool { return warned(g, otherGroup) })
	wantRefusal(t, g, "m", http.StatusNotFound)
	other := models
	other.Group = otherGroup
	serve(t, ns, "m", nil, u)
	create(t, other, ns, "m", inTurn, spec(), ready)
	within(t, recovery, g, "m", 1)
	wantEndpoints(t, g, "m", u)
}

func stringAt(o fields, path ...string) string {
	for _, key := range path[:len(path)-1] {
		o, _ = o[key].(fields)
	}
	s, _ := o[path[len(path)-1]].(string)
	return s
}
