package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// engine answers as engines do: a stream piece by piece if the call asks for
// one, and the rest at once.
func engine(x *harness.Exchange) {
	if !strings.Contains(string(x.Body), `"stream":true`) {
		harness.Answer(x)
		return
	}
	x.StartStream("text/event-stream")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range 20 {
		select {
		case <-tick.C:
		case <-x.Gone():
			return
		}
		x.Chunk(fmt.Sprintf("data: {\"upstream\":%q,\"n\":%d}\n\n", x.Upstream.Addr, i))
	}
	x.Chunk("data: [DONE]\n\n")
	x.EndStream()
}

// load is made of clients that call a model until they are told to stop.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	done atomic.Int64

	mu     sync.Mutex
	failed []string
}

// loadOn starts so many clients. Every other call asks for a stream.
func loadOn(t *testing.T, g *harness.Gateway, model string, clients int) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{stop: stop}
	for c := range clients {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				body := fmt.Sprintf(`{"model":%q,"stream":%t,"session_id":"s-%d-%d"}`, model, i%2 == 0, c, i)
				if err := call(t.Context(), g, body); err != nil {
					l.mu.Lock()
					l.failed = append(l.failed, err.Error())
					l.mu.Unlock()
				}
				l.done.Add(1)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		l.wg.Wait()
	})
	return l
}

// call makes a call and reads the answer to its end.
func call(ctx context.Context, g *harness.Gateway, body string) error {
	res, err := g.Open(ctx, http.MethodPost, "/v1/chat/completions", body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return fmt.Errorf("in the answer: %w", err)
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%d %s", res.StatusCode, answer)
	case res.Header.Get("Content-Type") == "text/event-stream" && !strings.HasSuffix(string(answer), "data: [DONE]\n\n"):
		return errors.New("a stream without an end: " + string(answer))
	}
	return nil
}

// more waits until n further calls have ended.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	want := l.done.Load() + n
	harness.Eventually(t, time.Minute, fmt.Sprintf("%d further calls end", n), func() bool { return l.done.Load() >= want })
}

// end stops the clients, and fails the test for each call that failed.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.wg.Wait()
	t.Logf("%d calls, %d failed", l.done.Load(), len(l.failed))
	if len(l.failed) > 0 {
		t.Errorf("%d of %d calls failed, the first few: %q", len(l.failed), l.done.Load(), l.failed[:min(5, len(l.failed))])
	}
}

// waitRolledOut waits until a Deployment runs as it is to.
func waitRolledOut(t *testing.T, ns, name string) {
	t.Helper()
	var d *appsv1.Deployment
	harness.Eventually(t, 2*time.Minute, "the Deployment has rolled out", func() bool {
		var err error
		d, err = kube.Client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == *d.Spec.Replicas &&
			s.Replicas == s.UpdatedReplicas && s.AvailableReplicas == s.UpdatedReplicas
	})
}

// Rolling updates are not felt: every call is answered, and in the end nothing
// tells of the pods that were.
func TestRollingUpdate(t *testing.T) {
	ns := kube.Namespace(t)
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{Handle: engine})
	service(t, ns, "m")
	deployment(t, ns, "m", 5)
	before := k.WaitPods(t, 5)
	waitRolledOut(t, ns, "m")
	g := start(t, ns, "endpoints "+ns+"/m:http")
	wantEndpoints(t, g, "m", upstreamsOf(before)...)

	l := loadOn(t, g, "m", 16)
	for version := range 5 {
		l.more(t, 100)
		patchDeployment(t, ns, "m", fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"version":"%d"}}}}}`, version))
		waitRolledOut(t, ns, "m")
		harness.Eventually(t, time.Minute, "the old pods have ended", func() bool { return len(k.Pods()) == 5 })
	}
	l.more(t, 100)
	l.end(t)

	after := k.Pods()
	wantEndpoints(t, g, "m", upstreamsOf(after)...)
	for _, p := range before {
		if slices.ContainsFunc(after, func(q cluster.Pod) bool { return q.Name == p.Name }) {
			t.Errorf("pod %s is still there", p.Name)
		}
		if p.Upstream.Served() == 0 {
			t.Errorf("pod %s got no call", p.Name)
		}
	}
	g.WaitIdle(t)
	wantNoSeries(t, g, before...)
}

func upstreamsOf(pods []cluster.Pod) []*harness.Upstream {
	us := make([]*harness.Upstream, len(pods))
	for i, p := range pods {
		us[i] = p.Upstream
	}
	return us
}

// wantNoSeries waits until no gauge has an endpoint that is gone.
func wantNoSeries(t *testing.T, g *harness.Gateway, pods ...cluster.Pod) {
	t.Helper()
	var left []string
	if !harness.Within(harness.Patience, func() bool {
		left = nil
		m := g.Metrics(t)
		for _, p := range pods {
			for name := range m {
				for _, s := range m.Series(name, "target", p.Upstream.Addr) {
					left = append(left, s.String())
				}
			}
		}
		return len(left) == 0
	}) {
		t.Errorf("series of endpoints that are gone: %q", left)
	}
}

// Pods that come and go take nobody else's sessions with them.
func TestRollingKeepsSessions(t *testing.T) {
	ns := kube.Namespace(t)
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{Handle: engine})
	service(t, ns, "m")
	deployment(t, ns, "m", 5)
	pods := k.WaitPods(t, 5)
	waitRolledOut(t, ns, "m")
	g := harness.Start(t, inCluster(t, kube.Account(t, ns, seeSlices),
		"model m {\n\trouting session-affinity\n\tendpoints "+ns+"/m:http\n}\n"))
	harness.Eventually(t, harness.Patience, "the model has its endpoints", func() bool { return len(endpointsOf(t, g, "m")) == 5 })

	const sessions = 100
	where := func() []string {
		places := make([]string, sessions)
		for i := range places {
			res := g.Chat(t, fmt.Sprintf(`{"model":"m","session_id":"session-%d"}`, i))
			places[i] = harness.Decode[struct{ Upstream string }](t, res.Body).Upstream
		}
		return places
	}
	first := where()
	gone := pods[0]
	if err := kube.Client.CoreV1().Pods(ns).Delete(t.Context(), gone.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The ReplicaSet makes another in its place.
	harness.Eventually(t, time.Minute, "the pod is replaced", func() bool {
		addrs := endpointsOf(t, g, "m")
		return len(addrs) == 5 && !slices.Contains(addrs, gone.Upstream.Addr)
	})
	moved, lost := 0, 0
	for i, place := range where() {
		switch {
		case first[i] == gone.Upstream.Addr:
			lost++
		case first[i] != place:
			moved++
		}
	}
	t.Logf("of %d sessions %d lost their pod, and %d of the others moved to the new one", sessions, lost, moved)
	// The new pod takes its own share of the ring: one in five, and some more
	// by chance.
	if lost == 0 || moved > sessions*2/5 {
		t.Errorf("%d of %d sessions moved whose pods were there all the time", moved, sessions-lost)
	}
	last := where()
	for i, place := range where() {
		if place != last[i] {
			t.Errorf("session %d moved from %s to %s though nothing changed", i, last[i], place)
		}
	}
	wantNoSeries(t, g, gone)
}
