package kube

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// recovery is how long it may take until a gateway has found its way back to a
// cluster: it asks again after up to half a minute.
const recovery = 2 * time.Minute

// within waits until a model has n endpoints.
func within(t *testing.T, d time.Duration, g *harness.Gateway, model string, n int) {
	t.Helper()
	harness.Eventually(t, d, "the model "+model+" has its endpoints", func() bool { return len(endpointsOf(t, g, model)) == n })
}

// While the API server is away the last state serves, and what is changed is
// obeyed once it is back.
func TestFaultAPIServerKilled(t *testing.T) {
	ns := kube.Namespace(t)
	u := upstreams(t, 3)
	apply(t, ns, sliceOf("m", "m-a", endpointsAt(u[0], u[1])...))
	g := start(t, ns, "endpoints "+ns+"/m")
	wantEndpoints(t, g, "m", u[0], u[1])
	for _, now := range [][]*harness.Upstream{{u[1], u[2]}, {u[0]}} {
		l := loadOn(t, g, "m", 2)
		before := g.CPU(t)
		kube.KillAPI(t)
		l.more(t, 100)
		kube.StartAPI(t)
		apply(t, ns, sliceOf("m", "m-a", endpointsAt(now...)...))
		harness.Eventually(t, recovery, "the change is obeyed", func() bool { return len(endpointsOf(t, g, "m")) == len(now) })
		l.end(t)
		wantEndpoints(t, g, "m", now...)
		t.Logf("the gateway used %s of a processor meanwhile", g.CPU(t)-before)
	}
	// Nor does it matter that it takes its time.
	l := loadOn(t, g, "m", 2)
	resume := kube.PauseAPI(t)
	l.more(t, 100)
	resume()
	apply(t, ns, sliceOf("m", "m-a", endpointsAt(u...)...))
	within(t, recovery, g, "m", 3)
	l.end(t)
	if res := g.Get(t, "/readyz"); res.Status != http.StatusOK {
		t.Errorf("/readyz: %s", res)
	}
}

// soon is how long a change may take when the API server is ready again, on a
// machine that does other things as well.
const soon = 4 * time.Second

// A gateway is back soon after the API server is, with each of the resources
// that it looks at, however long that was away.
func TestFaultAPIServerRestarted(t *testing.T) {
	ns := kube.Namespace(t)
	u := upstreams(t, 2)
	serve(t, ns, "m", inTurn, u[0])
	create(t, models, ns, "m", inTurn, spec(), ready)
	g := discovering(t, kube.Account(t, ns, all...))
	wantEndpoints(t, g, "m", u[0])
	for i, slice := range [][]*harness.Upstream{u, u[:1], u} {
		kube.KillAPI(t)
		kube.StartAPI(t)
		began := time.Now()
		annotate(t, ns, "m", "flexinfer.ai/serve-paths", []string{"/v1/completions", "/v1/chat", "/v1/completions"}[i])
		apply(t, ns, sliceOf("m", "m-a", endpointsAt(slice...)...))
		refuses := []bool{true, false, true}[i]
		harness.Eventually(t, recovery, "the Model's change is obeyed", func() bool {
			return (g.Post(t, "/v1/chat/completions", chat("m")).Status == http.StatusNotFound) == refuses
		})
		model := time.Since(began)
		within(t, recovery, g, "m", len(slice))
		all := time.Since(began)
		t.Logf("the Model's change took %s, that of its endpoints too %s", model, all)
		if all > soon {
			t.Errorf("a change took %s, want %s at most", all, soon)
		}
	}
}

