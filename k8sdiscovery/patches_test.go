package k8sdiscovery

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// Patches is an API server that knows single objects by their paths, and takes
// merge patches to them. tests/kube has the real one; this one fails at will.
type patches struct {
	t *testing.T

	mu      sync.Mutex
	objects map[string]map[string]any // by path, without /status
	log     []string                  // of the requests
	fail    func(r *http.Request) (status int, reason string)
	hold    func(r *http.Request) // returns when the request may be looked at
	changed chan struct{}         // closed after each request
}

// newPatches returns an API server and a cluster that is connected to it. Warnings
// go to the second.
func newPatches(t *testing.T) (*patches, *Cluster, *observer.ObservedLogs) {
	t.Helper()
	a := &patches{t: t, objects: make(map[string]map[string]any), changed: make(chan struct{})}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}],
contexts: [{name: c, context: {cluster: c, namespace: of-the-context}}]}`, server.URL)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zapcore.WarnLevel)
	logger := zap.New(core)
	c := New(Config{Kubeconfig: file, Logger: func() *zap.Logger { return logger }})
	t.Cleanup(c.Close)
	return a, c, logs
}

// put has the server know an object.
func (a *patches) put(path, text string) {
	obj := object(a.t, text)
	meta, _ := obj["metadata"].(map[string]any)
	if meta == nil {
		meta = make(map[string]any)
		obj["metadata"] = meta
	}
	meta["resourceVersion"] = "1"
	obj["kind"] = "Kind"
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects[path] = obj
}

// get returns what the server has now.
func (a *patches) get(path string, field ...string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, _ := fieldOf[any](a.objects[path], field...)
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// requests returns what was asked since the last time.
func (a *patches) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	log := a.log
	a.log = nil
	return log
}

// await waits until what holds.
func (a *patches) await(what func() bool) {
	a.t.Helper()
	for !what() {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		if what() {
			return
		}
		select {
		case <-changed:
		case <-a.t.Context().Done():
			a.t.Fatal("it did not come")
		}
	}
}

func (a *patches) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.hold != nil {
		a.hold(r)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() {
		close(a.changed)
		a.changed = make(chan struct{})
	}()
	path := strings.TrimPrefix(r.URL.Path, "/apis/")
	a.log = append(a.log, r.Method+" "+path)
	w.Header().Set("Content-Type", "application/json")
	refuse := func(status int, reason string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q}`, status, reason)
	}
	if a.fail != nil {
		if status, reason := a.fail(r); status != 0 {
			refuse(status, reason)
			return
		}
	}
	obj := a.objects[strings.TrimSuffix(path, "/status")]
	if obj == nil {
		refuse(http.StatusNotFound, "NotFound")
		return
	}
	if r.Method == http.MethodPatch {
		if got := r.Header.Get("Content-Type"); got != "application/merge-patch+json" {
			a.t.Errorf("a patch is %s", got)
		}
		body, _ := io.ReadAll(r.Body)
		patch := object(a.t, string(body))
		if version := stringOf(patch, "metadata", "resourceVersion"); version != "" && version != stringOf(obj, "metadata", "resourceVersion") {
			refuse(http.StatusConflict, "Conflict")
			return
		}
		merge(obj, patch)
		a.renew(obj)
	}
	if err := json.NewEncoder(w).Encode(obj); err != nil {
		a.t.Error(err)
	}
}

// renew gives an object its next version. The caller holds mu.
func (a *patches) renew(obj map[string]any) {
	n, err := strconv.Atoi(stringOf(obj, "metadata", "resourceVersion"))
	if err != nil {
		a.t.Error(err)
	}
	obj["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(n + 1)
}

func merge(into, patch map[string]any) {
	for k, v := range patch {
		switch inner, ok := v.(map[string]any); {
		case v == nil:
			delete(into, k)
		case ok:
			below, _ := into[k].(map[string]any)
			if below == nil {
				below = make(map[string]any)
				into[k] = below
			}
			merge(below, inner)
		default:
			into[k] = v
		}
	}
}

func check(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\ngot  %q\nwant %q", what, got, want)
	}
}
