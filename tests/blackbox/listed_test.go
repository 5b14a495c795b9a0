package blackbox

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Two boxes need nothing but their addresses: the models are those that they
// list, a call goes to those that have its model, and an outage changes nothing
// of what is known.
func TestSiteWithoutGlobalBlock(t *testing.T) {
	t.Parallel()
	a := harness.StartEngines(t, 1, append(harness.Instant, "--model", "a", "--model", "both")...)[0]
	b := harness.StartEngines(t, 1, append(harness.Instant, "--model", "b", "--model", "both")...)[0]
	g := harness.Start(t, harness.Config{Site: "flexinfer " + a.Addr + " " + b.Addr})
	listed := func() []string {
		return harness.Decode[modelList](t, g.Get(t, "/v1/models").Body).ids()
	}
	harness.Eventually(t, harness.Patience, "the models are listed", func() bool { return slices.Equal(listed(), []string{"a", "b", "both"}) })
	if res := g.Get(t, "/readyz"); res.Status != http.StatusOK {
		t.Errorf("/readyz: %s", res)
	}
	engine := func(res *harness.Response) string {
		return strings.TrimPrefix(harness.Decode[completion](t, res.Body).Fingerprint, "fp_")
	}
	both := make(map[string]bool)
	for i := range 10 {
		if got := engine(g.Chat(t, chatOf("a", "hi"))); got != a.Addr {
			t.Fatalf("a call for a went to %s", got)
		}
		if got := engine(g.Chat(t, chatOf("b", "hi"))); got != b.Addr {
			t.Fatalf("a call for b went to %s", got)
		}
		both[engine(g.Chat(t, chatOf("both", fmt.Sprint("hi ", i))))] = true
	}
	if len(both) != 2 {
		t.Errorf("calls for both went to %v", both)
	}
	if res := g.Post(t, "/v1/chat/completions", chatOf("c", "hi")); res.Status != http.StatusNotFound {
		t.Errorf("a model that nobody lists: %s", res)
	}

	// The outage of one.
	a.Kill()
	for range 4 {
		if got := engine(g.Chat(t, chatOf("both", "hi"))); got != b.Addr {
			t.Errorf("during the outage a call went to %s", got)
		}
	}
	if res := g.Post(t, "/v1/chat/completions", chatOf("a", "hi")); res.Status != http.StatusBadGateway {
		t.Errorf("a call for what only the dead one has: %s", res)
	}
	if got := listed(); !slices.Equal(got, []string{"a", "b", "both"}) {
		t.Errorf("during the outage %v is listed", got)
	}
	// A reload forgets nothing either.
	g.Reload(t, harness.Config{Site: "flexinfer " + a.Addr + " " + b.Addr})
	if got := listed(); !slices.Equal(got, []string{"a", "b", "both"}) {
		t.Errorf("after a reload during the outage %v is listed", got)
	}
	g.WaitIdle(t)
}

// Until the upstreams have been asked an unknown model may still turn up, and
// nobody should be sent here.
func TestStartingUntilUpstreamsAreAsked(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		if x.Target == "/v1/models" && gate.Wait(x) {
			x.Respond(http.StatusOK, "application/json", `{"object":"list","data":[{"id":"late"}]}`)
			return
		}
		harness.Answer(x)
	})
	g := harness.Start(t, harness.Config{Site: "flexinfer " + up.Addr})
	if res := g.Get(t, "/readyz"); res.Status != http.StatusServiceUnavailable || strings.TrimSpace(string(res.Body)) != "starting" {
		t.Errorf("/readyz while starting: %s", res)
	}
	if res := g.Get(t, "/healthz"); res.Status != http.StatusOK {
		t.Errorf("/healthz while starting: %s", res)
	}
	res := g.Post(t, "/v1/chat/completions", chatOf("late", "hi"))
	if res.Status != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("a model while starting: %s, Retry-After %q", res, res.Header.Get("Retry-After"))
	}
	res.Refusal(t)
	gate.Open()
	harness.Eventually(t, harness.Patience, "the gateway is ready", func() bool { return g.Get(t, "/readyz").Status == http.StatusOK })
	g.Chat(t, chatOf("late", "hi"))
	if res := g.Post(t, "/v1/chat/completions", chatOf("never", "hi")); res.Status != http.StatusNotFound {
		t.Errorf("an unknown model once started: %s", res)
	}
}

