package app

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
)

// stopping is when the process began to stop, nil while it runs on.
var stopping atomic.Pointer[time.Time]

// watchShutdown has the beginning of a shutdown recorded. Caddy stops the apps
// in no particular order, and http takes all of shutdown_delay and
// grace_period for it: only the event comes before that for certain.
func watchShutdown(ctx caddy.Context) error {
	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("loading the events app: %w", err)
	}
	return events.(*caddyevents.App).On("stopping", shutdownWatcher{})
}

// shutdownWatcher is told that a configuration stops, on a reload too.
type shutdownWatcher struct{}

// Handle implements [caddyevents.Handler].
func (shutdownWatcher) Handle(context.Context, caddy.Event) error {
	now := time.Now()
	if caddy.Exiting() && stopping.CompareAndSwap(nil, &now) {
		metrics.StartShutdown()
	}
	return nil
}

// recordExit has the end of a shutdown recorded: when all servers have
// stopped, and just before the admin API does, whose /metrics is the last to
// tell of it. The log tells it to those who come too late.
var recordExit = sync.OnceFunc(func() {
	caddy.OnExit(func(context.Context) {
		began := stopping.Load()
		if began == nil {
			return
		}
		result, left := metrics.ShutdownCompleted, callsUnderWay()
		if left > 0 {
			result = metrics.ShutdownTimeout
		}
		took := time.Since(*began)
		metrics.EndShutdown(result, took)
		caddy.Log().Named("flexinfer").Info("drained",
			zap.Stringer("result", result), zap.Duration("duration", took), zap.Int("calls_left", left))
	})
})

// callsUnderWay returns how many calls the ledger counts, those of earlier
// configurations as well.
func callsUnderWay() (n int) {
	if s := live.Load(); s != nil {
		s.ledger.Each(func(_, _ string, active, reserved, _ int) { n += active + reserved })
	}
	return n
}

// Interface guard
var _ caddyevents.Handler = shutdownWatcher{}
