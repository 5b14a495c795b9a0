package k8sdiscovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// An api is as much of an API server as listing and watching EndpointSlices of
// the namespace models takes.
type api struct {
	*httptest.Server
	t    *testing.T
	logs *observer.ObservedLogs
	log  *zap.Logger

	mu      sync.Mutex
	version int
	objects map[string]string // by name
	refuse  bool              // everybody
	lists   int
	watches map[chan string]struct{}
	begun   int // watches, ever
}

func newAPI(t *testing.T) *api {
	core, logs := observer.New(zap.InfoLevel)
	a := &api{t: t, logs: logs, log: zap.New(core), version: 1, objects: make(map[string]string), watches: make(map[chan string]struct{})}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.cut()
		a.Close()
	})
	return a
}

// cluster returns a connection to a.
func (a *api) cluster() *Cluster {
	c := New(Config{Kubeconfig: kubeconfigOf(a.t, a.URL), Logger: func() *zap.Logger { return a.log }})
	a.t.Cleanup(c.Close)
	return c
}

// kubeconfigOf returns the path of a kubeconfig for the server at url.
func kubeconfigOf(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"x","clusters":[{"name":"x","cluster":{"server":%q}}],"users":[{"name":"x","user":{"token":"t"}}],"contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}]}`, url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const path = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
	w.Header().Set("Content-Type", "application/json")
	a.mu.Lock()
	if a.refuse || r.URL.Path != path {
		a.mu.Unlock()
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		defer a.mu.Unlock()
		a.lists++
		items := make([]json.RawMessage, 0, len(a.objects))
		for _, o := range a.objects {
			items = append(items, json.RawMessage(o))
		}
		list, _ := json.Marshal(items)
		fmt.Fprintf(w, `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"%d"},"items":%s}`, a.version, list)
		return
	}
	if from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")); from < a.version {
		a.mu.Unlock()
		w.WriteHeader(http.StatusGone)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`)
		return
	}
	events := make(chan string, 100)
	a.watches[events] = struct{}{}
	a.begun++
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watches, events)
		a.mu.Unlock()
	}()
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			fmt.Fprintln(w, e)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// set gives the object a new state, in JSON without its metadata, or deletes it
// if that is empty. If it is told, the watches are.
func (a *api) set(name, service, rest string, told bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	kind, object := "MODIFIED", fmt.Sprintf(`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":%q,"namespace":"models","uid":%q,"resourceVersion":"%d","labels":{"kubernetes.io/service-name":%q,"tier":"gold"}},"addressType":"IPv4",%s}`,
		name, name, a.version, service, rest)
	switch {
	case rest == "":
		kind, object = "DELETED", fmt.Sprintf(`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":%q,"namespace":"models","resourceVersion":"%d"}}`, name, a.version)
		delete(a.objects, name)
	case a.objects[name] == "":
		kind = "ADDED"
		fallthrough
	default:
		a.objects[name] = object
	}
	if told {
		for events := range a.watches {
			events <- fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object)
		}
	}
}

// cut ends all watches.
func (a *api) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for events := range a.watches {
		close(events)
		delete(a.watches, events)
	}
}

func (a *api) setRefuse(yes bool) {
	a.mu.Lock()
	a.refuse = yes
	a.mu.Unlock()
}

func (a *api) counts() (lists, begun, open int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists, a.begun, len(a.watches)
}

// until waits for a source to say something.
func until(t *testing.T, e *Endpoints, what string, ok func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		_, changed := e.Models()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-late:
			models, _ := e.Models()
			t.Fatalf("not in time: %s; endpoints: %s, settled: %v", what, said(models[0].Endpoints), e.Settled())
		}
	}
}

// eventually waits for something that no source tells of.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// has returns whether e has these endpoints now.
func has(e *Endpoints, want string) func() bool {
	return func() bool {
		models, _ := e.Models()
		return said(models[0].Endpoints) == want
	}
}
