package k8sdiscovery

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// writeTimeout bounds a request that wakes a model or keeps it awake.
const writeTimeout = 10 * time.Second

// WakerConfig says how models are woken.
type WakerConfig struct {
	// APIGroup is the group of the resources, "" for either of FlexInfer's
	// two.
	APIGroup string

	// GPUGroups has the models of a GPUGroup ask for their turn instead of
	// being scaled up.
	GPUGroups bool

	// OnScaleUp is called when a ModelDeployment was given its replica,
	// OnSwapSignal when a GPUGroup was told that calls wait, and OnQueued for
	// calls that began to wait for a model of a GPUGroup. Each may be nil.
	OnScaleUp    func(model string)
	OnSwapSignal func(gpuGroup, model string)
	OnQueued     func(gpuGroup, model string, calls int)
}

// A Waker wakes models by what it writes to their resources, and keeps them
// awake while they are used. Its work in the background ends with Close.
type Waker struct {
	c       *Cluster
	cfg     WakerConfig
	timeout time.Duration // of an attempt to wake

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	// Who has something to write. Nil until started, and not read before.
	upkeep, signals workqueue.TypedDelayingInterface[*Handle]

	mu      sync.Mutex
	handles map[Ref]weak.Pointer[Handle] // of the models that anybody knows
	told    map[*Handle]struct{}         // whose GPUGroup believes that calls wait
	refused map[string]struct{}          // rules that have been asked for
	failing map[string]struct{}          // reasons that have been logged since all was well
}

// Waker returns a waker of the cluster's models. It does no I/O and has no
// goroutine until one of its handles is used. Close must be called in the end,
// before that of the cluster.
func (c *Cluster) Waker(cfg WakerConfig) *Waker {
	w := &Waker{
		c: c, cfg: cfg, timeout: writeTimeout,
		handles: make(map[Ref]weak.Pointer[Handle]),
		told:    make(map[*Handle]struct{}),
		refused: make(map[string]struct{}),
		failing: make(map[string]struct{}),
	}
	w.ctx, w.cancel = context.WithCancel(c.ctx)
	return w
}

// Handle returns the handle of a model, the same for the same one as long as
// anybody has it.
func (w *Waker) Handle(ref Ref) *Handle {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.handles[ref].Value(); h != nil {
		return h
	}
	h := &Handle{w: w, ref: ref}
	h.done = func() { h.use.calls.Add(-1) }
	w.handles[ref] = weak.Make(h)
	runtime.AddCleanup(h, w.forget, ref)
	return h
}

// forget is called when nobody has a handle of the model any more, or had one:
// there may be another by now.
func (w *Waker) forget(ref Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.handles[ref].Value() == nil {
		delete(w.handles, ref)
	}
}

// start has the goroutines run, and reports whether they do: not any more after
// Close.
func (w *Waker) start() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return false
	}
	if w.upkeep == nil {
		w.upkeep = workqueue.NewTypedDelayingQueue[*Handle]()
		w.signals = workqueue.NewTypedDelayingQueue[*Handle]()
		for range upkeepWorkers {
			w.running.Go(w.keepUp)
		}
		w.running.Go(w.signal)
	}
	return true
}

// Close ends the work in the background. GPUGroups are told that nobody waits
// any more.
func (w *Waker) Close() {
	w.mu.Lock()
	w.cancel()
	started := w.upkeep != nil
	w.mu.Unlock()
	if !started {
		return
	}
	w.upkeep.ShutDown()
	w.signals.ShutDown()
	w.running.Wait()
	w.clearSignals()
}

// A Handle wakes one model. It is its [routing.Activator], [routing.Keeper] and
// [routing.Herald].
type Handle struct {
	w   *Waker
	ref Ref

	use  use
	done func() // of each call
	line line

	woken atomic.Pointer[time.Time] // when what wakes the model was last written, nil if never
}

// wokenFor is how long what was written to wake a model is not written again,
// however many calls come and leave.
const wokenFor = 5 * time.Second

// isWoken reports whether the model was woken a moment ago.
func (h *Handle) isWoken() bool {
	at := h.woken.Load()
	return at != nil && time.Since(*at) < wokenFor
}

// Activate implements [routing.Activator]. A Model is woken by the time of its
// last use, which FlexInfer's controller looks at; a ModelDeployment by its
// number of replicas; one of a GPUGroup, if those are followed, by how many
// calls wait, which is for the group's controller.
//
// Nothing is written within 5 s of the last time. While the API server gives no
// final answer it is asked again, until ctx is done. The error is for clients,
// too, and says nothing of where the API server is; the log does.
func (h *Handle) Activate(ctx context.Context, model string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.w.ctx, cancel)()
	again := backoff
	for !h.isWoken() {
		err := h.attempt(ctx, model)
		if err == nil {
			h.w.answered()
			break
		}
		why := reasonFor(err)
		if ctx.Err() == nil {
			h.w.complain(model, why)
		}
		if !why.final && pauseFor(ctx, again.Step()) {
			continue
		}
		return fmt.Errorf("waking model %s: %w", model, why)
	}
	return nil
}

