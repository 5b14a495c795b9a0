package k8sdiscovery

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	modelPath      = "ai.flexinfer/v1alpha2/namespaces/models/models/x"
	deploymentPath = "ai.flexinfer/v1alpha1/namespaces/models/modeldeployments/x"
	otherPath      = "inference.flexinfer.ai/v1alpha1/namespaces/models/modeldeployments/x"
	groupPath      = "ai.flexinfer/v1alpha1/namespaces/models/gpugroups/g"
)

// recent reports whether a time that was written is about now.
func recent(text string) bool {
	at, err := time.Parse(time.RFC3339, text)
	return err == nil && time.Since(at).Abs() < time.Minute
}

func TestWakeModel(t *testing.T) {
	a, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{})
	defer w.Close()
	h := w.Handle(at("a/m/models/x"))
	if h != w.Handle(at("a/m/models/x")) {
		t.Error("another handle of the same model")
	}
	if err := h.Activate(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "waking model x") {
		t.Errorf("without such a model: %v", err)
	}
	a.put(modelPath, "{spec: {replicas: 0}, status: {phase: Idle}}")
	a.requests()
	if err := h.Activate(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	check(t, "requests", a.requests(), []string{"PATCH " + modelPath + "/status"})
	if got := a.get(modelPath, "status", "lastActiveTime"); !recent(got) {
		t.Errorf("last active %q", got)
	}
	if a.get(modelPath, "status", "phase") != "Idle" || a.get(modelPath, "spec", "replicas") != "0" {
		t.Error("something else was written")
	}
}

func TestWakeWhateverItIs(t *testing.T) {
	a, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{})
	defer w.Close()
	h := w.Handle(Ref{Namespace: "models", Name: "x"})
	err := h.Activate(t.Context(), "mine")
	if want := "there is neither a Model nor a ModelDeployment models/x"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	a.put(otherPath, "{spec: {replicas: 0}}")
	if err := h.Activate(t.Context(), "mine"); err != nil || a.get(otherPath, "spec", "replicas") != "1" {
		t.Errorf("a ModelDeployment of the other group: %v", err)
	}
	a.put(modelPath, "{}")
	h.woken.Store(nil)
	if err := h.Activate(t.Context(), "mine"); err != nil || !recent(a.get(modelPath, "status", "lastActiveTime")) {
		t.Errorf("a Model comes first: %v", err)
	}
}

func TestWakeModelDeployment(t *testing.T) {
	get, touch, scale := "GET "+deploymentPath, "PATCH "+deploymentPath+"/status", "PATCH "+deploymentPath
	for name, tt := range map[string]struct {
		spec     string
		fail     func(a *patches, n int, r *http.Request) (int, string) // n requests before
		requests []string
		replicas string
		scaleUps int
		err      string
	}{
		"asleep":                 {spec: "{replicas: 0}", requests: []string{get, touch, get, scale}, replicas: "1", scaleUps: 1},
		"awake":                  {spec: "{replicas: 2}", requests: []string{get}, replicas: "2"},
		"awake by default":       {spec: "{}", requests: []string{get}},
		"GPU groups are ignored": {spec: "{replicas: 0, gpuGroupRef: g}", requests: []string{get, touch, get, scale}, replicas: "1", scaleUps: 1},
		"the time is refused": {
			spec: "{replicas: 0}",
			fail: func(_ *patches, _ int, r *http.Request) (int, string) {
				if strings.HasSuffix(r.URL.Path, "/status") {
					return http.StatusForbidden, "Forbidden"
				}
				return 0, ""
			},
			requests: []string{get, touch, get, scale}, replicas: "1", scaleUps: 1,
		},
		"somebody else writes": {
			spec: "{replicas: 0}",
			fail: func(a *patches, n int, _ *http.Request) (int, string) {
				if n == 3 { // before the replica is written
					a.renew(a.objects[deploymentPath])
				}
				return 0, ""
			},
			requests: []string{get, touch, get, scale, get, scale}, replicas: "1", scaleUps: 1,
		},
		"somebody else scales up": {
			spec: "{replicas: 0}",
			fail: func(a *patches, n int, _ *http.Request) (int, string) {
				if n == 3 {
					merge(a.objects[deploymentPath], map[string]any{"spec": map[string]any{"replicas": int64(3)}})
					a.renew(a.objects[deploymentPath])
				}
				return 0, ""
			},
			requests: []string{get, touch, get, scale, get}, replicas: "3",
		},
		"somebody else always writes": {
			spec: "{replicas: 0}",
			fail: func(_ *patches, _ int, r *http.Request) (int, string) {
				if r.Method == http.MethodPatch && !strings.HasSuffix(r.URL.Path, "/status") {
					return http.StatusConflict, "Conflict"
				}
				return 0, ""
			},
			requests: []string{get, touch, get, scale, get, scale, get, scale}, replicas: "0", err: "waking model x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, c, _ := newPatches(t)
			scaleUps := 0
			w := c.Waker(WakerConfig{OnScaleUp: func(string) { scaleUps++ }})
			defer w.Close()
			a.put(deploymentPath, "spec: "+tt.spec)
			n := 0
			if tt.fail != nil {
				a.fail = func(r *http.Request) (int, string) {
					n++
					return tt.fail(a, n-1, r)
				}
			}
			err := w.Handle(at("a/d/models/x")).Activate(t.Context(), "x")
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got error %v, want %q", err, tt.err)
			}
			check(t, "requests", a.requests(), tt.requests)
			if got := a.get(deploymentPath, "spec", "replicas"); got != tt.replicas || scaleUps != tt.scaleUps {
				t.Errorf("got %s replicas and %d scale-ups, want %s and %d", got, scaleUps, tt.replicas, tt.scaleUps)
			}
		})
	}
}

