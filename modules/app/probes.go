package app

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
)

// probeFollows is how often the probes look for endpoints that have come or
// gone.
const probeFollows = time.Second

// probes reports whether any model has its endpoints probed.
func (a *App) probes() bool {
	return a.policyOf(nil).Health.Probe.Path != "" || slices.ContainsFunc(a.Models, func(m *Model) bool {
		return a.policyOf(m).Health.Probe.Path != ""
	})
}

// probe has the endpoints of a's models probed until ctx is done.
func (a *App) probe(ctx context.Context) {
	prober := health.NewProber(func(target string, err error) {
		a.logger.Warn("cannot probe an endpoint whose certificate is not trusted; its probes count for nothing",
			zap.String("target", target), zap.Error(err))
	}, func(target string, err error) {
		a.logger.Warn("probe of an endpoint failed", zap.String("target", target), zap.Error(err))
	})
	defer prober.Close()
	ticker := time.NewTicker(probeFollows)
	defer ticker.Stop()
	var known []*catalog.Table
	for {
		if tables := tablesOf(a); !slices.Equal(tables, known) {
			prober.Follow(ctx, probeTargets(tables))
			known = tables
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// probeTargets returns the endpoints that are to be probed, again for each
// model that has them.
func probeTargets(tables []*catalog.Table) (targets []health.Target) {
	for _, t := range tables {
		for _, m := range t.Models() {
			if m.Policy.Health.Probe.Path == "" {
				continue
			}
			for i := range m.Snapshot.Len() {
				e := m.Snapshot.At(i)
				targets = append(targets, health.Target{
					ID: e.ID, Scheme: e.Scheme, Base: e.Target(), Header: e.Header,
					Probe: m.Policy.Health.Probe, State: e.Health(),
				})
			}
		}
	}
	return targets
}
