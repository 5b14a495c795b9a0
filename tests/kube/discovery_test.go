package kube

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// A Service's endpoints are all that its slices hold, each once, whatever
// becomes of the slices.
func TestDiscoveryUnionOfSlicesD1(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstreams(t, 4)
	apply(t, ns, sliceOf("m", "m-a", endpointsAt(u[0], u[1])...))
	apply(t, ns, sliceOf("m", "m-b", endpointsAt(u[1], u[2])...))
	apply(t, ns, sliceOf("m", "m-c", endpointsAt(u[3])...))
	other := upstream(t)
	apply(t, ns, sliceOf("m-2", "m-2-a", at(other)))
	none := sliceOf("m", "m-d")
	none.Endpoints = nil
	apply(t, ns, none)

	g := start(t, ns, "endpoints "+ns+"/m")
	wantEndpoints(t, g, "m", u...)

	deleteSlice(t, ns, "m-a")
	wantEndpoints(t, g, "m", u[1], u[2], u[3])

	// An endpoint moves to another slice.
	apply(t, ns, sliceOf("m", "m-c", endpointsAt(u[3], u[2])...))
	apply(t, ns, sliceOf("m", "m-b", at(u[1])))
	wantEndpoints(t, g, "m", u[1], u[2], u[3])

	// A slice comes back by its name, with something else in it.
	deleteSlice(t, ns, "m-b")
	apply(t, ns, sliceOf("m", "m-b", at(u[0])))
	wantEndpoints(t, g, "m", u[0], u[2], u[3])

	// All is gone, and comes back.
	for _, name := range []string{"m-b", "m-c", "m-d"} {
		deleteSlice(t, ns, name)
	}
	wantRefusal(t, g, "m", http.StatusServiceUnavailable)
	apply(t, ns, sliceOf("m", "m-e", endpointsAt(u...)...))
	wantEndpoints(t, g, "m", u...)
	if other.Served() > 0 {
		t.Error("another Service's endpoint got a call")
	}
}

// A model that is configured and has no endpoint is one that sleeps, also after
// a restart: its calls wait and show as demand, and a name that nobody has is
// refused at once.
func TestDiscoveryOfNothingYetQ2(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	cfg := inCluster(t, kube.Account(t, ns, seeSlices), model("m", "endpoints "+ns+"/m", "cold_start_timeout 1m"))
	for _, when := range []string{"at first", "after a restart"} {
		g := harness.Start(t, cfg)
		harness.Eventually(t, harness.Patience, "the gateway is ready", func() bool {
			return g.Get(t, "/readyz").Status == http.StatusOK
		})
		answer := make(chan *harness.Response, 1)
		go func() {
			res, err := g.Try(t.Context(), http.MethodPost, "/v1/chat/completions", chat("m"))
			if err != nil {
				t.Error(err)
			}
			answer <- res
		}()
		harness.Eventually(t, harness.Patience, "a call waits", func() bool {
			return g.Metrics(t).Value("flexinfer_proxy_queue_depth", "model", "m") == 1
		})
		wantRefusal(t, g, "nobody", http.StatusNotFound)
		if len(g.Logs().Entries("there is no EndpointSlice of this Service; is its name right?")) == 0 {
			t.Errorf("%s: the log does not say that there is no such Service", when)
		}
		if list := g.Get(t, "/v1/models"); !strings.Contains(string(list.Body), `"id":"m"`) {
			t.Errorf("%s: not listed: %s", when, list)
		}
		apply(t, ns, sliceOf("m", "m-a", at(upstream(t))))
		if res := <-answer; res == nil || res.Status != http.StatusOK {
			t.Errorf("%s: the call that waited: %v", when, res)
		}
		deleteSlice(t, ns, "m-a")
		g.WaitIdle(t)
	}
}