// listing is an upstream that lists the models it is told to.
type listing struct{ models atomic.Pointer[[]string] }

func (l *listing) list(models ...string) { l.models.Store(&models) }

func (l *listing) answer(x *harness.Exchange) {
	if x.Target != "/v1/models" {
		harness.Answer(x)
		return
	}
	var data []string
	for _, m := range *l.models.Load() {
		data = append(data, `{"id":`+quote(m)+`,"object":"model"}`)
	}
	x.Respond(http.StatusOK, "application/json", `{"object":"list","data":[`+strings.Join(data, ",")+`]}`)
}

// startPolling starts a gateway that asks the upstreams every 50 ms, which the
// directive itself has no word for.
func startPolling(t *testing.T, routing string, ups ...*harness.Upstream) *harness.Gateway {
	t.Helper()
	return harness.StartJSON(t, func(site, admin string) string {
		var upstreams []string
		for _, u := range ups {
			upstreams = append(upstreams, `{"address":"`+u.Addr+`"}`)
		}
		return `{"admin":{"listen":"` + admin + `","config":{"persist":false}},"apps":{"http":{"grace_period":"2s","servers":{"s":{
			"listen":["` + site + `"],"automatic_https":{"disable":true},"routes":[
			{"match":[{"path":["/metrics"]}],"handle":[{"handler":"metrics"}]},
			{"handle":[
				{"handler":"flexinfer","operations":true,"strategy":{"strategy":"` + routing + `"},"sources":[
					{"source":"upstream_models","interval":"50ms","upstreams":[` + strings.Join(upstreams, ",") + `]}]},
				{"handler":"reverse_proxy","dynamic_upstreams":{"source":"flexinfer"},
					"load_balancing":{"selection_policy":{"policy":"flexinfer"}},"transport":{"protocol":"flexinfer"}}
			]}]}}}}}`
	})
}

// When the last endpoint leaves, the ring goes with it, and is right again with
// the next one that comes.
func TestR6_LastEndpointLeavesAndAnotherComes(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"session_affinity", "prefix", "round_robin", "least_loaded"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			var a, b listing
			a.list("m")
			b.list()
			upA, upB := harness.NewUpstream(t, a.answer), harness.NewUpstream(t, b.answer)
			g := startPolling(t, routing, upA, upB)
			// known waits until the gateway knows that m is on these upstreams.
			known := func(on ...*harness.Upstream) {
				t.Helper()
				harness.Eventually(t, harness.Patience, "the gateway learns where m is", func() bool {
					var have, want []string
					for _, m := range g.Models(t) {
						for _, e := range m.Endpoints {
							if m.Name == "m" {
								have = append(have, e.Address)
							}
						}
					}
					for _, u := range on {
						want = append(want, u.Addr)
					}
					slices.Sort(have)
					slices.Sort(want)
					return slices.Equal(have, want)
				})
			}
			// served makes calls, each of which goes to the upstream, or is
			// refused if there is none.
			served := func(on *harness.Upstream) {
				t.Helper()
				for i := range 20 {
					res := g.Post(t, "/v1/chat/completions", chat(fmt.Sprint("hi ", i)))
					switch {
					case on == nil && res.Status != http.StatusNotFound && res.Status != http.StatusServiceUnavailable:
						t.Fatalf("a call for a model without endpoints: %s", res)
					case on != nil && (res.Status != http.StatusOK || upstreamOf(t, res) != on.Addr):
						t.Fatalf("a call did not go to %s: %s", on.Addr, res)
					}
				}
			}
			known(upA)
			served(upA)
			a.list()
			known()
			served(nil)
			b.list("m")
			known(upB)
			served(upB)
			a.list("m", "n")
			known(upA, upB)
			b.list("n")
			known(upA)
			served(upA)
			m := g.Metrics(t)
			if m.Value("flexinfer_proxy_requests_total", "status", "upstream_error") != 0 {
				t.Error("some calls failed upstream")
			}
			if got := m.Value("flexinfer_proxy_endpoint_count", "model", "m"); got != 1 {
				t.Errorf("endpoint_count is %v", got)
			}
			g.WaitIdle(t)
		})
	}
}

