package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

var idle = fields{"phase": "Idle"}

// waiting starts n calls for a model, and waits until all are in its queue.
func waiting(t *testing.T, g *harness.Gateway, model string, n int) <-chan *harness.Response {
	t.Helper()
	before := queued(t, g, model)
	answers := make(chan *harness.Response, n)
	for range n {
		go func() {
			res, err := g.Try(t.Context(), http.MethodPost, "/v1/chat/completions", chat(model))
			if err != nil {
				res = &harness.Response{Body: []byte(err.Error())}
			}
			answers <- res
		}()
	}
	harness.Eventually(t, harness.Patience, "the calls wait", func() bool { return queued(t, g, model) == before+float64(n) })
	return answers
}

// wantAll receives n answers, which have to be of this status and, if it is
// not "", of this code.
func wantAll(t *testing.T, answers <-chan *harness.Response, n, status int, code string) (last *harness.Response) {
	t.Helper()
	for range n {
		last = harness.Receive(t, answers, "a call that waited is answered")
		if last.Status != status || code != "" && last.Refusal(t).Error.Code != code {
			t.Errorf("a call that waited: %s, want %d %s", last, status, code)
		}
	}
	return last
}

// wakings returns how often an account wrote to the status of a model.
func wakings(t *testing.T, a *cluster.Account, resource, name string) int {
	t.Helper()
	n := 0
	for _, act := range a.Acts(t) {
		if act.Verb == "patch" && act.ObjectRef.Resource == resource && act.ObjectRef.Name == name && act.ResponseStatus.Code == http.StatusOK {
			n++
		}
	}
	return n
}

// Calls for a model that sleeps wake it, once, and are answered when its pods
// are there: here by way of a Deployment and the real controllers.
func TestWakeFromZero(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{})
	service(t, ns, "m")
	deployment(t, ns, "m", 0)
	create(t, models, ns, "m", inTurn, spec(), idle)
	a := kube.Account(t, ns, all...)
	g := discovering(t, a)
	const calls = 30
	answers := waiting(t, g, "m", calls)
	if at := wantWoken(t, ns, "m"); time.Since(at) > time.Minute {
		t.Errorf("the model was last active at %s", at)
	}

	// What FlexInfer's controller does now.
	setPhase(t, ns, "m", "Pending")
	scale(t, ns, "m", 3)
	setPhase(t, ns, "m", "Loading")
	pods := k.WaitPods(t, 3)
	waitRolledOut(t, ns, "m")
	setPhase(t, ns, "m", "Ready")
	wantAll(t, answers, calls, http.StatusOK, "")
	served := 0
	for _, p := range pods {
		served += p.Upstream.Served()
	}
	if served != calls {
		t.Errorf("the pods got %d calls, want %d", served, calls)
	}
	// Once to wake it, and perhaps once more since it is used.
	if n := wakings(t, a, "models", "m"); n < 1 || n > 2 {
		t.Errorf("%d calls woke the model %d times", calls, n)
	}
	m := g.Metrics(t)
	if m.Value("flexinfer_proxy_queued_requests_total", "model", "m") != calls || m.Value("flexinfer_proxy_queue_wait_duration_seconds", "model", "m") != calls {
		t.Errorf("the metrics count %v calls that waited, want %d", m.Value("flexinfer_proxy_queued_requests_total", "model", "m"), calls)
	}
	if left := queued(t, g, "m"); left != 0 {
		t.Errorf("%v calls still wait", left)
	}
	g.WaitIdle(t)
}

// However it ends, those that wait are told, and what they are told is what the
// resource says.
func TestWakeRefusals(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	for _, name := range []string{"fails", "stalls", "goes", "parks", "preempted"} {
		serve(t, ns, name, nil)
		create(t, models, ns, name, inTurn, spec(), idle)
	}
	g := discovering(t, kube.Account(t, ns, all...), "queue {\n\tstalled_load 3s\n}")
	for _, tt := range []struct {
		name   string
		do     func()
		status int
		code   string
		says   string
		retry  bool
	}{
		{"fails", func() {
			change(t, models, ns, "fails", fields{"status": fields{"phase": "Failed", "message": "no such weights"}}, "status")
		}, http.StatusServiceUnavailable, "activation_failed", "no such weights", false},
		{"stalls", func() {
			change(t, models, ns, "stalls", fields{"status": fields{
				"phase": "Loading", "loadingSubstage": "LoadingWeights", "message": "the disk is slow",
				"loadingProgressAt": time.Now().UTC().Format(time.RFC3339),
			}}, "status")
		}, http.StatusServiceUnavailable, "activation_failed", "the disk is slow", true},
		{"preempted", func() {
			change(t, models, ns, "preempted", fields{"status": fields{"phase": "Preempted", "sharedGroup": fields{"preemptedBy": "primary/x"}}}, "status")
		}, http.StatusServiceUnavailable, "service_unavailable", "", false},
		{"parks", func() {
			change(t, models, ns, "parks", fields{"spec": fields{"litellm": fields{"enabled": false}}})
		}, http.StatusNotFound, "model_not_found", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answers := waiting(t, g, tt.name, 3)
			wantWoken(t, ns, tt.name)
			tt.do()
			last := wantAll(t, answers, 3, tt.status, tt.code)
			if !strings.Contains(string(last.Body), tt.says) {
				t.Errorf("the refusal does not say %q: %s", tt.says, last)
			}
			if got := last.Header.Get("Retry-After"); tt.retry && got == "" {
				t.Error("there is no Retry-After")
			}
			if left := queued(t, g, tt.name); left != 0 {
				t.Errorf("%v calls still wait", left)
			}
		})
	}
	// One that comes later is told the same.
	if e := wantRefusal(t, g, "stalls", http.StatusServiceUnavailable).Refusal(t); e.Error.Code != "activation_failed" {
		t.Errorf("a later call for a model that stalls: %v", e)
	}
	if g.Metrics(t).Value("flexinfer_proxy_stalled_load_total", "model", "stalls", "substage", "LoadingWeights") != 1 {
		t.Error("the stalled load is not counted once")
	}
	g.WaitIdle(t)
}