// A pod is one endpoint, whether it has one address or two, and however often
// it is listed.
func TestDiscoveryDualStackIsOneEndpointD1(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstreams(t, 2)
	v6 := make([]discoveryv1.Endpoint, 2)
	v4 := endpointsAt(u...)
	for i := range v6 {
		name := string(rune('a' + i))
		v4[i] = forPod(v4[i], ns, name, "uid-"+name)
		v6[i] = forPod(discoveryv1.Endpoint{Addresses: []string{cluster.NewAddress6(t)}}, ns, name, "uid-"+name)
	}
	second := sliceOf("m", "m-v6", v6...)
	second.AddressType = discoveryv1.AddressTypeIPv6
	apply(t, ns, second)
	apply(t, ns, sliceOf("m", "m-v4", v4...))
	g := start(t, ns, "endpoints "+ns+"/m")
	wantEndpoints(t, g, "m", u...)
}

// The real controller makes slices of both families, and the gateway one
// endpoint of each pod.
func TestDiscoveryDualStackService(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{DualStack: true, Zone: "zone-1"})
	svc := service(t, ns, "m")
	svc.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	if _, err := kube.Client.CoreV1().Services(ns).Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	deployment(t, ns, "m", 2)
	pods := k.WaitPods(t, 2)
	harness.Eventually(t, harness.Patience, "there are slices of both families", func() bool {
		families := make(map[discoveryv1.AddressType]int)
		list, err := kube.Client.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, s := range list.Items {
			families[s.AddressType] += len(s.Endpoints)
		}
		return families[discoveryv1.AddressTypeIPv4] == 2 && families[discoveryv1.AddressTypeIPv6] == 2
	})
	g := start(t, ns, "endpoints "+ns+"/m:http")
	wantEndpoints(t, g, "m", pods[0].Upstream, pods[1].Upstream)
	models := g.AdminGet(t, "/flexinfer/models")
	for _, word := range []string{"zone-1", pods[0].Name, pods[1].Name} {
		if !strings.Contains(string(models.Body), word) {
			t.Errorf("the admin API does not tell of %s: %s", word, models)
		}
	}
}

// An IPv6 address is one endpoint on every path, and in two slices still one.
// The API server takes none that is spelled in another way.
func TestDiscoveryIPv6D4(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	ip := cluster.NewAddress6(t)
	u := harness.NewUpstreamAt(t, net.JoinHostPort(ip, "8000"), nil)
	for _, name := range []string{"m-a", "m-b"} {
		slice := sliceOf("m", name, discoveryv1.Endpoint{Addresses: []string{ip}})
		slice.AddressType = discoveryv1.AddressTypeIPv6
		apply(t, ns, slice)
	}
	g := start(t, ns, "endpoints "+ns+"/m")
	wantEndpoints(t, g, "m", u)
	if res := g.Get(t, "/model/m/v1/anything"); res.Status != http.StatusOK {
		t.Errorf("a call without a body: %s", res)
	}
	if len(g.Metrics(t).Series("flexinfer_proxy_upstream_healthy", "target", u.Addr)) != 1 {
		t.Errorf("no metric has the target %s", u.Addr)
	}
}

