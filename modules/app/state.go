package app

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/budget"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/responses"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// states holds the state that outlives a reload, while any configuration uses
// it.
var states = caddy.NewUsagePool()

const stateKey = "flexinfer"

// state is what all configurations of the process share.
type state struct {
	ledger    *ledger.Ledger
	health    *health.Registry
	responses *responses.Store
	budgets   *budget.Budgets
	lanes     *catalog.Lanes
	cancel    context.CancelFunc
	sweeps    chan time.Duration
	settled   atomic.Bool // all models of a configuration have been known

	mu   sync.Mutex
	apps []*App // those that have started, the last one last
}

func newState() (caddy.Destructor, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &state{cancel: cancel, sweeps: make(chan time.Duration, 1)}
	s.ledger = ledger.New(ledgerDefaults())
	s.responses = responses.NewStore()
	s.budgets = new(budget.Budgets)
	s.lanes = catalog.NewLanes()
	s.health = health.NewRegistry(health.Settings{OnChange: logHealth})
	go s.sweep(ctx)
	live.Store(s)
	return s, nil
}

// Destruct stops the sweeping. Ledger and health stay valid: requests of the
// last configuration may still be under way.
func (s *state) Destruct() error {
	s.cancel()
	s.lanes.Close() // nobody says any more how things stand
	return nil
}

// inflight returns how many calls for a model are under way or about to be.
func (s *state) inflight(model string) (n int) {
	s.ledger.Each(func(of, _ string, active, reserved, _ int) {
		if of == model {
			n += active + reserved
		}
	})
	return n
}

// begin makes a's bounds those of the ledger.
func (s *state) begin(a *App) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.apps) == 0 {
		countChanges(nil, tablesOf(a))
	}
	s.apps = append(s.apps, a)
	s.configure(a)
}

// end forgets a. If it was the last to begin, because its configuration
// failed to start, the bounds of the one before hold again. Else what came
// after it has taken its place.
func (s *state) end(a *App) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.apps, a)
	if i < 0 {
		return
	}
	s.apps = slices.Delete(s.apps, i, i+1)
	switch {
	case len(s.apps) == 0:
	case i == len(s.apps):
		s.configure(s.apps[i-1])
		s.lanes.Serve(s.apps[i-1].catalog)
	default:
		countChanges(tablesOf(a), tablesOf(s.apps[i]))
	}
}

// countChanges records which endpoints one configuration has and another had.
func countChanges(before, after []*catalog.Table) {
	had, has := endpointsOf(before), endpointsOf(after)
	for m, ids := range has {
		m.Endpoints(missing(ids, had[m]), missing(had[m], ids))
	}
}

// endpointsOf returns the IDs of the endpoints of each model.
func endpointsOf(tables []*catalog.Table) map[*metrics.Model]map[string]bool {
	of := make(map[*metrics.Model]map[string]bool)
	for _, t := range tables {
		for _, m := range t.Models() {
			if of[m.Metrics] == nil {
				of[m.Metrics] = make(map[string]bool)
			}
			for i := range m.Snapshot.Len() {
				of[m.Metrics][m.Snapshot.At(i).ID] = true
			}
		}
	}
	return of
}

// missing returns how many of ids are not among others.
func missing(ids, others map[string]bool) (n int) {
	for id := range ids {
		if !others[id] {
			n++
		}
	}
	return n
}

func (s *state) configure(a *App) {
	s.ledger.Configure(a.ledgerConfig())
	select {
	case <-s.sweeps: // one that was not taken yet
	default:
	}
	s.sweeps <- s.ledger.Interval()
}

// sweep drops what is past its time.
func (s *state) sweep(ctx context.Context) {
	ticker := time.NewTicker(s.ledger.Interval())
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case every := <-s.sweeps:
			ticker.Reset(every)
		case <-ticker.C:
			s.ledger.Sweep()
			s.health.Sweep()
			s.lanes.Poke() // reservations may have expired
		}
	}
}

