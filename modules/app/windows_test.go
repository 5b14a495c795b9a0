package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
	_ "github.com/flexinfer/caddy-flexinfer/modules/strategies"
)

// listing is a source of endpoints, and what they list when asked.
type listing struct {
	specs []routing.Spec

	mu     sync.Mutex
	answer map[string][]sources.Listed // by address; nil: it does not answer
	asked  []string
}

func (l *listing) Models() ([]routing.Model, <-chan struct{}) {
	return []routing.Model{{Endpoints: l.specs}}, nil
}

func (l *listing) ask(_ context.Context, upstream *routing.Spec) ([]sources.Listed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, upstream.Address)
	if answer := l.answer[upstream.Address]; answer != nil {
		return answer, nil
	}
	return nil, errors.New("connection refused")
}

func (l *listing) set(address string, answer ...sources.Listed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer[address] = answer
}

// took returns who was asked since the last time.
func (l *listing) took() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := l.asked
	l.asked = nil
	return fmt.Sprint(asked)
}

// learner returns a learner of the context window of model m.
func (l *listing) learner(t *testing.T, service *routing.Spec) (*windowLearner, *observer.ObservedLogs) {
	t.Helper()
	l.answer = make(map[string][]sources.Listed)
	c := catalog.New(catalog.Config{
		Ledger: ledger.New(ledger.Config{}),
		Models: []catalog.Declaration{{Name: "m", Sources: []routing.Source{l}, Service: service, Policy: new(catalog.Policy)}},
	})
	t.Cleanup(c.Close)
	core, logs := observer.New(zap.InfoLevel)
	return &windowLearner{model: "m", window: new(atomic.Int64), table: c.Table, ask: l.ask, logger: zap.New(core)}, logs
}

func at(address, model string) routing.Spec {
	return routing.Spec{Scheme: "http", Address: address, Model: model}
}

func listed(name string, window int) sources.Listed {
	return sources.Listed{Name: name, Window: window}
}

func TestWhoIsAskedForTheWindow(t *testing.T) {
	l := &listing{specs: []routing.Spec{at("a:80", ""), at("b:80", "org/m"), at("c:80", "")}}
	w, logs := l.learner(t, new(at("s:80", "")))
	for i, step := range []struct {
		address string
		answer  []sources.Listed
		asked   string
		want    int64
	}{
		{"", nil, "[a:80 b:80 c:80 s:80]", 0},
		{"a:80", []sources.Listed{listed("other", 7), listed("another", 8)}, "[a:80 b:80 c:80 s:80]", 0}, // neither is m
		{"s:80", []sources.Listed{listed("m", 100)}, "[a:80 b:80 c:80 s:80]", 100},
		{"s:80", nil, "[s:80 a:80 b:80 c:80]", 100}, // what was known stands
		{"b:80", []sources.Listed{listed("m", 1), listed("org/m", 200)}, "[s:80 a:80 b:80]", 200},
		{"b:80", []sources.Listed{listed("served-under-another-name", 300)}, "[b:80]", 300},
		{"b:80", []sources.Listed{listed("org/m", 0)}, "[b:80 c:80 s:80 a:80]", 300},
	} {
		l.set(step.address, step.answer...)
		w.round(t.Context())
		if got := l.took(); got != step.asked {
			t.Errorf("step %d: asked %s, want %s", i, got, step.asked)
		}
		if got := w.window.Load(); got != step.want {
			t.Errorf("step %d: the window is %d, want %d", i, got, step.want)
		}
	}
	var told []string
	for _, entry := range logs.All() {
		told = append(told, entry.Level.String())
	}
	if want := []string{"warn", "info", "warn", "info", "info", "warn"}; !slices.Equal(told, want) {
		t.Errorf("logged %v, want %v", told, want)
	}
}

func TestAsksFewAtATime(t *testing.T) {
	l := new(listing)
	for i := range 7 {
		l.specs = append(l.specs, at(fmt.Sprintf("%d:80", i), ""))
	}
	w, _ := l.learner(t, nil)
	for _, want := range []string{"[0:80 1:80 2:80 3:80 4:80]", "[5:80 6:80 0:80 1:80 2:80]"} {
		w.round(t.Context())
		if got := l.took(); got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
	}

	none := new(listing)
	w, _ = none.learner(t, nil)
	w.round(t.Context())
}

func TestWindowIsAskedForEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listing{specs: []routing.Spec{at("a:80", "")}}
		w, _ := l.learner(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.run(ctx) })
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := l.took(); got != "[a:80 a:80 a:80]" { // at 0, 0.5 and 1.5 s
			t.Errorf("in 3 s without an answer: asked %s", got)
		}
		l.set("a:80", listed("m", 4096))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := l.took(); got != "[a:80 a:80]" || w.window.Load() != 4096 { // at 3.5 and 63.5 s
			t.Errorf("in 2 minutes with one: asked %s, the window is %d", got, w.window.Load())
		}
		cancel()
		wg.Wait()
		time.Sleep(time.Hour)
		if got := l.took(); got != "[]" {
			t.Errorf("after the end: asked %s", got)
		}
	})
}

// A reload does not forget the window, also one that fails.
func TestWindowOutlivesReload(t *testing.T) {
	load := func(model string) (*App, error) {
		t.Helper()
		ctx, err := caddy.ProvisionContext(&caddy.Config{})
		if err != nil {
			t.Fatal(err)
		}
		a, err := ctx.LoadModuleByID("flexinfer", json.RawMessage(`{"models": [{"name": "m", "context_window_auto": true, `+model+`}]}`))
		if err != nil {
			return nil, err
		}
		return a.(*App), nil
	}
	window := func(a *App) int {
		t.Helper()
		r, ok := a.Catalog().Table().Resolve("m")
		if !ok {
			t.Fatal("no model m")
		}
		return r.Model.Policy.Window()
	}
	const engine = `"service": "127.0.0.1:1"`
	before, err := load(engine)
	if err != nil {
		t.Fatal(err)
	}
	if got := window(before); got != 0 {
		t.Errorf("before an answer the window is %d", got)
	}
	before.learning[0].window.Store(4096)
	if _, err := load(engine + `, "sources": [{"source": "none"}]`); err == nil {
		t.Error("a configuration that is wrong loads")
	}
	after, err := load(engine)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Cleanup(); err != nil {
		t.Error(err)
	}
	if a, b := window(before), window(after); a != 4096 || b != 4096 {
		t.Errorf("after a reload the windows are %d and %d", a, b)
	}
	if err := after.Cleanup(); err != nil {
		t.Error(err)
	}
	again, err := load(engine)
	if err != nil {
		t.Fatal(err)
	}
	if got := window(again); got != 0 {
		t.Errorf("long after the last the window is %d", got)
	}
	if err := again.Cleanup(); err != nil {
		t.Error(err)
	}
}
