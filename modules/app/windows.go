package app

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

// windows holds what is known of the context windows of models whose engines
// are asked for them, by the models' names, so that a reload does not forget.
var windows = caddy.NewUsagePool()

// learnedWindow is a context window in tokens, 0 if it is not known.
type learnedWindow struct{ atomic.Int64 }

// Destruct implements [caddy.Destructor].
func (*learnedWindow) Destruct() error { return nil }

// learn has Start ask the engines of a model for its context window, which p
// then knows.
func (a *App) learn(model string, p *catalog.Policy) error {
	v, _, err := windows.LoadOrNew(model, func() (caddy.Destructor, error) { return new(learnedWindow), nil })
	if err != nil {
		return err
	}
	p.LearnedWindow = &v.(*learnedWindow).Int64
	a.learning = append(a.learning, &windowLearner{
		model: model, window: p.LearnedWindow, ask: sources.List, logger: a.logger,
		table: func() *catalog.Table { return a.catalog.Table() },
	})
	return nil
}

const (
	windowInterval   = time.Minute
	firstWindowRetry = 500 * time.Millisecond
	windowsAsked     = 5 // endpoints, at most, one after another
)

// A windowLearner asks the endpoints of a model for its context window.
type windowLearner struct {
	model  string
	window *atomic.Int64
	table  func() *catalog.Table
	ask    func(context.Context, *routing.Spec) ([]sources.Listed, error)
	logger *zap.Logger

	next    int  // the endpoint to ask first
	failing bool // the last time
}

// run asks at once, then each minute, and more often until there is a first
// answer. What is known stands while nobody answers.
func (l *windowLearner) run(ctx context.Context) {
	for retry := firstWindowRetry; ; retry = min(2*retry, windowInterval) {
		l.round(ctx)
		pause := windowInterval
		if l.window.Load() == 0 {
			pause = retry
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// round asks one endpoint after another until one says, beginning with the one
// that said so last.
func (l *windowLearner) round(ctx context.Context) {
	m := l.table().Model(l.model)
	if m == nil {
		return
	}
	endpoints := m.Snapshot.Len()
	n := endpoints
	if m.Snapshot.HasService() {
		n++
	}
	var lastErr error
	for range min(n, windowsAsked) {
		e := m.Snapshot.Service()
		if i := l.next % n; i < endpoints {
			e = m.Snapshot.At(i)
		}
		listed, err := l.ask(ctx, &e.Spec)
		if ctx.Err() != nil {
			return
		}
		if tokens := windowOf(listed, cmp.Or(e.Model, l.model)); tokens > 0 {
			l.failing = false
			if was := l.window.Swap(int64(tokens)); was != int64(tokens) {
				l.logger.Info("an engine reports the context window", zap.String("model", l.model),
					zap.String("target", e.Target()), zap.Int("tokens", tokens))
			}
			return
		}
		lastErr = err
		l.next = (l.next + 1) % n
	}
	level := zap.DebugLevel
	if !l.failing {
		level = zap.WarnLevel
	}
	l.failing = true
	if c := l.logger.Check(level, "no engine reports the context window; what was known stands"); c != nil {
		c.Write(zap.String("model", l.model), zap.Int64("tokens", l.window.Load()), zap.Error(lastErr))
	}
}

// windowOf returns the context window of the model that an upstream lists under
// a name, or of the only one that it lists.
func windowOf(listed []sources.Listed, name string) int {
	for _, m := range listed {
		if m.Name == name {
			return m.Window
		}
	}
	if len(listed) == 1 {
		return listed[0].Window
	}
	return 0
}