// tables returns what the running configurations know. The caller holds mu.
func (s *state) tables() (tables []*catalog.Table) {
	for _, a := range s.apps {
		tables = append(tables, tablesOf(a)...)
	}
	return tables
}

func tablesOf(a *App) (tables []*catalog.Table) {
	for _, c := range a.catalogs {
		tables = append(tables, c.Table())
	}
	return tables
}

// warnPruned logs that the ledger dropped calls that nobody released. The
// logger is looked up anew: one from a configuration would outlive it.
func warnPruned(model, target string, n int) {
	caddy.Log().Named("flexinfer").Warn("dropped in-flight calls that were never released",
		zap.String("model", model), zap.String("endpoint", target), zap.Int("count", n))
}

// logHealth logs that an endpoint is ejected or returns.
func logHealth(id string, healthy bool, reason string) {
	logger := caddy.Log().Named("flexinfer")
	if healthy {
		logger.Info("endpoint is back", zap.String("endpoint", id), zap.String("by", reason))
		return
	}
	logger.Warn("endpoint is ejected", zap.String("endpoint", id), zap.String("reason", reason))
}

// endpointCollector reports on the endpoints that the running configurations
// know.
type endpointCollector struct{ inflight, healthy, count *prometheus.Desc }

var collector = endpointCollector{
	inflight: prometheus.NewDesc("flexinfer_proxy_upstream_inflight",
		"Calls under way, by model and target.", []string{"model", "target"}, nil),
	healthy: prometheus.NewDesc("flexinfer_proxy_upstream_healthy",
		"Whether a target gets its part of the calls: 0 while it is ejected.", []string{"model", "target"}, nil),
	count: prometheus.NewDesc("flexinfer_proxy_endpoint_count",
		"Known endpoints.", []string{"model"}, nil),
}

// Describe implements [prometheus.Collector].
func (c endpointCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.inflight
	ch <- c.healthy
	ch <- c.count
}

// Collect implements [prometheus.Collector]. Several configurations, and
// several sites of one, may know the same model and endpoint.
func (c endpointCollector) Collect(ch chan<- prometheus.Metric) {
	s := live.Load()
	if s == nil {
		return
	}
	type pair struct{ model, of string }
	inflight, seen, count := make(map[pair]int), make(map[pair]bool), make(map[string]int)
	healthy := make(map[pair]float64)
	add := func(model, target string, e *routing.Endpoint) bool {
		if seen[pair{model, e.ID}] {
			return false
		}
		seen[pair{model, e.ID}] = true
		inflight[pair{model, target}] += e.Inflight()
		return true
	}
	s.mu.Lock()
	tables := s.tables()
	s.mu.Unlock()
	for _, t := range tables {
		for _, m := range t.Models() {
			count[m.Name] += 0 // a model without endpoints counts as well
			for i := range m.Snapshot.Len() {
				e := m.Snapshot.At(i)
				if !add(m.Name, e.Target(), e) {
					continue
				}
				count[m.Name]++
				k := pair{m.Name, e.Target()}
				if _, ok := healthy[k]; !ok {
					healthy[k] = 1
				}
				if !e.Health().Healthy() {
					healthy[k] = 0
				}
			}
			if e := m.Snapshot.Service(); e != nil {
				add(m.Name, metrics.TargetService, e)
			}
		}
	}
	for k, n := range inflight {
		ch <- prometheus.MustNewConstMetric(c.inflight, prometheus.GaugeValue, float64(n), k.model, k.of)
	}
	for k, v := range healthy {
		ch <- prometheus.MustNewConstMetric(c.healthy, prometheus.GaugeValue, v, k.model, k.of)
	}
	for model, n := range count {
		ch <- prometheus.MustNewConstMetric(c.count, prometheus.GaugeValue, float64(n), model)
	}
}
