package k8sdiscovery

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// How long a burst of events is gathered before those who watch look at what
// has come of it: four times as long as the last look took, within bounds. What
// is made of it elsewhere takes some milliseconds, so that the lower bound is a
// higher one in endless churn: after many looks without a quiet time.
const (
	coalesceMin   = 5 * time.Millisecond
	coalesceChurn = 20 * time.Millisecond
	coalesceMax   = 40 * time.Millisecond

	churnLooks = 20
	quiet      = 100 * time.Millisecond
)

// all is the key under which a watcher is told of every object of a feed.
const all = ""

// A watcher is told of the objects of a feed.
type watcher interface {
	// observe notes that an object came (old is nil), changed or went (now is
	// nil). It is called in the order of the events and must return at once.
	// The objects are not modified by anybody.
	observe(old, now metav1.Object)

	// flush is called after a burst of events, and when the feed has settled.
	// It may take a while.
	flush()
}

type feedKey struct {
	resource  schema.GroupVersionResource
	namespace string // "" for all
}

func (k feedKey) String() string {
	if k.namespace == "" {
		return k.resource.GroupResource().String() + " of all namespaces"
	}
	return k.resource.GroupResource().String() + " of namespace " + k.namespace
}

// A feed holds the objects of one resource in one namespace, or in all of them,
// and keeps them up to date once started. What it held last stands while the
// API server is away.
type feed struct {
	c    *Cluster
	key  feedKey
	kind kind
	wake chan struct{}

	// Guarded by the cluster's mutex.
	users int

	mu       sync.Mutex
	stop     context.CancelFunc // nil until started
	objects  map[types.NamespacedName]metav1.Object
	watchers map[string]map[watcher]struct{}
	dirty    map[watcher]struct{}
	synced   bool
	troubles troubles
	pace     pace
}

// A subscription is a watcher's hold on a feed.
type subscription struct {
	f    *feed
	key  string
	w    watcher
	once sync.Once
}

// follow returns a hold on the objects of a resource in a namespace, "" for all,
// whose index is key; with the key all on every one. w is told of nothing
// before join, and watching begins with start. Both may come in either order.
func (c *Cluster) follow(r schema.GroupVersionResource, namespace, key string, w watcher) *subscription {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := feedKey{r, namespace}
	f := c.feeds[k]
	if f == nil {
		f = &feed{
			c: c, key: k, kind: kinds[r], wake: make(chan struct{}, 1),
			objects:  make(map[types.NamespacedName]metav1.Object),
			watchers: make(map[string]map[watcher]struct{}),
			dirty:    make(map[watcher]struct{}),
			pace:     pace{backoff: backoff},
		}
		c.feeds[k] = f
	}
	f.users++
	return &subscription{f: f, key: key, w: w}
}

// join has the watcher told from now on. The objects that are known already it
// has observed when join returns, without a flush.
func (s *subscription) join() {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers[s.key] == nil {
		f.watchers[s.key] = make(map[watcher]struct{})
	}
	f.watchers[s.key][s.w] = struct{}{}
	for _, o := range f.objects {
		if s.key == all || s.key == f.kind.indexOf(o) {
			s.w.observe(nil, o)
		}
	}
}

// start begins to watch, unless somebody has.
func (s *subscription) start() error {
	l, err := s.f.c.open()
	if err != nil {
		return err
	}
	return s.f.start(l)
}

// settled reports whether the feed has all there is, or there is no hope for it
// as things are: what it is about may not be read, or does not exist.
func (s *subscription) settled() bool {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return s.f.synced || s.f.troubles.hopeless()
}

// seen reports whether all that there is has been seen, ever.
func (s *subscription) seen() bool {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return s.f.synced
}

// end ends the watcher's hold. When the last one goes, so does the watch.
func (s *subscription) end() { s.once.Do(s.leave) }

func (s *subscription) leave() {
	f := s.f
	f.c.mu.Lock()
	f.users--
	last := f.users == 0
	if last {
		delete(f.c.feeds, f.key)
	}
	f.c.mu.Unlock()

	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.dirty, s.w)
	if delete(f.watchers[s.key], s.w); len(f.watchers[s.key]) == 0 {
		delete(f.watchers, s.key)
	}
	if last && f.stop != nil {
		f.stop()
	}
}

