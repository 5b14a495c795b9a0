package k8sdiscovery

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// While calls are under way their model's time of last use is looked at
	// so often, and written anew if it is that old.
	upkeepInterval = 30 * time.Second
	upkeepAge      = time.Minute

	upkeepWorkers = 2
)

// A use is what is known of a model's calls and of the time of last use that
// its resource has. Calls come and go without a lock.
type use struct {
	calls     atomic.Int64
	used      atomic.Bool  // since that was last looked at
	scheduled atomic.Bool  // somebody is going to look
	urgent    atomic.Bool  // at once
	due       atomic.Int64 // before then no write is needed; Unix time in nanoseconds
}

// written notes that the resource has t for its time of last use.
func (u *use) written(t time.Time) { u.due.Store(t.Add(upkeepAge).UnixNano()) }

func (u *use) isDue() bool { return time.Now().UnixNano() >= u.due.Load() }

// Use implements [routing.Keeper]. Background calls leave no trace.
func (h *Handle) Use(_ string, background bool) (done func()) {
	if background {
		return func() {}
	}
	u := &h.use
	u.calls.Add(1)
	if !u.used.Load() {
		u.used.Store(true)
	}
	if u.scheduled.CompareAndSwap(false, true) || u.isDue() && u.urgent.CompareAndSwap(false, true) {
		if h.w.start() {
			h.w.upkeep.Add(h)
		}
	}
	return h.done
}

// keepUp writes the times of last use of the models that have calls.
func (w *Waker) keepUp() {
	for {
		h, shutdown := w.upkeep.Get()
		if shutdown {
			return
		}
		h.keepUp(w.ctx)
		w.upkeep.Done(h)
	}
}

func (h *Handle) keepUp(ctx context.Context) {
	u := &h.use
	u.urgent.Store(false)
	if !u.used.Swap(false) && u.calls.Load() == 0 {
		u.scheduled.Store(false)
		// A call that came just now may have relied on it.
		if u.used.Load() && u.scheduled.CompareAndSwap(false, true) {
			h.w.upkeep.Add(h)
		}
		return
	}
	if u.isDue() {
		if err := h.refresh(ctx); err != nil && ctx.Err() == nil {
			u.due.Store(time.Now().Add(upkeepInterval).UnixNano())
			if !isRefused(err) && !apierrors.IsNotFound(err) {
				h.w.c.logger().Warn("the time of a model's last use could not be written; the model may fall asleep",
					zap.Stringer("model", h.ref.key()), zap.Error(err))
			}
		}
	}
	h.w.upkeep.AddAfter(h, upkeepInterval)
}

// refresh writes that the model is used now, unless somebody else has a moment
// ago, such as another gateway.
func (h *Handle) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	ref, err := h.find(ctx)
	if err != nil {
		return err
	}
	obj, err := h.w.get(ctx, ref)
	if err != nil {
		return err
	}
	if stored := timeOf(obj.Object, "status", ref.lastUsed()); time.Since(stored) < upkeepAge {
		h.use.written(stored)
		return nil
	}
	return h.touch(ctx, ref)
}
