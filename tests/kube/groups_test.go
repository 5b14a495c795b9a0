package kube

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

const staticClaim = "flexinfer.ai/service-labels"

// claiming makes Models that claim the label chat, each with an upstream of its
// own. Their engines know them as engine-a and so on.
func claiming(t *testing.T, ns string, annotations map[string]map[string]string, names ...string) map[string]*harness.Upstream {
	t.Helper()
	ups := make(map[string]*harness.Upstream)
	for _, name := range names {
		ups[name] = upstream(t)
		serve(t, ns, name, map[string]string{staticClaim: "other, chat"}, ups[name])
		own := map[string]string{"flexinfer.ai/routing": "round-robin"}
		maps.Copy(own, annotations[name])
		create(t, models, ns, name, own, spec(fields{"config": fields{"servedModelName": "engine-" + name}}), ready)
	}
	return ups
}

// claim changes an annotation of a Service; nil takes it away.
func claim(t *testing.T, ns, service, key, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value)
	if _, err := kube.Client.CoreV1().Services(ns).Patch(t.Context(), service, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// members returns how many of n calls for a label each of the models answered.
func members(t *testing.T, g *harness.Gateway, label string, n int, ups map[string]*harness.Upstream) map[string]int {
	t.Helper()
	names := make(map[string]string)
	for name, u := range ups {
		names[u.Addr] = name
	}
	got := make(map[string]int)
	for range n {
		answer := ask(t, g, label)
		if name, ok := names[answer]; ok {
			answer = name
		}
		got[answer]++
	}
	return got
}

// wantMembers waits until calls for a label are answered by these models, each
// as often as any other.
func wantMembers(t *testing.T, g *harness.Gateway, label string, ups map[string]*harness.Upstream, names ...string) {
	t.Helper()
	var got map[string]int
	if !harness.Within(harness.Patience, func() bool {
		const rounds = 4
		got = members(t, g, label, rounds*len(names), ups)
		for _, name := range names {
			if got[name] != rounds {
				return false
			}
		}
		return true
	}) {
		t.Fatalf("calls for %s are answered by %v, want %v in turn", label, got, names)
	}
}

// ownModels fails the test if a pod got a call for another's model.
func ownModels(t *testing.T, ups map[string]*harness.Upstream) {
	t.Helper()
	for name, u := range ups {
		for _, r := range u.Requests() {
			if !strings.Contains(string(r.Body), `"engine-`+name+`"`) {
				t.Errorf("the pod of model %s got %s", name, r.Body)
			}
		}
	}
}

// decisions returns how often a label's calls were decided in a way.
func decisions(t *testing.T, g *harness.Gateway, strategy, outcome string) float64 {
	t.Helper()
	return g.Metrics(t).Value("flexinfer_proxy_label_group_route_decisions_total", "label", "chat", "strategy", strategy, "outcome", outcome)
}

// The Ready models that claim a label share its calls; the claims are those of
// their Services at any time.
func TestGroupClaims(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	ups := claiming(t, ns, nil, "a", "b", "c")
	static := upstream(t)
	g := discovering(t, kube.Account(t, ns, all...),
		"model static {\n\tto "+static.Addr+" {\n\t\tmodel engine-static\n\t}\n\tservice_label chat\n}")
	ups["static"] = static
	within(t, harness.Patience, g, "c", 1)
	wantMembers(t, g, "chat", ups, "a", "b", "c", "static")

	setPhase(t, ns, "b", "Loading")
	wantMembers(t, g, "chat", ups, "a", "c", "static")

	// What the controller says now wins over what is said for good.
	claim(t, ns, "c", "ai.flexinfer/active-services", `""`)
	wantMembers(t, g, "chat", ups, "a", "static")
	claim(t, ns, "c", "ai.flexinfer/active-services", `"chat"`)
	wantMembers(t, g, "chat", ups, "a", "c", "static")
	claim(t, ns, "a", staticClaim, "null")
	wantMembers(t, g, "chat", ups, "c", "static")
	wantMembers(t, g, "a", ups, "a")
	setPhase(t, ns, "b", "Ready")
	wantMembers(t, g, "chat", ups, "b", "c", "static")

	ownModels(t, ups)
	if decisions(t, g, "round-robin", "default_rr") == 0 {
		t.Error("no decision is counted")
	}
	for _, name := range []string{"b", "c", "static"} {
		if g.Metrics(t).Value("flexinfer_proxy_label_group_route_target_hits_total", "label", "chat", "model", name) == 0 {
			t.Errorf("no call to %s is counted", name)
		}
	}
}

// Only those with the highest priority of the Ready get any, and the next at
// once when they leave.
func TestGroupPriority(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	priority := func(n string) map[string]string { return map[string]string{"flexinfer.ai/route-priority": n} }
	ups := claiming(t, ns, map[string]map[string]string{"b": priority("100"), "c": priority("-5")}, "a", "b", "c")
	g := discovering(t, kube.Account(t, ns, all...))
	within(t, harness.Patience, g, "c", 1)
	wantMembers(t, g, "chat", ups, "b")
	if decisions(t, g, "round-robin", "priority_pick") == 0 {
		t.Error("no decision is counted as priority_pick")
	}
	setPhase(t, ns, "b", "Preempted")
	wantMembers(t, g, "chat", ups, "a")
	setPhase(t, ns, "a", "Idle")
	wantMembers(t, g, "chat", ups, "c")
	setPhase(t, ns, "b", "Ready")
	wantMembers(t, g, "chat", ups, "b")
	annotate(t, ns, "b", "flexinfer.ai/route-priority", nil)
	setPhase(t, ns, "a", "Ready")
	wantMembers(t, g, "chat", ups, "a", "b")
	ownModels(t, ups)
}

// When none is Ready, the first by name of those with the highest priority is
// woken, and no other.
func TestGroupColdStart(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	priority := map[string]string{"flexinfer.ai/route-priority": "10"}
	ups := claiming(t, ns, map[string]map[string]string{"b": priority, "c": priority}, "a", "b", "c")
	for name := range ups {
		setPhase(t, ns, name, "Idle")
	}
	g := discovering(t, kube.Account(t, ns, all...))
	answers := make(chan error, 5)
	for range cap(answers) {
		go func() { answers <- call(t.Context(), g, chat("chat")) }()
	}
	wantWoken(t, ns, "b")
	harness.Eventually(t, harness.Patience, "all calls wait", func() bool { return queued(t, g, "b") == float64(cap(answers)) })
	setPhase(t, ns, "b", "Ready")
	for range cap(answers) {
		if err := harness.Receive(t, answers, "a call that waited is answered"); err != nil {
			t.Error(err)
		}
	}
	if ups["b"].Served() != cap(answers) {
		t.Errorf("b answered %d calls of %d", ups["b"].Served(), cap(answers))
	}
	for _, name := range []string{"a", "c"} {
		if at := stringAt(get(t, models, ns, name), "status", "lastActiveTime"); at != "" {
			t.Errorf("%s was woken too", name)
		}
	}
	ownModels(t, ups)
}

// Of many calls at once each member gets its part.
func TestGroupLeastLoaded(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	ups := claiming(t, ns, nil, "a", "b", "c")
	gate := harness.NewGate(t)
	for _, u := range ups {
		u.Handle(gate.Then(harness.Answer))
	}
	g := discovering(t, kube.Account(t, ns, all...), "label_groups least-loaded")
	for name := range ups {
		within(t, harness.Patience, g, name, 1)
	}
	const each = 4
	answers := make(chan error, each*len(ups))
	for range cap(answers) {
		go func() { answers <- call(t.Context(), g, chat("chat")) }()
	}
	harness.Eventually(t, harness.Patience, "all calls are under way", func() bool { return gate.Held() == cap(answers) })
	for name, u := range ups {
		if u.Inflight() != each {
			t.Errorf("%s has %d of %d calls", name, u.Inflight(), cap(answers))
		}
	}
	gate.Open()
	for range cap(answers) {
		if err := harness.Receive(t, answers, "a call is answered"); err != nil {
			t.Error(err)
		}
	}
	ownModels(t, ups)
	g.WaitIdle(t)
}

// A session stays with its member, and a member that leaves takes only its own
// sessions with it.
func TestGroupPinsSessions(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	ups := claiming(t, ns, nil, "a", "b", "c", "d")
	g := discovering(t, kube.Account(t, ns, all...), "label_groups session")
	for name := range ups {
		within(t, harness.Patience, g, name, 1)
	}
	const sessions = 80
	places := func() []string {
		list := make([]string, sessions)
		for i := range list {
			res := g.Chat(t, fmt.Sprintf(`{"model":"chat","session_id":"session-%d"}`, i))
			list[i] = harness.Decode[struct{ Upstream string }](t, res.Body).Upstream
		}
		return list
	}
	before := places()
	setPhase(t, ns, "b", "Idle")
	harness.Eventually(t, harness.Patience, "b gets no call", func() bool {
		n := ups["b"].Served()
		places()
		return ups["b"].Served() == n
	})
	lost := 0
	for i, place := range places() {
		switch {
		case before[i] == ups["b"].Addr:
			lost++
		case before[i] != place:
			t.Errorf("session %d moved from %s to %s", i, before[i], place)
		}
	}
	if lost == 0 || lost == sessions {
		t.Errorf("b had %d of %d sessions", lost, sessions)
	}
	setPhase(t, ns, "b", "Ready")
	harness.Eventually(t, harness.Patience, "the sessions are where they were", func() bool {
		for i, place := range places() {
			if before[i] != place {
				return false
			}
		}
		return true
	})
	ownModels(t, ups)
}

// Under load, a member that leaves and comes back costs no call.
func TestGroupMemberLeavesUnderLoad(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	ups := claiming(t, ns, map[string]map[string]string{"b": {"flexinfer.ai/route-priority": "1"}}, "a", "b")
	g := discovering(t, kube.Account(t, ns, all...))
	within(t, harness.Patience, g, "a", 1)
	within(t, harness.Patience, g, "b", 1)
	l := loadOn(t, g, "chat", 4)
	for range 3 {
		l.more(t, 50)
		setPhase(t, ns, "b", "Preempted")
		n := ups["a"].Served()
		harness.Eventually(t, harness.Patience, "a has taken over", func() bool { return ups["a"].Served() > n+20 })
		setPhase(t, ns, "b", "Ready")
		n = ups["b"].Served()
		harness.Eventually(t, harness.Patience, "b is back", func() bool { return ups["b"].Served() > n+20 })
	}
	l.end(t)
	ownModels(t, ups)
	if res := g.Get(t, "/readyz"); res.Status != http.StatusOK {
		t.Errorf("/readyz: %s", res)
	}
}

// wantWoken waits until a Model is asked to wake, and returns when it was.
func wantWoken(t *testing.T, ns, name string) time.Time {
	t.Helper()
	var at time.Time
	harness.Eventually(t, harness.Patience, "the model "+name+" is woken", func() bool {
		var err error
		at, err = time.Parse(time.RFC3339, stringAt(get(t, models, ns, name), "status", "lastActiveTime"))
		return err == nil
	})
	return at
}

// queued returns how many calls wait for a model.
func queued(t *testing.T, g *harness.Gateway, model string) float64 {
	t.Helper()
	return g.Metrics(t).Value("flexinfer_proxy_queue_depth", "model", model)
}