func (f *feed) start(l *link) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stop != nil {
		return nil
	}
	lw, example, err := l.listWatch(f.key.resource, f.key.namespace)
	if err != nil {
		return fmt.Errorf("watching %s: %w", f.key, err)
	}
	silent := logr.Discard() // what there is to say the feed says itself
	r := cache.NewReflectorWithOptions(observed{lw, f}, example, f, cache.ReflectorOptions{
		Logger: &silent, Name: f.key.String(), Backoff: &knocking,
	})
	ctx, stop := context.WithCancel(klog.NewContext(f.c.ctx, silent))
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if ctx.Err() != nil {
		stop()
		return errClosed
	}
	f.stop = stop
	f.c.running.Go(func() { f.run(ctx, r) })
	f.c.running.Go(func() { f.deliver(ctx) })
	return nil
}

// run lists and watches until ctx is done.
func (f *feed) run(ctx context.Context, r *cache.Reflector) {
	for {
		f.mu.Lock()
		f.pace.begin()
		f.mu.Unlock()
		_ = r.ListAndWatchWithContext(ctx) // what went wrong has been noted
		f.mu.Lock()
		pause := f.pace.pause()
		f.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// deliver has the watchers look at what came, until ctx is done.
func (f *feed) deliver(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	looks, last := 0, time.Now()
	for pause := coalesceMin; ; {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return
		}
		if time.Since(last) > quiet {
			looks, pause = 0, coalesceMin
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		f.mu.Lock()
		dirty := f.dirty
		f.dirty = make(map[watcher]struct{})
		f.mu.Unlock()
		began := time.Now()
		for w := range dirty {
			w.flush()
		}
		last = time.Now()
		least := coalesceMin
		if looks++; looks >= churnLooks {
			least = coalesceChurn
		}
		pause = min(max(4*last.Sub(began), least), coalesceMax)
	}
}

// set takes over an object, nil if it is gone. Called with f.mu held.
func (f *feed) set(name types.NamespacedName, now metav1.Object) {
	old := f.objects[name]
	if now == nil {
		if old == nil {
			return
		}
		delete(f.objects, name)
	} else {
		f.objects[name] = now
	}
	f.tell(all, old, now)
	was, is := f.kind.indexOf(old), f.kind.indexOf(now)
	if was == is {
		if is != all {
			f.tell(is, old, now)
		}
		return
	}
	if was != all {
		f.tell(was, old, nil)
	}
	if is != all {
		f.tell(is, nil, now)
	}
}

// tell has the watchers of a key observe a change.
func (f *feed) tell(key string, old, now metav1.Object) {
	for w := range f.watchers[key] {
		w.observe(old, now)
		f.dirty[w] = struct{}{}
	}
}

// touchAll has every watcher look again. Called with f.mu held.
func (f *feed) touchAll() {
	for _, ws := range f.watchers {
		for w := range ws {
			f.dirty[w] = struct{}{}
		}
	}
	f.rouse()
}

func (f *feed) rouse() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Add implements [cache.ReflectorStore].
func (f *feed) Add(obj any) error { return f.Update(obj) }

// Update implements [cache.ReflectorStore].
func (f *feed) Update(obj any) error {
	o, name, err := named(obj)
	if err != nil {
		return err
	}
	o = f.kind.trimmed(o)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(name, o)
	f.rouse()
	return nil
}

// Delete implements [cache.ReflectorStore].
func (f *feed) Delete(obj any) error {
	_, name, err := named(obj)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(name, nil)
	f.rouse()
	return nil
}

// Replace implements [cache.ReflectorStore]. It is one step, so that nothing is
// missing in between, and what has not changed is left alone.
func (f *feed) Replace(list []any, _ string) error {
	objects := make(map[types.NamespacedName]metav1.Object, len(list))
	for _, obj := range list {
		o, name, err := named(obj)
		if err != nil {
			return err
		}
		objects[name] = f.kind.trimmed(o)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.objects {
		if objects[name] == nil {
			f.set(name, nil)
		}
	}
	for name, o := range objects {
		if old := f.objects[name]; old == nil || old.GetUID() != o.GetUID() || old.GetResourceVersion() != o.GetResourceVersion() {
			f.set(name, o)
		}
	}
	if !f.synced {
		f.synced = true
		f.touchAll()
	}
	f.rouse()
	return nil
}

// Resync implements [cache.ReflectorStore].
func (f *feed) Resync() error { return nil }

func named(obj any) (metav1.Object, types.NamespacedName, error) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil, types.NamespacedName{}, fmt.Errorf("the API server sent a %T, which is no object", obj)
	}
	return o, nameOf(o), nil
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Interface guards
var _ cache.ReflectorStore = (*feed)(nil)
