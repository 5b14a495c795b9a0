package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// A thousand models are known in a moment, and a change to one of them costs
// what it would cost among few.
func TestScaleThousandModels(t *testing.T) {
	const count, each, changes = 1000, 10, 50
	install(t, models.Group)
	ns := kube.Namespace(t)
	name := func(i int) string { return fmt.Sprintf("m-%d", i) }
	inParallel(t, 8, count, func(ctx context.Context, i int) error {
		endpoints := make([]discoveryv1.Endpoint, each)
		for j := range endpoints {
			pod := fmt.Sprintf("%s-%d", name(i), j)
			endpoints[j] = forPod(discoveryv1.Endpoint{Addresses: []string{cluster.NewAddress()}}, ns, pod, "uid-"+pod)
		}
		if _, err := kube.Client.DiscoveryV1().EndpointSlices(ns).Create(ctx, sliceOf(name(i), name(i), endpoints...), metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := kube.Client.CoreV1().Services(ns).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name(i)},
			// One with an address of its own would take the API server longer.
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		client := kube.Dynamic.Resource(models).Namespace(ns)
		m := &unstructured.Unstructured{Object: fields{
			"apiVersion": "ai.flexinfer/v1alpha2", "kind": "Model",
			"metadata": fields{"name": name(i), "annotations": fields{"flexinfer.ai/routing": "prefix"}}, "spec": spec(),
		}}
		if _, err := client.Create(ctx, m, metav1.CreateOptions{}); err != nil {
			return err
		}
		m.Object["status"] = ready
		_, err := client.ApplyStatus(ctx, name(i), m, metav1.ApplyOptions{FieldManager: "test", Force: true})
		return err
	})

	cfg := discoveringConfig(t, kube.Account(t, ns, all...))
	empty := harness.Start(t, harness.Config{Flexinfer: "model static {\n\tto 127.0.0.1:1\n}"})
	before := empty.Heap(t)
	begun := time.Now()
	g := startSettled(t, cfg)
	known := func() int {
		n := 0
		for _, m := range g.Models(t) {
			n += len(m.Endpoints)
		}
		return n
	}
	harness.Eventually(t, time.Minute, "all endpoints are known", func() bool { return known() == count*each })
	t.Logf("%d models of %d endpoints are known after %s; heap %d MB, without them %d MB; %d MB resident",
		count, each, time.Since(begun).Round(time.Millisecond), g.Heap(t)>>20, before>>20, g.RSS(t)>>20)

	u := upstreams(t, 2)
	apply(t, ns, sliceOf("m-500", "m-500", at(u[0])))
	wantAnswer(t, g, "m-500", u[0])
	cpu := g.CPU(t)
	took := make([]time.Duration, changes)
	for i := range took {
		next := u[(i+1)%2]
		apply(t, ns, sliceOf("m-500", "m-500", at(next)))
		written := time.Now()
		wantAnswer(t, g, "m-500", next)
		took[i] = time.Since(written)
	}
	used := (g.CPU(t) - cpu) / changes
	slices.Sort(took)
	t.Logf("a change of one model is obeyed after p50 %s, p99 %s, and takes %s of a processor, calls included",
		took[changes/2], took[changes*99/100], used)
	if took[changes/2] > time.Second || used > time.Second {
		t.Errorf("a change of one model of %d takes %s, %s of a processor", count, took[changes/2], used)
	}
}

// inParallel calls do with 0 to n-1, from so many goroutines at once, and fails
// the test with the first error.
func inParallel(t *testing.T, workers, n int, do func(ctx context.Context, i int) error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				if ctx.Err() != nil {
					return
				}
				if err := do(ctx, i); err != nil {
					cancel(fmt.Errorf("%d: %w", i, err))
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
}
