package k8sdiscovery

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// AllNamespaces in a list of namespaces stands for all that there are.
const AllNamespaces = "*"

const defaultStalledLoad = 120 * time.Second

// ResourcesConfig says which of FlexInfer's resources are looked at.
type ResourcesConfig struct {
	// Namespaces are where to look. Of two models with the same name that in
	// the first one has it. [AllNamespaces] is all, in the order of their
	// names.
	Namespaces []string

	// APIGroup is that of the resources. "" is either of FlexInfer's two, or
	// both: ai.flexinfer, whose resources come first, and
	// inference.flexinfer.ai.
	APIGroup string

	// GPUGroups has a ModelDeployment sleep while its GPUGroup has another
	// model active.
	GPUGroups bool

	// StalledLoad is how long a model may load weights without progress
	// before it counts as stalled. Default: 120 s.
	StalledLoad time.Duration

	// ColdStart is how long a model may take to wake whose resource does not
	// say. A swap of a GPUGroup's models may take twice as long.
	ColdStart time.Duration

	// SyncTimeout is how long after Start nothing is said while not all is
	// known.
	SyncTimeout time.Duration

	// Activator returns what wakes a model, always the same for the same one;
	// nil if nothing does.
	Activator func(Ref) routing.Activator

	// OnStalled is called when a model gets stalled; it may be nil.
	OnStalled func(model, substage string)
}

// Resources is a source of the models that FlexInfer's resources declare:
// Models, ModelDeployments, LoRAAdapters and, if asked for, GPUGroups, with the
// Services of the same names and their EndpointSlices. Resources that the
// cluster does not know yet are picked up when it does; those that may not be
// read are left out.
//
// A taint or an annotation of a node makes no difference: whether a pod is to
// get calls its readiness says.
//
// It implements [routing.Source], [routing.Starter] and [routing.Settler].
type Resources struct {
	c       *Cluster
	cfg     ResourcesConfig
	running sync.WaitGroup

	inbox struct {
		sync.Mutex
		events []func() // each to be called with mu held
	}

	mu     sync.Mutex
	set    *resourceSet
	slices map[types.NamespacedName]map[string]metav1.Object // of a Service, by their names
	subs   map[feedKey]*subscription
	asked  bool // the API server said which resources it has
	silent bool // nothing has been said yet

	cancel  context.CancelFunc // nil until started
	closed  bool
	overdue *time.Timer
	due     *time.Timer // a state changes by itself

	view atomic.Pointer[view] // replaced with mu held
}

// A view is what a source says at a time. To read it does not wait for the next.
type view struct {
	models  []routing.Model
	settled bool
	changed chan struct{} // closed when there is another
}

// publish replaces a view and tells those who wait for that.
func publish(at *atomic.Pointer[view], models []routing.Model, settled bool) {
	old := at.Swap(&view{models, settled, make(chan struct{})})
	if old != nil {
		close(old.changed)
	}
}

// Resources returns the models that FlexInfer's resources declare. What the
// cluster knows already they have at once. Close must be called in the end.
func (c *Cluster) Resources(cfg ResourcesConfig) *Resources {
	cfg.StalledLoad = cmp.Or(cfg.StalledLoad, defaultStalledLoad)
	r := &Resources{
		c: c, cfg: cfg, silent: true,
		set:    newResourceSet(),
		slices: make(map[types.NamespacedName]map[string]metav1.Object),
		subs:   make(map[feedKey]*subscription),
	}
	publish(&r.view, nil, false)
	r.set.groups = groupsOf(cfg.APIGroup)
	r.set.stalledLoad, r.set.coldStart = cfg.StalledLoad, cfg.ColdStart
	r.set.activator = cfg.Activator
	r.set.rank = func(namespace string) int { return slices.Index(cfg.Namespaces, namespace) }
	r.set.endpoints = r.endpointsOf
	r.asked = r.followServed()
	r.refresh()
	return r
}