func TestRefusedWritesAreLoggedOnce(t *testing.T) {
	a, c, logs := newPatches(t)
	w := c.Waker(WakerConfig{})
	defer w.Close()
	a.fail = func(*http.Request) (int, string) { return http.StatusForbidden, "Forbidden" }
	const rule = `{apiGroups: ["ai.flexinfer"], resources: ["models/status"], verbs: ["patch"]}`
	for range 3 {
		err := w.Handle(at("a/m/models/x")).Activate(t.Context(), "x")
		if err == nil || err.Error() != "waking model x: forbidden: the gateway may not patch models/status in namespace models" {
			t.Errorf("got %v", err)
		}
	}
	if all := logs.All(); len(all) != 1 || !strings.Contains(all[0].Message, rule) || !strings.Contains(all[0].Message, "Role in namespace models") {
		t.Errorf("logged %v", all)
	}
}

// Models that come and go leave nothing behind.
func TestHandlesGo(t *testing.T) {
	_, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{})
	defer w.Close()
	kept := w.Handle(at("a/m/models/kept"))
	for i := range 100 {
		w.Handle(Ref{Namespace: "models", Name: strconv.Itoa(i)})
	}
	eventually(t, "the handles are gone", func() bool {
		runtime.GC()
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.handles) == 1
	})
	if w.Handle(kept.ref) != kept {
		t.Error("another handle of a model that is known")
	}
}

func TestClosedWaker(t *testing.T) {
	_, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{GPUGroups: true})
	h := w.Handle(at("a/d/models/x"))
	w.Close()
	h.Use("x", false)()
	h.Waiting("x", 1) // neither starts anything
	if w.upkeep != nil {
		t.Error("a closed waker has begun to work")
	}
}

func TestUpkeep(t *testing.T) {
	a, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{})
	defer w.Close()
	h := w.Handle(at("a/m/models/x"))
	get, patch := "GET "+modelPath, "PATCH "+modelPath+"/status"
	age := func(d time.Duration) {
		a.put(modelPath, `status: {lastActiveTime: "`+time.Now().Add(-d).UTC().Format(time.RFC3339)+`"}`)
	}

	// By hand, so that nothing happens in the background.
	w.upkeep, w.signals = nopQueue{}, nopQueue{}
	call := func() func() {
		h.use.calls.Add(1)
		h.use.used.Store(true)
		return h.done
	}
	age(2 * time.Minute)
	done := call()
	h.keepUp(t.Context())
	check(t, "a call begins", a.requests(), []string{get, patch})
	if !recent(a.get(modelPath, "status", "lastActiveTime")) {
		t.Error("the time is an old one")
	}
	h.keepUp(t.Context())
	check(t, "it is under way", a.requests(), nil)

	h.use.due.Store(0)
	age(30 * time.Second)
	h.keepUp(t.Context())
	check(t, "another gateway has written", a.requests(), []string{get})

	h.use.due.Store(0)
	done()
	h.use.scheduled.Store(true)
	h.keepUp(t.Context())
	check(t, "it has ended", a.requests(), nil)
	if h.use.scheduled.Load() {
		t.Error("a model without calls is looked after")
	}

	age(2 * time.Minute)
	call()()
	h.keepUp(t.Context())
	check(t, "a call came and went", a.requests(), []string{get, patch})

	h.use.due.Store(0)
	call()
	a.fail = func(*http.Request) (int, string) { return http.StatusServiceUnavailable, "ServiceUnavailable" }
	h.keepUp(t.Context())
	if a.requests(); h.use.isDue() {
		t.Error("it is tried again at once")
	}
}

func TestUseStartsUpkeep(t *testing.T) {
	a, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{})
	defer w.Close()
	a.put(modelPath, "{}")
	h := w.Handle(at("a/m/models/x"))
	for range 100 {
		defer h.Use("x", false)()
	}
	a.await(func() bool { return recent(a.get(modelPath, "status", "lastActiveTime")) })
	if n := h.use.calls.Load(); n != 100 {
		t.Errorf("%d calls", n)
	}
	if n := testing.AllocsPerRun(100, func() { h.Use("x", false)() }); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
}

// nopQueue is a queue that takes everything and gives nothing.
type nopQueue struct{}

func (nopQueue) Add(*Handle)                     {}
func (nopQueue) AddAfter(*Handle, time.Duration) {}
func (nopQueue) Len() int                        { return 0 }
func (nopQueue) Get() (*Handle, bool)            { return nil, true }
func (nopQueue) Done(*Handle)                    {}
func (nopQueue) ShutDown()                       {}
func (nopQueue) ShutDownWithDrain()              {}
func (nopQueue) ShuttingDown() bool              { return false }
