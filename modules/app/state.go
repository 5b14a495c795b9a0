package app

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// states holds the state that outlives a reload, while any configuration uses
// it.
var states = caddy.NewUsagePool()

const stateKey = "flexinfer"

// state is what all configurations of the process share.
type state struct {
	ledger *ledger.Ledger
	cancel context.CancelFunc
	sweeps chan time.Duration

	mu       sync.Mutex
	catalogs map[*catalog.Catalog]struct{}
}

func newState() (caddy.Destructor, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &state{cancel: cancel, sweeps: make(chan time.Duration, 1), catalogs: make(map[*catalog.Catalog]struct{})}
	s.ledger = ledger.New(ledgerDefaults())
	go s.sweep(ctx)
	live.Store(s)
	return s, nil
}

// Destruct stops the sweeping. The ledger stays valid: requests of the last
// configuration may still be under way.
func (s *state) Destruct() error {
	s.cancel()
	return nil
}

// configure applies what the starting configuration says of shared state.
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
		}
	}
}

func (s *state) add(c *catalog.Catalog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalogs[c] = struct{}{}
}

func (s *state) remove(c *catalog.Catalog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.catalogs, c)
}

func (s *state) tables() []*catalog.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	tables := make([]*catalog.Table, 0, len(s.catalogs))
	for c := range s.catalogs {
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

// endpointCollector reports the live counts of the endpoints that the running
// configurations know.
type endpointCollector struct{ inflight *prometheus.Desc }

var collector = endpointCollector{
	inflight: prometheus.NewDesc("flexinfer_proxy_upstream_inflight",
		"Calls under way, by model and target.", []string{"model", "target"}, nil),
}

// Describe implements [prometheus.Collector].
func (c endpointCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.inflight }

// Collect implements [prometheus.Collector].
func (c endpointCollector) Collect(ch chan<- prometheus.Metric) {
	s := live.Load()
	if s == nil {
		return
	}
	type series struct{ model, target string }
	counts := make(map[series]int)
	seen := make(map[*routing.Endpoint]struct{})
	add := func(model, target string, e *routing.Endpoint) {
		if _, ok := seen[e]; !ok {
			seen[e] = struct{}{}
			counts[series{model, target}] += e.Inflight()
		}
	}
	for _, t := range s.tables() {
		for _, m := range t.Models() {
			for i := range m.Snapshot.Len() {
				add(m.Name, m.Snapshot.At(i).Target(), m.Snapshot.At(i))
			}
			if e := m.Snapshot.Service(); e != nil {
				add(m.Name, metrics.TargetService, e)
			}
		}
	}
	for k, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.inflight, prometheus.GaugeValue, float64(n), k.model, k.target)
	}
}