// The queue is bounded in length and in time, and those that leave it are not
// in it.
func TestWakeQueueBounds(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	takes := func(coldStart string) fields {
		return spec(fields{"serverless": fields{"coldStartTimeout": coldStart}})
	}
	for name, spec := range map[string]fields{"m": spec(), "long": takes("4s"), "short": takes("1s")} {
		serve(t, ns, name, nil)
		create(t, models, ns, name, inTurn, spec, idle)
	}
	g := discovering(t, kube.Account(t, ns, all...), "queue {\n\tmax_size 3\n\ttimeout 2s\n}")
	// A call waits for the longer of the two times, a model's waking takes no
	// longer than its own.
	if e := wantAll(t, waiting(t, g, "long", 1), 1, http.StatusGatewayTimeout, "timeout"); e.Refusal(t).Error.Type != "timeout_error" {
		t.Errorf("a call that waited too long: %s", e)
	}
	wantAll(t, waiting(t, g, "short", 1), 1, http.StatusServiceUnavailable, "activation_failed")

	full := waiting(t, g, "m", 3)
	res := g.Post(t, "/v1/chat/completions", chat("m"))
	if res.Status != http.StatusServiceUnavailable || res.Refusal(t).Error.Code != "queue_full" || res.Header.Get("Retry-After") == "" {
		t.Errorf("a call that finds the queue full: %s %v", res, res.Header)
	}
	background := g.Post(t, "/v1/chat/completions", chat("m"), "X-FlexInfer-Internal-Workload-Class", " Background ")
	if background.Status != http.StatusServiceUnavailable || background.Refusal(t).Error.Code != "service_unavailable" {
		t.Errorf("a call of the background: %s", background)
	}
	if g.Metrics(t).Value("flexinfer_proxy_queue_rejected_total", "model", "m") != 1 {
		t.Error("the call that was turned away is not counted once")
	}
	u := upstream(t)
	apply(t, ns, sliceOf("m", "m-a", at(u)))
	setPhase(t, ns, "m", "Ready")
	wantAll(t, full, 3, http.StatusOK, "")
	for _, r := range u.Requests() {
		if r.Header.Get("X-FlexInfer-Internal-Workload-Class") != "" {
			t.Error("the engine got the header of the background")
		}
	}
	if at := stringAt(get(t, models, ns, "m"), "status", "lastActiveTime"); at == "" {
		t.Error("the model was not woken")
	}
}

// A call of the background wakes nothing.
func TestWakeNotByBackground(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	serve(t, ns, "m", nil)
	create(t, models, ns, "m", inTurn, spec(), idle)
	a := kube.Account(t, ns, all...)
	g := discovering(t, a)
	for range 3 {
		res := g.Post(t, "/v1/chat/completions", chat("m"), "X-FlexInfer-Internal-Workload-Class", "background")
		if res.Status != http.StatusServiceUnavailable {
			t.Errorf("a call of the background: %s", res)
		}
	}
	if n := wakings(t, a, "models", "m"); n != 0 {
		t.Errorf("it woke the model %d times", n)
	}
}

// The older resource is woken by its number of replicas.
func TestWakeModelDeployment(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstream(t)
	serve(t, ns, "old", nil, u)
	create(t, deployments, ns, "old", inTurn, fields{"backend": "vllm", "model": "org/old", "replicas": 0}, idle)
	a := kube.Account(t, ns, all...)
	g := discovering(t, a)
	answers := waiting(t, g, "old", 5)
	harness.Eventually(t, harness.Patience, "it has a replica", func() bool {
		s, _ := get(t, deployments, ns, "old")["spec"].(fields)
		return fmt.Sprint(s["replicas"]) == "1"
	})
	if stringAt(get(t, deployments, ns, "old"), "status", "lastAccessTime") == "" {
		t.Error("the time of the last access is not written")
	}
	change(t, deployments, ns, "old", fields{"status": fields{"phase": "Running", "conditions": []any{fields{"type": "Ready", "status": "True"}}}}, "status")
	wantAll(t, answers, 5, http.StatusOK, "")
	if n := g.Metrics(t).Value("flexinfer_proxy_scale_ups_total", "model", "old"); n != 1 {
		t.Errorf("%v scale-ups are counted", n)
	}
}

