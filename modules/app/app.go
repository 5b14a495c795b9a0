// Package app holds the Caddy app `flexinfer`: the configuration that all
// parts of the gateway share, and the state that outlives a reload.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

func init() {
	caddy.RegisterModule(new(App))
}

// instance is the part of an App that the configuration does not set.
type instance struct {
	ctx      caddy.Context
	logger   *zap.Logger
	state    *state
	released bool // state was given up; it is still valid
	settings *call.Settings

	strategy     routing.Strategy
	strategyName string
	naming       sync.Mutex
	named        map[[2]string]namedStrategy // see strategyOf
	catalog      *catalog.Catalog

	cluster         *sources.Cluster // Kubernetes, or its defaults; nil if nobody needs one
	proxiesServices bool

	// What Start starts and Cleanup closes: the app's own catalog and those
	// of handlers with sources of their own.
	catalogs []*catalog.Catalog
	starters []routing.Starter
	learning []*windowLearner
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer",
		New: func() caddy.Module { return new(App) },
	}
}

// Of returns the app of the configuration that ctx belongs to. One that
// configures no such app has it with all its defaults and without models.
func Of(ctx caddy.Context) (*App, error) {
	a, err := ctx.App("flexinfer")
	if err != nil {
		return nil, fmt.Errorf("loading the flexinfer app: %w", err)
	}
	return a.(*App), nil
}

// Provision sets up a.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.logger = ctx, ctx.Logger()
	a.named = make(map[[2]string]namedStrategy)
	if err := a.applyEnvironment(a.logger); err != nil {
		return err
	}
	if err := a.validate(); err != nil {
		return err
	}
	st, _, err := states.LoadOrNew(stateKey, newState)
	if err != nil {
		return fmt.Errorf("setting up shared state: %w", err)
	}
	a.state = st.(*state)
	a.settings = a.callSettings()
	a.settings.Responses = a.state.responses
	a.settings.Lanes = a.state.lanes

	if a.strategy, a.strategyName, err = a.LoadStrategy(ctx, a, "RoutingRaw", a.RoutingRaw); err != nil {
		return err
	}
	if a.strategy == nil {
		if a.strategy, a.strategyName, err = defaultStrategy(ctx); err != nil {
			return err
		}
	}
	listing, err := a.clusterSources(ctx)
	if err != nil {
		return err
	}
	declared := make([]catalog.Declaration, 0, len(a.Models))
	for _, m := range a.Models {
		d, err := a.declare(ctx, m)
		if err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		declared = append(declared, d)
		if reserve := a.settings.PromptReserve; a.settings.Clamp && m.ContextWindow > 0 && m.ContextWindow <= reserve {
			a.logger.Warn("context_window leaves nothing beyond prompt_reserve: limits of tokens are cut to 1",
				zap.String("model", m.Name), zap.Int("context_window", m.ContextWindow), zap.Int("prompt_reserve", reserve))
		}
	}
	a.catalog = a.newCatalog(&catalog.Config{
		Models: declared, Sources: listing, Strategy: a.strategy, StrategyName: a.strategyName, Lanes: a.state.lanes, GroupMode: a.groupMode(),
	})
	if err := watchShutdown(ctx); err != nil {
		return err
	}
	return metrics.Register(ctx.GetMetricsRegistry(), collector)
}

// declare turns a model's configuration into what the catalog takes.
func (a *App) declare(ctx caddy.Context, m *Model) (d catalog.Declaration, err error) {
	d = catalog.Declaration{
		Name: m.Name, Aliases: m.Aliases, Adapters: m.Adapters,
		Groups: m.ServiceLabels, Priority: m.Priority, Policy: a.policyOf(m),
	}
	if d.Strategy, d.StrategyName, err = a.LoadStrategy(ctx, m, "RoutingRaw", m.RoutingRaw); err != nil {
		return d, err
	}
	if d.Strategy == nil {
		d.Strategy, d.StrategyName = a.strategy, a.strategyName
	}
	if d.Sources, err = a.loadSources(ctx, m, "SourcesRaw"); err != nil {
		return d, err
	}
	if d.Activator, err = a.loadActivator(ctx, m); err != nil {
		return d, err
	}
	if _, knows := d.Activator.(routing.Watcher); d.Activator != nil && !knows && len(d.Sources) == 0 {
		return d, errors.New("activate: that a model sleeps shows by its endpoints; write where they are, such as: endpoints models/qwen3-8b")
	}
	if m.Service != "" {
		spec, err := sources.ParseAddress(m.Service)
		if err != nil {
			return d, fmt.Errorf("service: %w", err)
		}
		d.Service = &spec
	}
	if m.ContextWindowAuto {
		if err := a.learn(m.Name, d.Policy); err != nil {
			return d, fmt.Errorf("context_window: %w", err)
		}
	}
	return d, nil
}