// What changes while a gateway cannot see it is obeyed when it can again:
// additions, and what has gone without a word.
func TestFaultWatchCut(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	relay := kube.Relay(t)
	relay.Open(t)
	a := kube.Account(t, ns, seeSlices)
	u := upstreams(t, 3)
	apply(t, ns, sliceOf("m", "m-a", at(u[0])))
	apply(t, ns, sliceOf("m", "m-b", at(u[1])))
	g := harness.Start(t, withKubeconfig(ns, a.KubeconfigThrough(t, relay), model("m", "endpoints "+ns+"/m")))
	wantEndpoints(t, g, "m", u[0], u[1])

	relay.Cut()
	deleteSlice(t, ns, "m-a")
	apply(t, ns, sliceOf("m", "m-c", at(u[2])))
	wantEndpoints(t, g, "m", u[0], u[1])
	relay.Open(t)
	harness.Eventually(t, recovery, "the gateway is back", func() bool {
		got := endpointsOf(t, g, "m")
		return len(got) == 2 && got[0] != u[0].Addr && got[1] != u[0].Addr
	})
	wantEndpoints(t, g, "m", u[1], u[2])

	// While rights are missing, too, what is known serves.
	a.Allow(t)
	relay.Cut()
	relay.Open(t)
	harness.Eventually(t, recovery, "the gateway is refused", func() bool { return len(refusals(g)) > 0 })
	wantEndpoints(t, g, "m", u[1], u[2])
	a.Allow(t, seeSlices)
	apply(t, ns, sliceOf("m", "m-c", endpointsAt(u[0], u[2])...))
	within(t, recovery, g, "m", 3)
	wantEndpoints(t, g, "m", u...)
}

// refusals returns the warnings that tell of a right that is missing.
func refusals(g *harness.Gateway) []string {
	var found []string
	for _, line := range g.Logs().Lines() {
		if strings.Contains(line, `"level":"warn"`) && strings.Contains(line, "discovery.k8s.io") && strings.Contains(line, "endpointslices") &&
			strings.Contains(line, "list") && strings.Contains(line, "watch") && strings.Contains(line, "Role") {
			found = append(found, line)
		}
	}
	return found
}

// A gateway that starts while the API server is away serves what it knows by
// itself, refuses nothing for good before its time is over, and picks the
// cluster up when it comes.
func TestFaultStartWithoutAPI(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	relay := kube.Relay(t)
	known, u := upstream(t), upstream(t)
	apply(t, ns, sliceOf("m", "m-a", at(u)))
	cfg := withKubeconfig(ns, kube.Account(t, ns, seeSlices).KubeconfigThrough(t, relay),
		model("static", "to "+known.Addr), model("m", "endpoints "+ns+"/m"))
	cfg.Flexinfer = strings.Replace(cfg.Flexinfer, "kubernetes {\n", "kubernetes {\n\tsync_timeout 15s\n", 1)
	g := harness.Start(t, cfg)
	if res := g.Get(t, "/readyz"); res.Status != http.StatusServiceUnavailable || !strings.Contains(string(res.Body), "starting") {
		t.Errorf("/readyz while it looks around: %s", res)
	}
	wantEndpoints(t, g, "static", known)
	for _, name := range []string{"unknown", "m"} {
		if res := g.Post(t, "/v1/chat/completions", chat(name)); res.Status != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
			t.Errorf("a call for %s while the gateway looks around: %s %v", name, res, res.Header)
		}
	}
	harness.Eventually(t, time.Minute, "an unknown model is refused for good", func() bool {
		return g.Post(t, "/v1/chat/completions", chat("unknown")).Status == http.StatusNotFound
	})
	if res := g.Get(t, "/readyz"); res.Status != http.StatusOK {
		t.Errorf("/readyz when the time is over: %s", res)
	}
	wantRefusal(t, g, "m", http.StatusServiceUnavailable)
	relay.Open(t)
	within(t, recovery, g, "m", 1)
	wantEndpoints(t, g, "m", u)
}

// A right that is missing is named once, word for word, and used when it is
// granted.
func TestFaultForbidden(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	a := kube.Account(t, ns)
	u := upstream(t)
	apply(t, ns, sliceOf("m", "m-a", at(u)))
	g := harness.Start(t, inCluster(t, a, model("m", "endpoints "+ns+"/m")))
	wantRefusal(t, g, "m", http.StatusServiceUnavailable)
	harness.Eventually(t, harness.Patience, "a warning names the rule", func() bool { return len(refusals(g)) > 0 })
	// It asks again, and says no more of it.
	tried := func() int { return len(a.Acts(t)) }
	before := tried()
	harness.Eventually(t, recovery, "the gateway asks again", func() bool { return tried() > before+1 })
	if all := refusals(g); len(all) != 1 {
		t.Errorf("the missing right is named %d times: %q", len(all), all)
	}
	a.Allow(t, seeSlices)
	within(t, recovery, g, "m", 1)
	wantEndpoints(t, g, "m", u)
}
