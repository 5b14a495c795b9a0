package k8sdiscovery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// counter is a watcher that counts how often it looked.
type counter struct{ flushes atomic.Int32 }

func (c *counter) observe(_, _ metav1.Object) {}
func (c *counter) flush()                     { c.flushes.Add(1) }

// Events are looked at soon, but for those of endless churn.
func TestDeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &feed{wake: make(chan struct{}, 1), dirty: make(map[watcher]struct{})}
		w := new(counter)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go f.deliver(ctx)
		event := func() {
			f.mu.Lock()
			f.dirty[w] = struct{}{}
			f.mu.Unlock()
			f.rouse()
			synctest.Wait()
		}
		wait := func(d time.Duration, want int32) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n := w.flushes.Load(); n != want {
				t.Errorf("looked %d times, want %d", n, want)
			}
		}
		for range 3 {
			w.flushes.Store(0)
			for i := range int32(churnLooks) {
				event()
				event() // of the same burst
				wait(0, i)
				wait(coalesceMin, i+1)
			}
			event()
			wait(coalesceMin, churnLooks)
			wait(coalesceChurn-coalesceMin, churnLooks+1)
			time.Sleep(time.Second)
		}
	})
}

// BenchmarkChurn is how long it takes until a change of an EndpointSlice is in a
// table of 1,000 models with 10 endpoints each, while others change all the
// time. To make the table takes as long as that of the gateway.
func BenchmarkChurn(b *testing.B) {
	for _, perSecond := range []int{2, 100, 1000} {
		b.Run(fmt.Sprintf("rate=%d", perSecond), func(b *testing.B) { benchmarkChurn(b, perSecond) })
	}
}

func benchmarkChurn(b *testing.B, perSecond int) {
	const models = 1000
	name := func(i int) string { return fmt.Sprintf("m-%d", i) }
	version := 0
	slice := func(i int) *discoveryv1.EndpointSlice {
		version++
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "models", Name: name(i), ResourceVersion: strconv.Itoa(version),
				Labels: map[string]string{discoveryv1.LabelServiceName: name(i)},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8000 + version%1000))}},
		}
		for j := range 10 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1)}})
		}
		return s
	}
	c := New(Config{Logger: zap.NewNop})
	defer c.Close()
	kind := schema.GroupVersionResource{Group: "ai.flexinfer", Version: "v1alpha2", Resource: "models"}
	c.served[kind] = struct{}{}
	r := c.Resources(ResourcesConfig{Namespaces: []string{"models"}, APIGroup: "ai.flexinfer"})
	defer r.Close()
	feed := func(gvr schema.GroupVersionResource) *feed { return r.subs[feedKey{gvr, "models"}].f }
	var objects, svcs, slcs []any
	for i := range models {
		meta := map[string]any{"namespace": "models", "name": name(i)}
		objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
			"metadata": meta, "spec": map[string]any{"backend": "vllm", "source": "HF://a/b"}, "status": map[string]any{"phase": "Ready"},
		}})
		svcs = append(svcs, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: name(i)}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		slcs = append(slcs, slice(i))
	}
	_ = feed(kind).Replace(objects, "")
	_ = feed(services).Replace(svcs, "")
	_ = feed(endpointSlices).Replace(slcs, "")
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, s := range r.subs {
		running.Go(func() { s.f.deliver(ctx) })
	}

	var mu sync.Mutex
	began := make(map[string]time.Time) // by the address that is awaited
	var took []time.Duration
	arrived := make(chan struct{}, 1) // holds one
	running.Go(func() {
		var before []string
		for {
			now, changed := r.Models()
			addrs := make([]string, len(now))
			for i, m := range now {
				if len(m.Endpoints) > 0 {
					addrs[i] = m.Endpoints[0].Address
				}
			}
			work(3 * time.Millisecond)
			mu.Lock()
			for i, a := range addrs {
				if t, ok := began[a]; ok && (i >= len(before) || before[i] != a) {
					took = append(took, time.Since(t))
					delete(began, a)
				}
			}
			if len(took) > 0 {
				select {
				case arrived <- struct{}{}:
				default:
				}
			}
			mu.Unlock()
			before = addrs
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for b.Loop() {
		<-tick.C
		i := rand.IntN(models)
		s := slice(i)
		mu.Lock()
		began[fmt.Sprintf("%s:%d", s.Endpoints[0].Addresses[0], *s.Ports[0].Port)] = time.Now()
		mu.Unlock()
		_ = feed(endpointSlices).Update(s)
	}
	select { // a run of one change is over before it arrives
	case <-arrived:
	case <-time.After(10 * time.Second):
		b.Fatal("no change arrived")
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e6, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
}

// work takes a while, and memory.
func work(while time.Duration) {
	m := make(map[int]*[64]byte)
	for began := time.Now(); time.Since(began) < while; {
		for range 100 {
			m[len(m)] = new([64]byte)
		}
	}
}