// Each slice has its own numbers for the ports' names.
func TestDiscoveryPortsD5(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	first := upstream(t)
	second := harness.NewUpstreamAt(t, net.JoinHostPort(cluster.NewAddress(), "8001"), nil)
	metrics := discoveryv1.EndpointPort{Name: new("metrics"), Port: new(int32(9090))}
	datagrams := discoveryv1.EndpointPort{Name: new("http"), Port: new(int32(9091)), Protocol: new(corev1.ProtocolUDP)}
	a, b := sliceOf("m", "m-a", at(first)), sliceOf("m", "m-b", at(second))
	a.Ports = []discoveryv1.EndpointPort{metrics, httpPort(8000)}
	b.Ports = []discoveryv1.EndpointPort{metrics, httpPort(8001)}
	apply(t, ns, a)
	apply(t, ns, b)
	unnamed := sliceOf("one", "one-a", at(first))
	unnamed.Ports = []discoveryv1.EndpointPort{{Port: new(int32(podPort))}}
	apply(t, ns, unnamed)
	odd := sliceOf("odd", "odd-a", at(first))
	odd.Ports = []discoveryv1.EndpointPort{datagrams, metrics}
	apply(t, ns, odd)

	g := harness.Start(t, inCluster(t, kube.Account(t, ns, seeSlices),
		model("named", "endpoints "+ns+"/m:http"),
		model("unasked", "endpoints "+ns+"/m"),
		model("number", "endpoints "+ns+"/m:8001"),
		model("unnamed", "endpoints "+ns+"/one"),
		model("missing", "endpoints "+ns+"/odd:http"),
	))
	wantEndpoints(t, g, "named", first, second)
	wantEndpoints(t, g, "unasked", first, second)
	wantEndpoints(t, g, "number", second)
	wantEndpoints(t, g, "unnamed", first)
	wantRefusal(t, g, "missing", http.StatusServiceUnavailable)
	harness.Eventually(t, harness.Patience, "a warning says that the port is not there", func() bool {
		return slices.ContainsFunc(g.Logs().Lines(), func(line string) bool {
			return strings.Contains(line, `"level":"warn"`) && strings.Contains(line, "odd") && strings.Contains(line, "9090")
		})
	})
}

// Conditions that a slice leaves out mean what the API says that they mean.
func TestDiscoveryConditionsD2(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstreams(t, 6)
	yes, no := new(true), new(false)
	unsaid := at(u[0])
	ready := having(at(u[1]), yes, nil, nil)
	unready := having(at(u[2]), no, yes, nil)
	leaving := having(at(u[3]), no, yes, yes)
	published := having(at(u[4]), yes, yes, yes) // by publishNotReadyAddresses
	dead := having(at(u[5]), no, no, yes)
	apply(t, ns, sliceOf("m", "m-a", unsaid, ready, unready, leaving, published, dead))
	g := start(t, ns, "endpoints "+ns+"/m")
	wantEndpoints(t, g, "m", u[0], u[1])

	// Those that leave serve only when nobody else does.
	apply(t, ns, sliceOf("m", "m-a", unready, leaving, dead))
	wantEndpoints(t, g, "m", u[3])
	apply(t, ns, sliceOf("m", "m-a", unready, leaving, dead, ready))
	wantEndpoints(t, g, "m", u[1])
	apply(t, ns, sliceOf("m", "m-a", unready, dead))
	wantRefusal(t, g, "m", http.StatusServiceUnavailable)
}

// A stream goes on while its endpoint leaves, and goes.
func TestDiscoveryStreamOutlivesItsEndpoint(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	gate := harness.NewGate(t)
	u, next := upstream(t), upstream(t)
	u.Handle(func(x *harness.Exchange) {
		x.StartStream("text/event-stream")
		x.Chunk("data: first\n\n")
		if gate.Wait(x) {
			x.Chunk("data: [DONE]\n\n")
			x.EndStream()
		}
	})
	apply(t, ns, sliceOf("m", "m-a", at(u)))
	g := start(t, ns, "endpoints "+ns+"/m")
	harness.Eventually(t, harness.Patience, "the model has its endpoint", func() bool { return len(endpointsOf(t, g, "m")) == 1 })
	res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	apply(t, ns, sliceOf("m", "m-a", having(at(u), new(false), new(true), new(true)), at(next)))
	wantEndpoints(t, g, "m", next)
	apply(t, ns, sliceOf("m", "m-a", at(next)))
	wantEndpoints(t, g, "m", next)
	gate.Open()
	if body := readAll(t, res); !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("the stream was cut: %q", body)
	}
	g.WaitIdle(t)
}

