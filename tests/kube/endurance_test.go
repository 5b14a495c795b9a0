package kube

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// A thousand endpoints that come and go cost what their changes cost, and
// nothing is left of them.
func TestFaultChurn(t *testing.T) {
	const slicesOfModel, perSlice, rounds = 10, 100, 20
	ns := kube.Namespace(t)
	name := func(i int) string { return fmt.Sprintf("m-%d", i) }
	var number int
	pods := func(n int) []discoveryv1.Endpoint {
		list := make([]discoveryv1.Endpoint, n)
		for i := range list {
			number++
			pod := fmt.Sprintf("pod-%d", number)
			list[i] = forPod(discoveryv1.Endpoint{Addresses: []string{cluster.NewAddress()}}, ns, pod, "uid-"+pod)
		}
		return list
	}
	now := make([][]discoveryv1.Endpoint, slicesOfModel)
	for i := range now {
		now[i] = pods(perSlice)
		apply(t, ns, sliceOf("m", name(i), now[i]...))
	}
	known := upstream(t)
	g := harness.Start(t, inCluster(t, kube.Account(t, ns, seeSlices),
		model("m", "endpoints "+ns+"/m"), model("static", "to "+known.Addr)))
	whole := func() {
		t.Helper()
		want := make(map[string]bool)
		for _, list := range now {
			for _, e := range list {
				want[e.Addresses[0]+":8000"] = true
			}
		}
		harness.Eventually(t, time.Minute, "the model has the endpoints of its slices", func() bool {
			return slices.Equal(endpointsOf(t, g, "m"), slices.Sorted(maps.Keys(want)))
		})
	}
	whole()
	churn := func() {
		for i := range now {
			// A tenth of them change.
			now[i] = append(slices.Clone(now[i][perSlice/10:]), pods(perSlice/10)...)
			apply(t, ns, sliceOf("m", name(i), now[i]...))
		}
	}
	churn()
	whole()
	g.Client.CloseIdleConnections()
	goroutines, heap, cpu := g.Goroutines(t), g.Heap(t), g.CPU(t)
	l := loadOn(t, g, "static", 1)
	for range rounds {
		churn()
	}
	whole()
	l.end(t)
	used := g.CPU(t) - cpu
	t.Logf("%d changes of 10 of 1,000 endpoints, and %d calls: %s of a processor; heap %d KB, then %d KB",
		rounds*slicesOfModel, l.done.Load(), used, heap>>10, g.Heap(t)>>10)

	// No change, no work.
	var idle time.Duration
	harness.Eventually(t, time.Minute, "the gateway is at rest", func() bool {
		begun, before := time.Now(), g.CPU(t)
		harness.Within(2*time.Second, func() bool { return false })
		idle = g.CPU(t) - before
		return idle < time.Since(begun)/10
	})
	g.Client.CloseIdleConnections()
	const noise = 15
	if !harness.Within(harness.Patience, func() bool { return g.Goroutines(t) <= goroutines+noise }) {
		t.Errorf("%d changes took the goroutines from %d to %d", rounds*slicesOfModel, goroutines, g.Goroutines(t))
	}
	series := g.Metrics(t).Series("flexinfer_proxy_upstream_healthy", "model", "m")
	if len(series) != slicesOfModel*perSlice {
		t.Errorf("there are series of %d endpoints, want %d", len(series), slicesOfModel*perSlice)
	}
	if most := heap + heap/2 + 16<<20; g.Heap(t) > most {
		t.Errorf("the heap grew from %d to %d bytes", heap, g.Heap(t))
	}
}

// An address that goes from one model's pod to another's takes nothing along:
// no call, and no load.
func TestFaultAddressReused(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	gate := harness.NewGate(t)
	shared, other := upstream(t), upstream(t)
	shared.Handle(gate.Then(harness.Answer))
	apply(t, ns, sliceOf("a", "a-1", forPod(at(shared), ns, "a-1", "uid-1"), forPod(at(other), ns, "a-2", "uid-2")))
	g := harness.Start(t, inCluster(t, kube.Account(t, ns, seeSlices),
		model("a", "endpoints "+ns+"/a"), model("b", "endpoints "+ns+"/b")))
	within(t, harness.Patience, g, "a", 2)
	held := make(chan error, 2)
	for range 2 {
		go func() { held <- call(t.Context(), g, chat("a")) }()
	}
	harness.Eventually(t, harness.Patience, "a call is held", func() bool { return gate.Held() == 1 })

	apply(t, ns, sliceOf("a", "a-1", forPod(at(other), ns, "a-2", "uid-2")))
	apply(t, ns, sliceOf("b", "b-1", forPod(at(shared), ns, "b-1", "uid-3")))
	within(t, harness.Patience, g, "a", 1)
	within(t, harness.Patience, g, "b", 1)
	for _, m := range g.Models(t) {
		for _, e := range m.Endpoints {
			if m.Name == "b" && e.Inflight+e.Reserved != 0 {
				t.Errorf("the new pod begins with %d calls of the old one", e.Inflight+e.Reserved)
			}
		}
	}
	gate.Open()
	for range 2 {
		if err := harness.Receive(t, held, "a call of the old pod ends"); err != nil {
			t.Error(err)
		}
	}
	shared.Forget()
	wantEndpoints(t, g, "b", shared)
	wantEndpoints(t, g, "a", other)
	for _, r := range shared.Requests() {
		if !strings.Contains(string(r.Body), `"model":"b"`) {
			t.Errorf("the pod of model b got %s", r.Body)
		}
	}
	g.WaitIdle(t)
}