// pauseFor waits for a while, and reports whether ctx lasted.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt asks the API server once.
func (h *Handle) attempt(ctx context.Context, model string) error {
	ctx, cancel := context.WithTimeout(ctx, h.w.timeout)
	defer cancel()
	return h.wake(ctx, model)
}

func (h *Handle) wake(ctx context.Context, model string) error {
	ref, err := h.find(ctx)
	if err != nil {
		return err
	}
	if ref.Kind == KindModel {
		return h.touch(ctx, ref)
	}
	return h.scaleUp(ctx, ref, model)
}

// resource is where the API server has the resources of a kind.
func (r Ref) resource() schema.GroupVersionResource {
	if r.Kind == KindModel {
		return schema.GroupVersionResource{Group: r.Group, Version: "v1alpha2", Resource: "models"}
	}
	return schema.GroupVersionResource{Group: r.Group, Version: "v1alpha1", Resource: "modeldeployments"}
}

// find returns which resource it is that the handle stands for.
func (h *Handle) find(ctx context.Context) (Ref, error) {
	groups, kinds := []string{h.ref.Group}, []string{h.ref.Kind}
	if h.ref.Group == "" {
		groups = groupsOf(h.w.cfg.APIGroup)
	}
	if h.ref.Kind == "" {
		kinds = []string{KindModel, KindModelDeployment}
	}
	if len(groups) == 1 && len(kinds) == 1 {
		return Ref{Group: groups[0], Kind: kinds[0], Namespace: h.ref.Namespace, Name: h.ref.Name}, nil
	}
	for _, kind := range kinds {
		for _, group := range groups {
			ref := Ref{Group: group, Kind: kind, Namespace: h.ref.Namespace, Name: h.ref.Name}
			_, err := h.w.get(ctx, ref)
			if apierrors.IsNotFound(err) {
				continue
			}
			return ref, err
		}
	}
	return Ref{}, &reason{text: fmt.Sprintf("there is neither a Model nor a ModelDeployment %s", h.ref.key()), final: true}
}

// touch writes that the model is used now.
func (h *Handle) touch(ctx context.Context, ref Ref) error {
	now := time.Now()
	patch := map[string]any{"status": map[string]any{ref.lastUsed(): now.UTC().Format(time.RFC3339)}}
	if err := h.w.patch(ctx, ref.resource(), ref.key(), patch, "status"); err != nil {
		return err
	}
	h.use.written(now)
	if ref.Kind == KindModel {
		h.woken.Store(&now)
	}
	return nil
}

// lastUsed is the field of the status that has the time of the last use.
func (r Ref) lastUsed() string {
	if r.Kind == KindModel {
		return "lastActiveTime"
	}
	return "lastAccessTime"
}

// scaleUpTries is how often a ModelDeployment is read again that others write
// to at the same time.
const scaleUpTries = 3

// scaleUp gives a ModelDeployment its replica, unless it has one or its
// GPUGroup decides.
func (h *Handle) scaleUp(ctx context.Context, ref Ref, model string) error {
	obj, err := h.w.get(ctx, ref)
	if err != nil {
		return err
	}
	if group, err := h.w.gpuGroupOf(ctx, ref, obj.Object); err != nil || group != "" {
		return err
	}
	if replicasOf(obj.Object) > 0 {
		return nil
	}
	// Without it the controller might take the replica away at once.
	if err := h.touch(ctx, ref); err != nil {
		h.w.c.logger().Warn("the time of a model's last use could not be written",
			zap.Stringer("resource", ref), zap.Error(err))
	}
	for try := 1; ; try++ {
		if obj, err = h.w.get(ctx, ref); err != nil || replicasOf(obj.Object) > 0 {
			return err
		}
		err := h.w.patch(ctx, ref.resource(), ref.key(), map[string]any{
			"metadata": map[string]any{"resourceVersion": obj.GetResourceVersion()}, // or a greater number might be undone
			"spec":     map[string]any{"replicas": 1},
		})
		if err == nil {
			h.woken.Store(new(time.Now()))
			if f := h.w.cfg.OnScaleUp; f != nil {
				f(model)
			}
			return nil
		}
		if !apierrors.IsConflict(err) || try == scaleUpTries {
			return err
		}
	}
}

// Interface guards
var (
	_ routing.Activator = (*Handle)(nil)
	_ routing.Keeper    = (*Handle)(nil)
	_ routing.Herald    = (*Handle)(nil)
)
