package k8sdiscovery

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestGPUGroupSignals(t *testing.T) {
	a, c, _ := newPatches(t)
	queued := make(chan int, 16) // for each signal
	w := c.Waker(WakerConfig{
		GPUGroups: true,
		OnScaleUp: func(string) { t.Error("scaled up") },
		OnSwapSignal: func(group, model string) {
			if group != "g" || model != "x" {
				t.Errorf("a signal to group %s, model %s", group, model)
			}
		},
		OnQueued: func(group, model string, n int) {
			if group != "g" || model != "x" {
				t.Errorf("group %s, model %s", group, model)
			}
			queued <- n
		},
	})
	a.put(deploymentPath, "spec: {replicas: 0, gpuGroupRef: g}")
	a.put(groupPath, `metadata: {annotations: {mine: stays}}`)
	h := w.Handle(at("a/d/models/x"))
	depth := func() string { return a.get(groupPath, "metadata", "annotations", "flexinfer.ai/queue.x") }
	since := func() string { return a.get(groupPath, "metadata", "annotations", "flexinfer.ai/queue-since.x") }
	is := func(want string) func() bool { return func() bool { return depth() == want } }

	if err := h.Activate(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	h.Waiting("x", 1)
	h.Waiting("x", 2)
	h.Waiting("x", 3)
	a.await(is("3"))
	begin := since()
	if !recent(begin) {
		t.Errorf("since %q", begin)
	}
	h.Waiting("x", 1)
	a.await(is("1"))
	if since() != begin {
		t.Error("the time at which the queue began has changed")
	}
	h.Waiting("x", 0)
	a.await(is(""))
	if since() != "" || a.get(groupPath, "metadata", "annotations", "mine") != "stays" {
		t.Errorf("cleared: %s", a.get(groupPath, "metadata", "annotations"))
	}

	h.Waiting("x", 4)
	a.await(is("4"))
	for n := 0; n < 7; { // or the test times out
		n += <-queued
	}
	w.Close()
	if depth() != "" || since() != "" {
		t.Error("calls wait for a gateway that has ended")
	}
}

// Whatever went wrong, nothing is left behind.
func TestGPUGroupIsClearedAfterFailures(t *testing.T) {
	patch := func(r *http.Request) bool { return r.Method == http.MethodPatch }
	for name, fail := range map[string]func(n int, r *http.Request) bool{
		"the first signal": func(n int, r *http.Request) bool { return patch(r) && n == 1 },
		"the first clear":  func(n int, r *http.Request) bool { return patch(r) && n == 2 },
	} {
		t.Run(name, func(t *testing.T) {
			a, c, _ := newPatches(t)
			w := c.Waker(WakerConfig{GPUGroups: true})
			w.upkeep, w.signals = nopQueue{}, nopQueue{}
			defer w.Close()
			a.put(deploymentPath, "spec: {replicas: 0, gpuGroupRef: g}")
			a.put(groupPath, "{}")
			n := 0
			a.fail = func(r *http.Request) (int, string) {
				if patch(r) {
					n++
				}
				if fail(n, r) {
					// It was obeyed, and the answer is lost.
					if n == 1 {
						merge(a.objects[groupPath], map[string]any{"metadata": map[string]any{"annotations": map[string]any{"flexinfer.ai/queue.x": "2"}}})
					}
					return http.StatusInternalServerError, "InternalError"
				}
				return 0, ""
			}
			h := w.Handle(at("a/d/models/x"))
			h.Waiting("x", 2)
			h.signal(t.Context())
			h.Waiting("x", 0)
			for range 3 {
				h.line.toldAt = h.line.toldAt.Add(-signalGap) // as if it were later
				h.signal(t.Context())
			}
			if got := a.get(groupPath, "metadata", "annotations", "flexinfer.ai/queue.x"); got != "" {
				t.Errorf("the group was told %s", got)
			}
		})
	}
}

func TestNoGPUGroupNoSignal(t *testing.T) {
	for name, tt := range map[string]struct {
		config WakerConfig
		ref    string
		spec   string
		group  bool
	}{
		"gpu_groups off":     {WakerConfig{}, "a/d/models/x", "{replicas: 0, gpuGroupRef: g}", true},
		"a Model":            {WakerConfig{GPUGroups: true}, "a/m/models/x", "{gpuGroupRef: g}", true},
		"of no group":        {WakerConfig{GPUGroups: true}, "a/d/models/x", "{replicas: 0}", true},
		"of one that is not": {WakerConfig{GPUGroups: true}, "a/d/models/x", "{replicas: 0, gpuGroupRef: g}", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, c, _ := newPatches(t)
			w := c.Waker(tt.config)
			w.upkeep, w.signals = nopQueue{}, nopQueue{}
			defer w.Close()
			a.put(deploymentPath, "spec: "+tt.spec)
			a.put(modelPath, "spec: "+tt.spec)
			if tt.group {
				a.put(groupPath, "{}")
			}
			h := w.Handle(at(tt.ref))
			h.Waiting("x", 2)
			if again := h.signal(t.Context()); again != 0 && again < signalNobody-time.Second {
				t.Errorf("tried again in %s", again)
			}
			if err := h.Activate(t.Context(), "x"); err != nil {
				t.Error(err)
			}
			for _, r := range a.requests() {
				if r == fmt.Sprintf("PATCH %s", groupPath) {
					t.Error("the group was told")
				}
			}
			if tt.ref[2] == 'd' && a.get(deploymentPath, "spec", "replicas") != "1" {
				t.Error("it was not scaled up")
			}
		})
	}
}

