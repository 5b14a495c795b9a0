package k8sdiscovery

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Attributes are what all endpoints of a source have in common.
type Attributes struct {
	// Role is prefill, decode or both; "" if it is not known. It becomes the
	// label role.
	Role string

	// Model, Weight, Header and MaxInflight are those of [routing.Spec].
	Model       string
	Weight      int
	Header      http.Header
	MaxInflight int

	// Labels are added to those that the cluster knows: pod, node and zone,
	// and win over them.
	Labels map[string]string
}

// Where says in which namespace a source looks, and for how long it may before
// it counts as settled.
type Where struct {
	Namespace string

	// Wide has the source share the watch of all namespaces.
	Wide bool

	// SyncTimeout is counted from Start.
	SyncTimeout time.Duration
}

// An Endpoints is a source of one model without a name: the endpoints that a
// Service or a selector stands for. It implements [routing.Source],
// [routing.Starter] and [routing.Settler].
type Endpoints struct {
	c     *Cluster
	name  string // for the log
	where Where
	match func(metav1.Object) bool
	build func([]metav1.Object) ([]routing.Spec, []string)
	none  string // what is wrong if there is no object at all; "" if nothing is
	sub   *subscription

	view atomic.Pointer[view] // replaced with mu held

	mu       sync.Mutex
	objects  map[types.NamespacedName]metav1.Object
	closed   bool
	timer    *time.Timer // nil until started
	warnings []string    // that hold now, sorted
}

// Service returns the endpoints of a Service. The port is the name or the number
// that its EndpointSlices have for it; "" is the one named http, or else the
// first.
func (c *Cluster) Service(at Where, name, port string, a Attributes) *Endpoints {
	e := &Endpoints{
		name:  at.Namespace + "/" + name,
		match: func(metav1.Object) bool { return true }, // the index has told them apart
		build: sliceBuilder(port, a),
		none:  "there is no EndpointSlice of this Service; is its name right?",
	}
	return c.endpoints(e, at, endpointSlices, at.Namespace+"/"+name)
}

// Selector returns the endpoints in the EndpointSlices that a label selector
// matches. The port is that of Service.
func (c *Cluster) Selector(at Where, s labels.Selector, port string, a Attributes) *Endpoints {
	e := &Endpoints{
		name:  at.Namespace + " " + s.String(),
		match: matcher(at.Namespace, s),
		build: sliceBuilder(port, a),
		none:  "there is no EndpointSlice with these labels; they are those of a Service",
	}
	return c.endpoints(e, at, endpointSlices, all)
}

// Pods returns the pods that a label selector matches, for those that no Service
// stands for, at a port.
func (c *Cluster) Pods(at Where, s labels.Selector, port int, a Attributes) *Endpoints {
	e := &Endpoints{name: at.Namespace + " " + s.String(), match: matcher(at.Namespace, s), build: podBuilder(port, a)}
	return c.endpoints(e, at, pods, all)
}

func matcher(namespace string, s labels.Selector) func(metav1.Object) bool {
	return func(o metav1.Object) bool {
		return o.GetNamespace() == namespace && s.Matches(labels.Set(o.GetLabels()))
	}
}

// endpoints completes e and has it look at what is known already.
func (c *Cluster) endpoints(e *Endpoints, at Where, r schema.GroupVersionResource, key string) *Endpoints {
	e.c, e.where = c, at
	e.objects = make(map[types.NamespacedName]metav1.Object)
	publish(&e.view, modelOf(nil), false)
	namespace := at.Namespace
	if at.Wide {
		namespace = ""
	}
	e.sub = c.follow(r, namespace, key, e)
	e.sub.join()
	e.flush()
	return e
}

// Start begins to look, unless another source watches the same already. An
// error says that it is not known how to reach the cluster.
func (e *Endpoints) Start() error {
	if err := e.sub.start(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer == nil && !e.closed && !e.Settled() {
		e.timer = time.AfterFunc(e.where.SyncTimeout, e.overdue)
	}
	return nil
}

// Close ends what Start began. What e knows it keeps.
func (e *Endpoints) Close() {
	e.sub.end()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
}

// Models implements [routing.Source].
func (e *Endpoints) Models() ([]routing.Model, <-chan struct{}) {
	v := e.view.Load()
	return v.models, v.changed
}

// Settled implements [routing.Settler].
func (e *Endpoints) Settled() bool { return e.view.Load().settled }

// overdue has e count as settled though the cluster has not shown all.
func (e *Endpoints) overdue() {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.view.Load()
	if v.settled || e.closed {
		return
	}
	e.c.logger().Warn("the cluster has not shown in time what serves a model; it is picked up when it does",
		zap.String("endpoints", e.name), zap.Duration("sync_timeout", e.where.SyncTimeout))
	publish(&e.view, v.models, true)
}

// observe implements watcher.
func (e *Endpoints) observe(old, now metav1.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if old != nil {
		delete(e.objects, nameOf(old))
	}
	if now != nil && e.match(now) {
		e.objects[nameOf(now)] = now
	}
}

// flush implements watcher.
func (e *Endpoints) flush() {
	settled := e.sub.settled()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	specs, warnings := e.build(e.sorted())
	if settled {
		if len(e.objects) == 0 && e.none != "" && e.sub.seen() {
			warnings = append(warnings, e.none)
		}
		e.warn(warnings)
	}
	v := e.view.Load()
	models, settled := v.models, settled || v.settled
	if !slices.EqualFunc(specs, models[0].Endpoints, func(a, b routing.Spec) bool { return a.Equal(&b) }) {
		models = modelOf(specs)
	} else if settled == v.settled {
		return
	}
	publish(&e.view, models, settled)
}

// asleep is what is known of a model that has no endpoint: it may be scaled to
// zero, and calls are to wait.
var asleep = &routing.Traits{State: routing.State{Phase: routing.Asleep}}

func modelOf(specs []routing.Spec) []routing.Model {
	m := routing.Model{Endpoints: specs}
	if len(specs) == 0 {
		m.Traits = asleep
	}
	return []routing.Model{m}
}

// sorted returns the objects in the order of their names.
func (e *Endpoints) sorted() []metav1.Object {
	objects := make([]metav1.Object, 0, len(e.objects))
	for _, o := range e.objects {
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b metav1.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objects
}

// warn logs what is wrong with the objects and was not before.
func (e *Endpoints) warn(warnings []string) {
	slices.Sort(warnings)
	warnings = slices.Compact(warnings)
	for _, w := range warnings {
		if _, known := slices.BinarySearch(e.warnings, w); !known {
			e.c.logger().Warn(w, zap.String("endpoints", e.name))
		}
	}
	e.warnings = warnings
}

// Interface guards
var (
	_ routing.Source  = (*Endpoints)(nil)
	_ routing.Starter = (*Endpoints)(nil)
	_ routing.Settler = (*Endpoints)(nil)
	_ watcher         = (*Endpoints)(nil)
)
