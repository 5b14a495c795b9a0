package k8sdiscovery

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// However many calls come and leave, what wakes their model is written once,
// then not again for a while.
func TestWokenOnce(t *testing.T) {
	a, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{})
	defer w.Close()
	for ref, tt := range map[string]struct {
		path, status string // of the object, and the path that wakes it
	}{
		"a/m/models/x": {modelPath, modelPath + "/status"},
		"a/d/models/x": {deploymentPath, deploymentPath},
	} {
		h := w.Handle(at(ref))
		writes := func() (n int) {
			t.Helper()
			a.put(tt.path, "spec: {replicas: 0}") // so that there is something to write
			if err := h.Activate(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			for _, r := range a.requests() {
				if r == "PATCH "+tt.status {
					n++
				}
			}
			return n
		}
		a.fail = func(r *http.Request) (int, string) { return http.StatusForbidden, "Forbidden" }
		if err := h.Activate(t.Context(), "x"); err == nil {
			t.Fatal("it may not")
		}
		a.requests()
		a.fail = nil
		n := 0
		for range 100 {
			n += writes()
		}
		if n != 1 {
			t.Errorf("%s is written %d times", ref, n)
		}
		h.woken.Store(new(time.Now().Add(-wokenFor)))
		if n := writes(); n != 1 {
			t.Errorf("%s, later, is written %d times", ref, n)
		}
	}
}

// A model that takes the place of one that was woken was not.
func TestAnotherIsNotWoken(t *testing.T) {
	_, c, _ := newPatches(t)
	w := c.Waker(WakerConfig{})
	defer w.Close()
	s, ref := newTestSet(t), at("a/m/models/x")
	s.activator = func(ref Ref) routing.Activator { return w.Handle(ref) }
	h := w.Handle(ref)
	for _, step := range []struct {
		obj   string // "" if it goes
		woken bool
	}{
		{"metadata: {uid: a}", true},
		{"{metadata: {uid: a}, status: {phase: Loading}}", true},
		{"metadata: {uid: b}", false},
		{"metadata: {uid: b}", true},
		{"", false},
	} {
		h.woken.Store(new(time.Now()))
		if step.obj == "" {
			s.setObject(ref, nil)
		} else {
			s.setObject(ref, object(t, step.obj))
		}
		s.rebuild(testNow)
		if h.isWoken() != step.woken {
			t.Errorf("%q: woken is %v", step.obj, !step.woken)
		}
	}
}

// While the API server does not answer, or not for good, it is asked again.
func TestWakeTriesAgain(t *testing.T) {
	for name, status := range map[string]int{"away": http.StatusServiceUnavailable, "credentials": http.StatusUnauthorized, "hung": 0} {
		t.Run(name, func(t *testing.T) {
			a, c, logs := newPatches(t)
			w := c.Waker(WakerConfig{})
			defer w.Close()
			w.timeout = 200 * time.Millisecond
			a.put(modelPath, "{}")
			n := 0
			bad := func() bool { n++; return n <= 2 }
			if status != 0 {
				a.fail = func(*http.Request) (int, string) {
					if bad() {
						return status, "Bad"
					}
					return 0, ""
				}
			} else {
				hung := make(chan struct{}, 2)
				hung <- struct{}{}
				hung <- struct{}{}
				over := make(chan struct{})
				t.Cleanup(func() { close(over) }) // before the server closes
				a.hold = func(*http.Request) {
					select {
					case <-hung:
						<-over
					default:
					}
				}
			}
			if err := w.Handle(at("a/m/models/x")).Activate(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			if !recent(a.get(modelPath, "status", "lastActiveTime")) {
				t.Error("it is not written")
			}
			if logs.Len() != 1 {
				t.Errorf("logged %v", logs.All())
			}
		})
	}
}

func TestWakeDoesNotTryAgain(t *testing.T) {
	for reason, status := range map[string]int{"Forbidden": 403, "NotFound": 404, "Invalid": 422, "BadRequest": 400} {
		t.Run(reason, func(t *testing.T) {
			a, c, _ := newPatches(t)
			w := c.Waker(WakerConfig{})
			defer w.Close()
			a.put(modelPath, "{}")
			a.fail = func(*http.Request) (int, string) { return status, reason }
			if err := w.Handle(at("a/m/models/x")).Activate(t.Context(), "x"); err == nil {
				t.Error("no error")
			}
			if n := len(a.requests()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// What clients are told does not say where the API server is; the log does.
func TestErrorsAreForClients(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	core, logs := observer.New(zapcore.WarnLevel)
	c := New(Config{Kubeconfig: kubeconfigOf(t, server.URL), Logger: func() *zap.Logger { return zap.New(core) }})
	defer c.Close()
	w := c.Waker(WakerConfig{})
	defer w.Close()
	for range 2 {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(500*time.Millisecond, func() { cancel(nil) })
		err := w.Handle(at("a/m/models/x")).Activate(ctx, "x")
		if want := "waking model x: the cluster's API cannot be reached"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Error("it passes for a deadline of the caller's")
		}
	}
	all := logs.All()
	if len(all) != 1 {
		t.Fatalf("logged %v", all)
	}
	if detail, _ := all[0].ContextMap()["error"].(string); !strings.Contains(detail, server.URL) {
		t.Errorf("the log says %v", all[0].ContextMap())
	}
}