// A token is used as long as it is good, and the next one when there is one:
// clients read the file anew each minute.
func TestFaultTokenExpires(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	a := kube.Account(t, ns, seeSlices)
	relay := kube.Relay(t)
	relay.Open(t)
	token := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(token+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(token+".new", token); err != nil {
			t.Fatal(err)
		}
	}
	const (
		lifetime   = 10 * time.Second
		remembered = 12 * time.Second // by the API server, of one that it has seen: 10 s
	)
	expires := time.Now().Add(lifetime)
	write(a.ShortToken(t, lifetime))
	u := upstreams(t, 2)
	apply(t, ns, sliceOf("m", "m-a", at(u[0])))
	g := harness.Start(t, withKubeconfig(ns, a.KubeconfigTokenFile(t, relay, token), model("m", "endpoints "+ns+"/m")))
	wantEndpoints(t, g, "m", u[0])

	// It runs out; a watch that is open goes on, a new one needs the next.
	harness.Eventually(t, time.Minute, "the token runs out", func() bool { return time.Now().After(expires.Add(remembered)) })
	relay.Cut()
	relay.Open(t)
	apply(t, ns, sliceOf("m", "m-a", endpointsAt(u...)...))
	harness.Eventually(t, recovery, "a warning tells of the token", func() bool { return warned(g, "credentials") })
	wantEndpoints(t, g, "m", u[0])
	write(a.Token(t))
	within(t, recovery, g, "m", 2)
	wantEndpoints(t, g, "m", u...)
}

// However often the configuration is reloaded, what is watched is watched once,
// and is not asked for again.
func TestFaultReloadsShareWatches(t *testing.T) {
	ns := kube.Namespace(t)
	a := kube.Account(t, ns, seeSlices, seePods)
	u := upstreams(t, 2)
	apply(t, ns, sliceOf("m", "m-a", at(u[0])))
	apply(t, ns, sliceOf("n", "n-a", at(u[1])))
	blocks := []string{
		model("m", "endpoints "+ns+"/m"),
		model("n", "endpoints "+ns+"/n"),
		model("both", "selector "+ns+" kubernetes.io/service-name"),
		model("pods", "pods "+ns+" app=m 8000"),
	}
	path := a.Kubeconfig(t)
	g := harness.Start(t, withKubeconfig(ns, path, blocks...))
	wantEndpoints(t, g, "m", u[0])
	wantEndpoints(t, g, "both", u...)
	want := map[string]int{"endpointslices/" + ns: 1, "pods/" + ns: 1}
	one := func() bool { return maps.Equal(a.Watches(t), want) }
	harness.Eventually(t, harness.Patience, "there is one watch of each", one)

	reload := func(i int) {
		t.Helper()
		extra := model(fmt.Sprintf("extra-%d", i%3), "to "+u[0].Addr)
		g.Reload(t, withKubeconfig(ns, path, append(blocks, extra)...))
	}
	for i := range 5 {
		reload(i)
	}
	// Which kinds of resources there are is looked up anew.
	asked := func() int {
		return len(slices.DeleteFunc(a.Acts(t), func(act cluster.Act) bool { return act.ObjectRef.Resource == "" }))
	}
	goroutines, acts := g.Goroutines(t), asked()
	for i := range 100 {
		reload(i)
		if got := endpointsOf(t, g, "m"); len(got) != 1 {
			t.Fatalf("after reload %d the model has the endpoints %v", i, got)
		}
		if res, err := g.TryTwice(t.Context(), http.MethodPost, "/v1/chat/completions", chat("m")); err != nil || res.Status != http.StatusOK {
			t.Fatalf("after reload %d: %v %v", i, res, err)
		}
	}
	if !one() {
		t.Errorf("100 reloads left the watches %v, want %v", a.Watches(t), want)
	}
	if got := asked(); got != acts {
		t.Errorf("100 reloads asked the API server %d times", got-acts)
	}
	const noise = 15
	if !harness.Within(harness.Patience, func() bool { return g.Goroutines(t) <= goroutines+noise }) {
		t.Errorf("100 reloads took the goroutines from %d to %d", goroutines, g.Goroutines(t))
	}
	apply(t, ns, sliceOf("m", "m-a", endpointsAt(u...)...))
	wantEndpoints(t, g, "m", u...)

	// What nobody looks at any more is not watched.
	g.Reload(t, withKubeconfig(ns, path, blocks[:2]...))
	harness.Eventually(t, harness.Patience, "the watch of pods ends", func() bool { return a.Watches(t)["pods/"+ns] == 0 })
	g.Reload(t, harness.Config{Flexinfer: model("static", "to "+u[0].Addr)})
	harness.Eventually(t, harness.Patience, "all watches end", func() bool { return a.Watches(t)["endpointslices/"+ns] == 0 })
}