// LoadStrategy loads the strategy module in a field of a module's
// configuration and returns it with its name as users type it. An empty field
// gives nil.
func (a *App) LoadStrategy(ctx caddy.Context, module any, field string, raw json.RawMessage) (routing.Strategy, string, error) {
	if raw == nil {
		return nil, "", nil
	}
	v, err := ctx.LoadModule(module, field)
	if err != nil {
		return nil, "", fmt.Errorf("loading strategy: %w", err)
	}
	if a.RoutingOff() {
		return defaultStrategy(ctx)
	}
	s, ok := v.(routing.Strategy)
	if !ok {
		return nil, "", fmt.Errorf("module %T is not a strategy", v)
	}
	name := v.(caddy.Module).CaddyModule().ID.Name()
	return s, strings.ReplaceAll(name, "_", "-"), nil
}

func defaultStrategy(ctx caddy.Context) (routing.Strategy, string, error) {
	v, err := ctx.LoadModuleByID(strategyNamespace+".default", nil)
	if err != nil {
		return nil, "", fmt.Errorf("loading strategy: %w", err)
	}
	return v.(routing.Strategy), "default", nil
}

// loadSources loads the source modules in a field and notes which of them
// Start starts.
func (a *App) loadSources(ctx caddy.Context, module any, field string) ([]routing.Source, error) {
	v, err := ctx.LoadModule(module, field)
	if err != nil {
		return nil, fmt.Errorf("loading sources: %w", err)
	}
	list, _ := v.([]any)
	found := make([]routing.Source, 0, len(list))
	for _, v := range list {
		s, ok := v.(routing.Source)
		if !ok {
			return nil, fmt.Errorf("module %T is not a source of endpoints", v)
		}
		if err := a.adopt(ctx, s); err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	return found, nil
}

// CatalogOf returns a catalog of the models that the sources in a field of a
// module list, routed by s, or as the app says if s is nil. The app keeps it up
// to date and closes it.
func (a *App) CatalogOf(ctx caddy.Context, module any, field string, s routing.Strategy, name string) (*catalog.Catalog, error) {
	found, err := a.loadSources(ctx, module, field)
	if err != nil {
		return nil, err
	}
	if s == nil {
		s, name = a.strategy, a.strategyName
	}
	return a.newCatalog(&catalog.Config{Sources: found, Strategy: s, StrategyName: name}), nil
}

// newCatalog returns a catalog with what all catalogs of the configuration have
// in common.
func (a *App) newCatalog(cfg *catalog.Config) *catalog.Catalog {
	cfg.Ledger, cfg.Budgets, cfg.Health = a.state.ledger, a.state.budgets, a.state.health
	cfg.Policy, cfg.StrategyOf = a.policyOf(nil), a.strategyOf
	cfg.Warn = func(model, problem string) {
		a.logger.Warn("a model is not served as it asks for", zap.String("model", model), zap.String("problem", problem))
	}
	cfg.Woke = func(model string, took time.Duration, problem string) {
		if problem == "" {
			a.logger.Info("model is awake", zap.String("model", model), zap.Duration("duration", took))
			return
		}
		a.logger.Warn("model did not wake", zap.String("model", model), zap.Duration("duration", took), zap.String("problem", problem))
	}
	c := catalog.New(*cfg)
	a.catalogs = append(a.catalogs, c)
	return c
}

// Catalog returns the catalog of the declared models.
func (a *App) Catalog() *catalog.Catalog { return a.catalog }

// Catalogs returns all catalogs of this configuration.
func (a *App) Catalogs() []*catalog.Catalog { return a.catalogs }

// Settings returns what the configuration says about all calls.
func (a *App) Settings() *call.Settings { return a.settings }

// Start begins to follow the sources and to probe the endpoints.
func (a *App) Start() error {
	warnOfNoDrain(a.ctx, a.logger)
	a.state.begin(a)
	a.state.lanes.Serve(a.catalog) // http may take requests already
	for _, s := range a.starters {
		if err := s.Start(); err != nil {
			return fmt.Errorf("starting a source: %w", err)
		}
	}
	for _, c := range a.catalogs {
		c.Refresh()
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	for _, c := range a.catalogs {
		a.running.Go(func() { c.Follow(ctx) })
	}
	if a.probes() {
		a.running.Go(func() { a.probe(ctx) })
	}
	for _, l := range a.learning {
		a.running.Go(func() { l.run(ctx) })
	}
	return nil
}

// Stop stops both, unless the process exits: requests that drain still want to
// know which endpoints are there.
func (a *App) Stop() error {
	if a.cancel != nil && !caddy.Exiting() {
		a.cancel()
		a.running.Wait()
	}
	return nil
}

// Cleanup gives up what a holds. Requests of this configuration may still be
// under way: what they use stays valid.
func (a *App) Cleanup() error {
	if a.state == nil || a.released {
		return nil
	}
	a.released = true
	if a.cancel != nil {
		a.cancel()
		a.running.Wait()
	}
	a.state.end(a)
	for _, c := range a.catalogs {
		c.Close()
	}
	for _, n := range a.named {
		n.unload()
	}
	var errs []error
	for _, l := range a.learning {
		_, err := windows.Delete(l.model)
		errs = append(errs, err)
	}
	errs = append(errs, a.cluster.Cleanup())
	_, err := states.Delete(stateKey)
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("giving up shared state: %w", err)
	}
	return nil
}

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