// A group that is not there is not looked for at each change of the queue, but
// now and then it is.
func TestNoGPUGroupIsRemembered(t *testing.T) {
	a, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{GPUGroups: true})
	w.upkeep, w.signals = nopQueue{}, nopQueue{}
	defer w.Close()
	a.put(deploymentPath, "spec: {replicas: 0, gpuGroupRef: g}")
	h := w.Handle(at("a/d/models/x"))
	look := []string{"GET " + deploymentPath, "GET " + groupPath}
	h.Waiting("x", 1)
	h.signal(t.Context())
	check(t, "the first call", a.requests(), look)
	for calls := 2; calls < 10; calls++ {
		h.Waiting("x", calls)
		h.line.toldAt = time.Time{} // as if it were later
		if again := h.signal(t.Context()); again <= 0 || again > signalNobody {
			t.Errorf("the group is looked for in %s", again)
		}
	}
	check(t, "further calls", a.requests(), nil)

	a.put(groupPath, "{}")
	h.line.lookAt = time.Now()
	if again := h.signal(t.Context()); again != 0 {
		t.Errorf("what was told is told again in %s", again)
	}
	check(t, "later", a.requests(), append(look, "PATCH "+groupPath))
	if got := a.get(groupPath, "metadata", "annotations", "flexinfer.ai/queue.x"); got != "9" {
		t.Errorf("the group was told %q", got)
	}
}

// Groups of which the API server says nothing hold up no other.
func TestGPUGroupsDoNotWaitForEachOther(t *testing.T) {
	a, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{GPUGroups: true})
	defer w.Close()
	held := make(chan struct{})
	defer close(held)
	a.hold = func(r *http.Request) {
		if strings.Contains(r.URL.Path, "slow") {
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}
	}
	a.put(deploymentPath, "spec: {replicas: 0, gpuGroupRef: g}")
	a.put(groupPath, "{}")
	for i := range 8 {
		name := fmt.Sprintf("slow-%d", i)
		w.Handle(at("a/d/models/"+name)).Waiting(name, 1)
	}
	began := time.Now()
	w.Handle(at("a/d/models/x")).Waiting("x", 3)
	a.await(func() bool { return a.get(groupPath, "metadata", "annotations", "flexinfer.ai/queue.x") == "3" })
	if took := time.Since(began); took > writeTimeout/2 {
		t.Errorf("a group was told after %s", took)
	}
}