// A list that cannot be read is no list: the last good one stands.
func TestBadListsChangeNothing(t *testing.T) {
	t.Parallel()
	var good listing
	good.list("m")
	up := harness.NewUpstream(t, good.answer)
	g := startPolling(t, "round_robin", up)
	harness.Eventually(t, harness.Patience, "calls are served", func() bool {
		return g.Post(t, "/v1/chat/completions", chat("hi")).Status == http.StatusOK
	})
	bad := []func(*harness.Exchange){
		func(x *harness.Exchange) { x.Respond(http.StatusInternalServerError, "text/plain", "no") },
		func(x *harness.Exchange) { x.Respond(http.StatusOK, "application/json", `{"data":`) },
		func(x *harness.Exchange) { x.Respond(http.StatusOK, "text/html", "<html>") },
		func(x *harness.Exchange) { x.Respond(http.StatusFound, "text/plain", "") },
		func(x *harness.Exchange) { x.Reset() },
		func(x *harness.Exchange) { x.Respond(http.StatusOK, "application/json", `{"data":{"id":"m"}}`) },
	}
	for i, answer := range bad {
		asked := new(atomic.Int64)
		up.Handle(func(x *harness.Exchange) {
			if x.Target != "/v1/models" {
				harness.Answer(x)
				return
			}
			asked.Add(1)
			answer(x)
		})
		harness.Eventually(t, harness.Patience, "the upstream is asked", func() bool { return asked.Load() >= 2 })
		if res := g.Post(t, "/v1/chat/completions", chat("hi")); res.Status != http.StatusOK {
			t.Errorf("after bad list %d: %s", i, res)
		}
	}
	// Names that no model can have are left out; the others count.
	good.list("m", "", strings.Repeat("x", 5000), "n")
	up.Handle(good.answer)
	harness.Eventually(t, harness.Patience, "the new list is there", func() bool {
		return bytes.Contains(g.Get(t, "/v1/models").Body, []byte(`"n"`))
	})
	if got := harness.Decode[modelList](t, g.Get(t, "/v1/models").Body).ids(); !slices.Equal(got, []string{"m", "n"}) {
		t.Errorf("/v1/models lists %q", got)
	}
}

// Endpoints that come to a model and go from it while a configuration runs are
// counted.
func TestEndpointChangesAreCounted(t *testing.T) {
	t.Parallel()
	var a, b listing
	a.list("m")
	b.list()
	g := startPolling(t, "round_robin", harness.NewUpstream(t, a.answer), harness.NewUpstream(t, b.answer))
	count := func(want float64) {
		t.Helper()
		harness.Eventually(t, harness.Patience, "the endpoint count follows", func() bool {
			return g.Metrics(t).Value("flexinfer_proxy_endpoint_count", "model", "m") == want
		})
	}
	changes := func() (added, removed float64) {
		m := g.Metrics(t)
		const name = "flexinfer_proxy_endpoint_changes_total"
		return m.Value(name, "model", "m", "change_type", "added"), m.Value(name, "model", "m", "change_type", "removed")
	}
	count(1)
	added, removed := changes()
	for range 3 {
		b.list("m")
		count(2)
		b.list()
		count(1)
	}
	if a, r := changes(); a-added != 3 || r-removed != 3 {
		t.Errorf("of 3 endpoints that came and went %v were added and %v removed", a-added, r-removed)
	}
}