// A model that is used is kept awake, without a write for each call.
func TestWakeUpkeep(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstreams(t, 2)
	serve(t, ns, "old", nil, u[0])
	serve(t, ns, "young", nil, u[1])
	status := func(age time.Duration) fields {
		return fields{"phase": "Ready", "lastActiveTime": time.Now().Add(-age).UTC().Format(time.RFC3339)}
	}
	create(t, models, ns, "old", inTurn, spec(), status(time.Hour))
	create(t, models, ns, "young", inTurn, spec(), status(time.Second))
	a := kube.Account(t, ns, all...)
	g := discovering(t, a)
	wantEndpoints(t, g, "old", u[0])
	wantEndpoints(t, g, "young", u[1])
	harness.Eventually(t, harness.Patience, "the time of last use is written", func() bool {
		at, err := time.Parse(time.RFC3339, stringAt(get(t, models, ns, "old"), "status", "lastActiveTime"))
		return err == nil && time.Since(at) < 30*time.Minute
	})
	for range 50 {
		ask(t, g, "old")
		ask(t, g, "young")
	}
	if n := wakings(t, a, "models", "old"); n != 1 {
		t.Errorf("it was written %d times", n)
	}
	if n := wakings(t, a, "models", "young"); n != 0 {
		t.Errorf("that of a model that was just active was written %d times", n)
	}
}

// A right that is missing is named, in the log.
func TestWakeForbidden(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	serve(t, ns, "m", nil)
	create(t, models, ns, "m", inTurn, spec(), idle)
	g := discovering(t, kube.Account(t, ns, seeSlices, seeServices, seeResources))
	res := g.Post(t, "/v1/chat/completions", chat("m"))
	if res.Status != http.StatusServiceUnavailable || res.Refusal(t).Error.Code != "activation_failed" {
		t.Errorf("a call for a model that may not be woken: %s", res)
	}
	harness.Eventually(t, harness.Patience, "a warning names the rule", func() bool { return warned(g, "Role", models.Group, "models/status", "patch") })
}

// With gpu_groups a GPUGroup is told how many calls wait, until none does, and
// its word is waited for.
func TestWakeGPUGroup(t *testing.T) {
	t.Parallel()
	ns := kube.Namespace(t)
	u := upstream(t)
	serve(t, ns, "b", nil, u)
	create(t, gpuGroups, ns, "gpu", nil, fields{"models": []any{fields{"name": "a"}, fields{"name": "b"}}}, fields{"activeModel": "a"})
	create(t, deployments, ns, "b", inTurn, fields{"backend": "vllm", "model": "org/b", "replicas": 0, "gpuGroupRef": "gpu"}, idle)
	a := kube.Account(t, ns, append(all, rbacv1.PolicyRule{APIGroups: []string{models.Group}, Resources: []string{"gpugroups"}, Verbs: []string{"get", "patch"}})...)
	cfg := discoveringConfig(t, a)
	cfg.Flexinfer = strings.Replace(cfg.Flexinfer, "kubernetes {\n", "kubernetes {\n\tgpu_groups on\n", 1)
	g := startSettled(t, cfg)
	annotation := func(key string) string {
		return stringAt(get(t, gpuGroups, ns, "gpu"), "metadata", "annotations", "flexinfer.ai/"+key+".b")
	}
	wantQueue := func(n string) {
		t.Helper()
		if !harness.Within(harness.Patience, func() bool {
			return annotation("queue") == n && (annotation("queue-since") == "") == (n == "")
		}) {
			t.Fatalf("the group is told that %q calls wait since %q, want %q; %v wait",
				annotation("queue"), annotation("queue-since"), n, queued(t, g, "b"))
		}
	}
	ctx, leave := cancellable(t)
	left := make(chan error, 3)
	for range cap(left) {
		go func() { left <- call(ctx, g, chat("b")) }()
	}
	wantQueue("3")
	leave()
	for range cap(left) {
		if err := harness.Receive(t, left, "a call has left"); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that left: %v", err)
		}
	}
	wantQueue("")

	answers := waiting(t, g, "b", 4)
	wantQueue("4")
	change(t, gpuGroups, ns, "gpu", fields{"status": fields{"activeModel": "b"}}, "status")
	change(t, deployments, ns, "b", fields{"spec": fields{"replicas": 1}})
	change(t, deployments, ns, "b", fields{"status": fields{"phase": "Running", "conditions": []any{fields{"type": "Ready", "status": "True"}}}}, "status")
	wantAll(t, answers, 4, http.StatusOK, "")
	wantQueue("")
	if n := g.Metrics(t).Value("flexinfer_proxy_gpugroup_swap_signals_total", "gpugroup", "gpu", "model", "b"); n == 0 {
		t.Error("no signal is counted")
	}
}
