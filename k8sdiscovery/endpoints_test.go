package k8sdiscovery

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/labels"
)

var models = Where{Namespace: "models", SyncTimeout: time.Minute}

func gold(t *testing.T) labels.Selector {
	t.Helper()
	s, err := labels.Parse("tier=gold")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t *testing.T, e *Endpoints) *Endpoints {
	t.Helper()
	t.Cleanup(e.Close)
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	return e
}

const (
	pod1 = `"endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"port":8000}]`
	pod2 = `"endpoints":[{"addresses":["10.0.0.2"]}],"ports":[{"port":8000}]`
)

func TestOneWatchForAll(t *testing.T) {
	a := newAPI(t)
	a.set("a-1", "a", pod1, false)
	a.set("b-1", "b", pod2, false)
	c := a.cluster()
	ea := start(t, c.Service(models, "a", "", Attributes{}))
	eb := start(t, c.Service(models, "b", "", Attributes{}))
	both := start(t, c.Selector(models, gold(t), "", Attributes{}))
	for _, e := range []*Endpoints{ea, eb, both} {
		until(t, e, "settled", e.Settled)
	}
	if !has(ea, "@10.0.0.1:8000")() || !has(eb, "@10.0.0.2:8000")() || !has(both, "@10.0.0.1:8000 @10.0.0.2:8000")() {
		t.Error("settled without what there is")
	}
	eventually(t, "a watch", func() bool { _, begun, _ := a.counts(); return begun > 0 })

	before, _ := eb.Models()
	a.set("a-1", "a", pod2, true)
	until(t, ea, "the change", has(ea, "@10.0.0.2:8000"))
	until(t, both, "the change", has(both, "@10.0.0.2:8000"))
	if after, _ := eb.Models(); &after[0] != &before[0] {
		t.Error("a source that the change does not touch has new models")
	}

	// One that comes later, as on a reload, has everything before it starts.
	later := c.Service(models, "a", "", Attributes{})
	defer later.Close()
	if !later.Settled() || !has(later, "@10.0.0.2:8000")() {
		t.Error("a later source does not have what is known")
	}
	start(t, later)

	a.set("a-1", "a", "", true)
	until(t, ea, "the end of the slice", has(ea, ""))
	if lists, begun, open := a.counts(); lists != 1 || begun != 1 || open != 1 {
		t.Errorf("%d lists and %d watches, %d of them open; want one of each", lists, begun, open)
	}

	for _, e := range []*Endpoints{ea, eb, both, later} {
		e.Close()
	}
	eventually(t, "the watch's end", func() bool { _, _, open := a.counts(); return open == 0 })
	if !has(eb, "@10.0.0.2:8000")() {
		t.Error("a closed source has lost what it knew")
	}
}

func TestUnchangedStaysTheSame(t *testing.T) {
	a := newAPI(t)
	a.set("a-1", "a", pod1, false)
	c := a.cluster()
	e := start(t, c.Service(models, "a", "", Attributes{}))
	until(t, e, "the slice", has(e, "@10.0.0.1:8000"))
	before, changed := e.Models()
	eventually(t, "a watch", func() bool { _, begun, _ := a.counts(); return begun == 1 })
	a.set("a-1", "a", pod1, true) // another version, the same endpoints
	// A relist that finds the same, after a gap in which something came and went.
	a.set("a-2", "a", pod2, false)
	a.set("a-2", "a", "", false)
	a.cut()
	eventually(t, "a relist", func() bool { lists, begun, _ := a.counts(); return lists == 2 && begun == 2 })
	a.set("b-1", "a", pod2, true)
	<-changed
	after, _ := e.Models()
	if got := said(after[0].Endpoints); got != "@10.0.0.1:8000 @10.0.0.2:8000" {
		t.Errorf("the first change is to %s; the set was not left alone before", got)
	}
	if &after[0] == &before[0] {
		t.Error("changed models are the same slice")
	}
}

func TestRefused(t *testing.T) {
	a := newAPI(t)
	a.set("a-1", "a", pod1, false)
	a.setRefuse(true)
	c := a.cluster()
	e := start(t, c.Service(models, "a", "", Attributes{}))
	other := start(t, c.Service(models, "b", "", Attributes{}))
	until(t, e, "settled", e.Settled)
	until(t, other, "settled", other.Settled)
	const rule = `Role in namespace models: {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"]}`
	refusals := func() (n int) {
		for _, entry := range a.logs.All() {
			if entry.Level == zap.WarnLevel && strings.Contains(entry.Message, rule) {
				n++
			}
		}
		return n
	}
	if refusals() != 1 {
		t.Errorf("the log: %+v; want the rule %s", a.logs.All(), rule)
	}
	a.setRefuse(false) // within the time of a few more attempts
	until(t, e, "the slice", has(e, "@10.0.0.1:8000"))
	if refusals() != 1 {
		t.Errorf("the rule is logged %d times", refusals())
	}
}

func TestServerAway(t *testing.T) {
	a := newAPI(t)
	a.set("a-1", "a", pod1, false)
	c := a.cluster()
	e := start(t, c.Service(models, "a", "", Attributes{}))
	until(t, e, "the slice", has(e, "@10.0.0.1:8000"))
	_, changed := e.Models()
	a.cut()
	a.CloseClientConnections()
	_ = a.Listener.Close()
	eventually(t, "a word on it", func() bool {
		return slices.ContainsFunc(a.logs.All(), func(l observer.LoggedEntry) bool { return strings.Contains(l.Message, "does not answer") })
	})
	select {
	case <-changed:
		t.Error("what is known has changed")
	default:
	}
	if !has(e, "@10.0.0.1:8000")() || !e.Settled() {
		t.Error("what was known is lost")
	}
}

func TestSyncTimeout(t *testing.T) {
	c := New(Config{Kubeconfig: kubeconfigOf(t, "http://127.0.0.1:1"), Logger: zap.NewNop})
	t.Cleanup(c.Close)
	e := c.Service(Where{Namespace: "models", SyncTimeout: 50 * time.Millisecond}, "a", "", Attributes{})
	if e.Settled() {
		t.Fatal("settled before it has started")
	}
	start(t, e)
	until(t, e, "settled", e.Settled)
}

func TestNoKubeconfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"file", Config{Kubeconfig: filepath.Join(t.TempDir(), "none")}, "no such file"},
		{"context", Config{Kubeconfig: kubeconfigOf(t, "http://127.0.0.1:1"), Context: "other"}, `context "other" does not exist`},
		{"pod", Config{}, "kubernetes { kubeconfig <path> }"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			tt.cfg.Logger = zap.NewNop
			c := New(tt.cfg)
			defer c.Close()
			e := c.Service(models, "a", "", Attributes{})
			defer e.Close()
			if err := e.Start(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %q in it", err, tt.want)
			}
		})
	}
}