// Start begins to look. An error says that it is not known how to reach the
// cluster.
func (r *Resources) Start() error {
	if err := r.c.Open(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.cancel != nil {
		return nil
	}
	for _, s := range r.subs {
		if err := s.start(); err != nil {
			return err
		}
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(r.c.ctx)
	r.running.Go(func() { r.discover(ctx) })
	if r.silent {
		r.overdue = time.AfterFunc(r.cfg.SyncTimeout, r.speak)
	}
	return nil
}

// Close ends what Start began. What r knows it keeps.
func (r *Resources) Close() {
	r.mu.Lock()
	r.closed = true
	if r.cancel != nil {
		r.cancel()
	}
	for _, t := range []*time.Timer{r.overdue, r.due} {
		if t != nil {
			t.Stop()
		}
	}
	subs := r.subs
	r.mu.Unlock()
	r.running.Wait()
	for _, s := range subs {
		s.end()
	}
}

// Models implements [routing.Source].
func (r *Resources) Models() ([]routing.Model, <-chan struct{}) {
	v := r.view.Load()
	return v.models, v.changed
}

// Settled implements [routing.Settler].
func (r *Resources) Settled() bool { return r.view.Load().settled }

// speak has r say what it knows though that may not be all.
func (r *Resources) speak() {
	r.mu.Lock()
	late := r.silent && !r.closed
	r.silent = false
	r.mu.Unlock()
	if late {
		r.c.logger().Warn("the cluster has not shown all of its models in time; they are picked up when it does",
			zap.Duration("sync_timeout", r.cfg.SyncTimeout))
		r.refresh()
	}
}

// A resourceWatcher passes on what happens to one kind of resource.
type resourceWatcher struct {
	r     *Resources
	apply func(r *Resources, old, now metav1.Object)
}

// observe implements watcher.
func (w *resourceWatcher) observe(old, now metav1.Object) {
	w.r.inbox.Lock()
	defer w.r.inbox.Unlock()
	w.r.inbox.events = append(w.r.inbox.events, func() { w.apply(w.r, old, now) })
}

// flush implements watcher.
func (w *resourceWatcher) flush() { w.r.refresh() }

// refresh takes over what happened and says what has come of it.
func (r *Resources) refresh() {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	heard := r.asked && r.allSettled() // first, so that what came with it is in the inbox
	r.inbox.Lock()
	events := r.inbox.events
	r.inbox.events = nil
	r.inbox.Unlock()
	for _, apply := range events {
		apply()
	}

	now := time.Now()
	sum := r.set.rebuild(now)
	r.wait(sum.due.Sub(now), !sum.due.IsZero())
	first := r.silent
	before := r.view.Load().settled
	settled := before || !r.silent || heard
	if settled {
		r.silent = false
	}
	if settled && (!before || sum.changed || first) {
		publish(&r.view, sum.models, true)
	}
	r.mu.Unlock()

	for _, warning := range sum.warnings {
		r.c.logger().Warn(warning)
	}
	if first {
		return // they were before
	}
	for _, t := range sum.stalled {
		state := t.traits.State
		r.c.logger().Warn("a model gets nowhere with its loading", zap.String("model", t.ref.Name), zap.String("message", state.Message))
		if f := r.cfg.OnStalled; f != nil {
			f(t.ref.Name, state.Substage)
		}
	}
}

// wait has r look again after a while, if that is needed.
func (r *Resources) wait(d time.Duration, needed bool) {
	if r.due != nil {
		r.due.Stop()
		r.due = nil
	}
	if needed {
		r.due = time.AfterFunc(max(d, time.Millisecond), r.refresh)
	}
}

func (r *Resources) allSettled() bool {
	for _, s := range r.subs {
		if !s.settled() {
			return false
		}
	}
	return true
}

// endpointsOf returns the endpoints of a Service, as its slices have them, and
// what is wrong with those.
func (r *Resources) endpointsOf(key types.NamespacedName, port, model string) ([]routing.Spec, []string) {
	list := make([]metav1.Object, 0, len(r.slices[key]))
	for _, s := range r.slices[key] {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b metav1.Object) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return sliceBuilder(port, Attributes{Model: model})(list)
}

func applySlice(r *Resources, old, now metav1.Object) {
	set := func(o, value metav1.Object) {
		service := o.GetLabels()[discoveryv1.LabelServiceName]
		if service == "" {
			return
		}
		key := types.NamespacedName{Namespace: o.GetNamespace(), Name: service}
		switch of := r.slices[key]; {
		case value == nil:
			if delete(of, o.GetName()); len(of) == 0 {
				delete(r.slices, key)
			}
		case of == nil:
			r.slices[key] = map[string]metav1.Object{o.GetName(): value}
		default:
			of[o.GetName()] = value
		}
		r.set.touch(key)
	}
	if old != nil {
		set(old, nil)
	}
	if now != nil {
		set(now, now)
	}
}

// Interface guards
var (
	_ routing.Source  = (*Resources)(nil)
	_ routing.Starter = (*Resources)(nil)
	_ routing.Settler = (*Resources)(nil)
	_ watcher         = (*resourceWatcher)(nil)
)