// A selector takes in the slices of every Service that matches.
func TestDiscoverySelector(t *testing.T) {
	t.Parallel()
	ns, elsewhere := kube.Namespace(t), kube.Namespace(t)
	u := upstreams(t, 4)
	labelled := func(service string, u *harness.Upstream, app string) *discoveryv1.EndpointSlice {
		slice := sliceOf(service, service+"-a", at(u))
		slice.Labels["app"] = app
		return slice
	}
	apply(t, ns, labelled("a", u[0], "m"))
	apply(t, ns, labelled("b", u[1], "m"))
	apply(t, ns, labelled("c", u[2], "other"))
	apply(t, elsewhere, labelled("d", u[3], "m"))
	g := start(t, ns, "selector "+ns+" app=m")
	wantEndpoints(t, g, "m", u[0], u[1])
	apply(t, ns, labelled("c", u[2], "m"))
	wantEndpoints(t, g, "m", u[0], u[1], u[2])
	apply(t, ns, labelled("a", u[0], "other"))
	wantEndpoints(t, g, "m", u[1], u[2])
}

// Pods without a Service are found by their labels.
func TestDiscoveryPods(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{})
	deployment(t, ns, "m", 3)
	deployment(t, ns, "other", 1)
	k.WaitPods(t, 4)
	running := func() []cluster.Pod {
		return slices.DeleteFunc(k.Pods(), func(p cluster.Pod) bool { return !strings.HasPrefix(p.Name, "m-") })
	}
	g := harness.Start(t, inCluster(t, kube.Account(t, ns, seePods), model("m", "pods "+ns+" app=m 8000")))
	wantEndpoints(t, g, "m", upstreamsOf(running())...)
	scale(t, ns, "m", 1)
	harness.Eventually(t, harness.Patience, "two pods have ended", func() bool { return len(running()) == 1 })
	wantEndpoints(t, g, "m", upstreamsOf(running())...)
	k.SetReady(running()[0], false)
	wantRefusal(t, g, "m", http.StatusServiceUnavailable)
}

// A reverse_proxy of its own takes a Service's endpoints.
func TestDiscoveryDynamicUpstreams(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstreams(t, 3)
	apply(t, ns, sliceOf("m", "m-a", endpointsAt(u[:2]...)...))
	cfg := inCluster(t, kube.Account(t, ns, seeSlices))
	cfg.Site = "route {\n\tflexinfer_call round-robin\n\treverse_proxy {\n\t\tdynamic flexinfer " + ns + "/m:http\n" +
		"\t\tlb_policy flexinfer\n\t\ttransport flexinfer\n\t}\n}"
	g := harness.Start(t, cfg)
	want := func(us ...*harness.Upstream) {
		t.Helper()
		harness.Eventually(t, harness.Patience, "calls reach the Service's endpoints and no others", func() bool {
			seen := make(map[string]bool)
			for range 4 * len(us) {
				seen[ask(t, g, "whatever")] = true
			}
			for _, u := range us {
				if !seen[u.Addr] {
					return false
				}
			}
			return len(seen) == len(us)
		})
	}
	want(u[0], u[1])
	apply(t, ns, sliceOf("m", "m-a", endpointsAt(u[1], u[2])...))
	want(u[1], u[2])
}

// From the moment a change is written it is a moment until a call obeys it.
func TestDiscoveryLatency(t *testing.T) {
	ns := kube.Namespace(t)
	u := upstreams(t, 2)
	apply(t, ns, sliceOf("m", "m-a", at(u[0])))
	g := start(t, ns, "endpoints "+ns+"/m")
	wantEndpoints(t, g, "m", u[0])
	const changes = 100
	took := make([]time.Duration, changes)
	for i := range took {
		next := u[(i+1)%2]
		apply(t, ns, sliceOf("m", "m-a", at(next)))
		written := time.Now()
		for answered := ""; answered != next.Addr; answered = ask(t, g, "m") {
			if time.Since(written) > harness.Patience {
				t.Fatalf("change %d is not obeyed after %s", i, harness.Patience)
			}
		}
		took[i] = time.Since(written)
	}
	slices.Sort(took)
	p50, p99 := took[changes/2], took[changes*99/100]
	t.Logf("from the written change to the first call that obeys it: p50 %s, p99 %s", p50, p99)
	if p50 > time.Second {
		t.Errorf("half of all changes took %s and more", p50)
	}
}
