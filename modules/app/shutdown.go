package app

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
)

// watchShutdown has a shutdown recorded. Caddy stops the apps in no particular
// order, and http takes all of shutdown_delay and grace_period for it: only
// the event comes before that for certain.
func watchShutdown(ctx caddy.Context) error {
	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("loading the events app: %w", err)
	}
	return events.(*caddyevents.App).On("stopping", shutdownWatcher{ctx})
}

// shutdownWatcher is told when its configuration begins to stop.
type shutdownWatcher struct{ ctx caddy.Context }

// Handle implements [caddyevents.Handler]. On a reload there is nothing to do.
func (s shutdownWatcher) Handle(context.Context, caddy.Event) error {
	if !caddy.Exiting() {
		return nil
	}
	begun := time.Now()
	metrics.StartShutdown()
	v, err := s.ctx.AppIfConfigured("http")
	if err != nil {
		return nil // nor can there be calls
	}
	app := v.(*caddyhttp.App)
	if st := live.Load(); st != nil {
		// Until then all is as it was. After that what waits would hold up
		// the rest, perhaps in vain, and has other gateways to go to.
		time.AfterFunc(time.Duration(app.ShutdownDelay), st.lanes.Close)
	}
	// What is registered runs when all servers have stopped, and before the
	// last metrics are pushed.
	for _, server := range app.Servers {
		server.RegisterOnStop(func(ctx context.Context) error {
			drained(ctx, begun)
			return nil
		})
		break
	}
	return nil
}

// drained records how a shutdown ended, once no call is under way or the grace
// period is over, which ctx tells. Caddy has waited for the servers, but for
// those of an earlier configuration only as long as that one's own grace
// period lasts, which began with the reload.
func drained(ctx context.Context, begun time.Time) {
	const interval = 50 * time.Millisecond
	left, last := callsUnderWay(), 0
	for left+last > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
		// Once more after the last call: the end of its answer is written
		// after the call itself has ended.
		left, last = callsUnderWay(), left
	}
	result := metrics.ShutdownCompleted
	if left > 0 {
		result = metrics.ShutdownTimeout
	}
	took := time.Since(begun)
	metrics.EndShutdown(result, took)
	level := zap.InfoLevel
	if result == metrics.ShutdownTimeout {
		level = zap.WarnLevel
	}
	caddy.Log().Named("flexinfer").Log(level, "drained",
		zap.Stringer("result", result), zap.Duration("duration", took), zap.Int("calls_left", left))
}

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
