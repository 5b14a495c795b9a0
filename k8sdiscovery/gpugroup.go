package k8sdiscovery

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Annotations of a GPUGroup: how many calls wait for a model, and since when.
const (
	annotationQueue      = "flexinfer.ai/queue."
	annotationQueueSince = "flexinfer.ai/queue-since."
)

const (
	signalGap     = 250 * time.Millisecond // at least, between two signals for a model
	signalRetry   = 2 * time.Second
	signalNobody  = 30 * time.Second // until a group is looked for again that was not there
	clearDeadline = 5 * time.Second  // for all signals, when the waker is closed
)

// A line is the calls that wait for a model, and what its GPUGroup was told of
// them.
type line struct {
	mu      sync.Mutex
	model   string // as the gateway calls it
	calls   int
	arrived int       // since last counted
	since   time.Time // when the first of those that wait came

	// What the group was told, for the one goroutine that tells it.
	told      int
	toldSince time.Time
	toldAt    time.Time // or tried to
	lookAt    time.Time // for a group, none having been there
	group     Ref       // which was told
	failing   bool
}

// Waiting implements [routing.Herald].
func (h *Handle) Waiting(model string, calls int) {
	if !h.w.cfg.GPUGroups || h.ref.Kind == KindModel {
		return
	}
	l := &h.line
	l.mu.Lock()
	if calls > 0 && l.calls == 0 {
		l.since = time.Now()
	}
	l.arrived += max(0, calls-l.calls)
	l.calls, l.model = calls, model
	l.mu.Unlock()
	if h.w.start() {
		h.w.signals.Add(h)
	}
}

// signal tells GPUGroups how many calls wait for their models, each on its own:
// one that takes its time holds up no other.
func (w *Waker) signal() {
	for {
		h, shutdown := w.signals.Get()
		if shutdown {
			return
		}
		w.running.Go(func() {
			defer w.signals.Done(h) // not before may another take it up
			if again := h.signal(w.ctx); again > 0 {
				w.signals.AddAfter(h, again)
			}
		})
	}
}

// signal brings the group's annotations in line with the calls that wait. It
// returns when to try again, 0 if that is not needed.
func (h *Handle) signal(ctx context.Context) (again time.Duration) {
	l := &h.line
	l.mu.Lock()
	calls, since := l.calls, l.since
	l.mu.Unlock()
	if calls == l.told && (calls == 0 || since.Equal(l.toldSince)) {
		return 0
	}
	if gap := max(signalGap-time.Since(l.toldAt), time.Until(l.lookAt)); gap > 0 {
		return gap
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := h.tell(ctx, calls, since)
	switch {
	case err == nil:
		l.failing = false
		return max(0, time.Until(l.lookAt))
	case !l.failing && ctx.Err() == nil && !isRefused(err):
		h.w.c.logger().Warn("a GPUGroup could not be told how many calls wait",
			zap.Stringer("model", h.ref.key()), zap.Error(err))
	}
	l.failing = true
	return signalRetry
}

// tell writes to the group that so many calls wait.
func (h *Handle) tell(ctx context.Context, calls int, since time.Time) error {
	l := &h.line
	l.toldAt = time.Now()
	if calls == 0 {
		return h.untell(ctx)
	}
	if l.told == 0 {
		group, err := h.findGroup(ctx)
		if err != nil {
			return err
		}
		if group.Name == "" {
			l.lookAt = time.Now().Add(signalNobody)
			return nil
		}
		l.group = group
	}
	// Even if the answer is lost there is something to clear.
	l.told, l.toldSince = calls, since
	h.w.mu.Lock()
	h.w.told[h] = struct{}{}
	h.w.mu.Unlock()
	err := h.annotate(ctx, strconv.Itoa(calls), since.UTC().Format(time.RFC3339))
	if err != nil {
		l.toldSince = time.Time{} // to be told again
		return err
	}
	l.mu.Lock()
	model, arrived := l.model, l.arrived
	l.arrived = 0
	l.mu.Unlock()
	if f := h.w.cfg.OnSwapSignal; f != nil {
		f(l.group.Name, model)
	}
	if f := h.w.cfg.OnQueued; f != nil {
		f(l.group.Name, model, arrived)
	}
	return nil
}

// findGroup returns the model's GPUGroup, without a name if it has none.
func (h *Handle) findGroup(ctx context.Context) (Ref, error) {
	ref, err := h.find(ctx)
	if err != nil || ref.Kind == KindModel {
		return Ref{}, err
	}
	obj, err := h.w.get(ctx, ref)
	if err != nil {
		return Ref{}, err
	}
	name, err := h.w.gpuGroupOf(ctx, ref, obj.Object)
	return Ref{Group: ref.Group, Namespace: ref.Namespace, Name: name}, err
}

// untell writes to the group that nobody waits.
func (h *Handle) untell(ctx context.Context) error {
	l := &h.line
	if l.told == 0 {
		return nil
	}
	if err := h.annotate(ctx, nil, nil); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	l.told = 0
	h.w.mu.Lock()
	delete(h.w.told, h)
	h.w.mu.Unlock()
	return nil
}

func (h *Handle) annotate(ctx context.Context, depth, since any) error {
	return h.w.patch(ctx, gpuGroupsOf(h.line.group.Group), h.line.group.key(), map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{
			annotationQueue + h.ref.Name:      depth,
			annotationQueueSince + h.ref.Name: since,
		}},
	})
}

// clearSignals tells every group that was told otherwise that nobody waits. The
// goroutines that tell them have ended.
func (w *Waker) clearSignals() {
	ctx, cancel := context.WithTimeout(w.c.ctx, clearDeadline)
	defer cancel()
	w.mu.Lock()
	told := maps.Clone(w.told)
	w.mu.Unlock()
	for h := range told {
		if err := h.untell(ctx); err != nil {
			w.c.logger().Warn("a GPUGroup could not be told that no calls wait any more",
				zap.Stringer("gpu_group", h.line.group.key()), zap.Stringer("model", h.ref.key()), zap.Error(err))
		}
	}
}

// gpuGroupOf returns the name of the GPUGroup that has a say about a
// ModelDeployment, "" if there is none.
func (w *Waker) gpuGroupOf(ctx context.Context, ref Ref, obj map[string]any) (string, error) {
	name := stringOf(obj, "spec", "gpuGroupRef")
	if !w.cfg.GPUGroups || name == "" {
		return "", nil
	}
	l, err := w.c.open()
	if err != nil {
		return "", unreachable(err)
	}
	r := gpuGroupsOf(ref.Group)
	_, err = l.dynamic.Resource(r).Namespace(ref.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	return name, w.explain(err, r, ref.Namespace, "get")
}

// gpuGroupsOf is where the API server has the GPUGroups of an API group.
func gpuGroupsOf(group string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "gpugroups"}
}
