package app

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/key"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// live is the state in use, for the collector, which belongs to no
// configuration.
var live atomic.Pointer[state]

func ledgerDefaults() ledger.Config {
	return ledger.Config{
		Bucket:         5 * time.Second,
		TTL:            600 * time.Second,
		ReservationTTL: 10 * time.Second,
		OnPrune:        warnPruned,
		OnExpire:       metrics.ReservationsExpired,
	}
}

// ledgerConfig returns the ledger's bounds.
func (a *App) ledgerConfig() ledger.Config {
	cfg := ledgerDefaults()
	if a.Ledger != nil {
		if a.Ledger.Bucket > 0 {
			cfg.Bucket = time.Duration(a.Ledger.Bucket)
		}
		if a.Ledger.TTL > 0 {
			cfg.TTL = time.Duration(a.Ledger.TTL)
		}
	}
	if a.ReservationTTL != nil {
		cfg.ReservationTTL = time.Duration(*a.ReservationTTL)
		if cfg.ReservationTTL == 0 {
			cfg.ReservationTTL = -1 // reservations do not count
		}
	}
	return cfg
}

// config returns how keys are found. k may be nil.
func (k *Keys) config() *key.Config {
	cfg := key.Default()
	if k == nil {
		return &cfg
	}
	if k.ExplicitKeyMaxLength > 0 {
		cfg.ExplicitMax = k.ExplicitKeyMaxLength
	}
	if k.SystemSegmentMaxLength > 0 {
		cfg.SystemMax = k.SystemSegmentMaxLength
	}
	if k.DocumentSegmentMaxLength > 0 {
		cfg.DocumentMax = k.DocumentSegmentMaxLength
	}
	if k.SessionHeaders != nil {
		cfg.SessionHeaders = k.SessionHeaders
	}
	if k.SessionFields != nil {
		cfg.SessionFields = k.SessionFields
	}
	return &cfg
}

var started = time.Now()

// Started returns the Unix time at which the process started.
func Started() int64 { return started.Unix() }

// MayDebug reports whether a client with this address may be told how its
// request was routed.
func (a *App) MayDebug(clientIP string) bool {
	switch a.DebugHeader {
	case "all":
		return true
	case "off":
		return false
	}
	ip, err := netip.ParseAddr(clientIP)
	if err != nil {
		return false
	}
	ip = ip.Unmap()
	return ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast()
}

// SharedLedger returns the ledger that all configurations share.
func (a *App) SharedLedger() *ledger.Ledger { return a.state.ledger }

// Strategy returns the strategy of models that name none, and its name.
func (a *App) Strategy() (routing.Strategy, string) { return a.strategy, a.strategyName }

// The options where nothing is set.
const (
	defaultMaxBody       = 32 << 20
	defaultPromptReserve = 512
)

var (
	defaultRetries = &Retries{
		Max: new(2), On: []string{"429", "503"},
		Budget: &RetryBudget{Percent: new(20), Floor: new(10)},
	}

	defaultTimeouts = &Timeouts{
		Dial:      caddy.Duration(3 * time.Second),
		FirstByte: new(caddy.Duration(10 * time.Minute)),
		Gap:       new(caddy.Duration(5 * time.Minute)),
	}

	defaultHealth = &Health{
		EjectAfter:      3,
		EjectFor:        caddy.Duration(10 * time.Second),
		EjectForMax:     caddy.Duration(5 * time.Minute),
		MaxEjected:      new(50),
		UnhealthyStatus: []string{"500", "502", "504"},
		Interval:        caddy.Duration(10 * time.Second),
		Timeout:         caddy.Duration(2 * time.Second),
		Passes:          2,
		Fails:           3,
	}
)

// callSettings returns what the configuration says about all calls.
func (a *App) callSettings() *call.Settings {
	clamp := orZero(a.MaxTokensClamp)
	set := &call.Settings{
		MaxBody:       cmp.Or(a.MaxBody, defaultMaxBody),
		Keys:          a.Keys.config(),
		Clamp:         clamp.Enabled == nil || *clamp.Enabled,
		PromptReserve: cmp.Or(clamp.PromptReserve, defaultPromptReserve),
		MapModel:      a.ResponseModel != "upstream",
		AskUsage:      a.UsageMetrics == "always",
		Validate:      deref(a.ValidateRequests),
		LeaseTTL:      a.ledgerConfig().TTL,
		Logger:        a.logger,
	}
	if clamp.PromptReserveAuto {
		set.PromptReserve = 0
	}
	return set
}

// policyOf returns how calls for m are made, or those for a model that a
// source lists if m is nil.
func (a *App) policyOf(m *Model) *catalog.Policy {
	m = orZero(m)
	r := m.Retries.over(a.Retries).over(defaultRetries)
	t := m.Timeouts.over(a.Timeouts).over(defaultTimeouts)
	h := m.Health.over(a.Health).over(defaultHealth)
	q := a.Queue.over(defaultQueue)
	return &catalog.Policy{
		QueueMax:     q.MaxSize,
		QueueTimeout: time.Duration(q.Timeout),
		ColdStart:    time.Duration(cmp.Or(m.ColdStartTimeout, q.ColdStartTimeout)),
		Backoff:      q.Backoff.config(),

		Retries:    *r.Max,
		RetryOn:    statuses(r.On),
		RetryReset: slices.Contains(r.On, reset),
		RetryShare: float64(*r.Budget.Percent) / 100,
		RetryFloor: *r.Budget.Floor,
		FirstByte:  time.Duration(*t.FirstByte),
		Gap:        time.Duration(*t.Gap),
		Health: health.Config{
			EjectAfter:  h.EjectAfter,
			EjectFor:    time.Duration(h.EjectFor),
			EjectForMax: time.Duration(h.EjectForMax),
			MaxEjected:  share(*h.MaxEjected),
			Probe: health.Probe{
				Path:     probePath(h.URI),
				Interval: time.Duration(h.Interval),
				Timeout:  time.Duration(h.Timeout),
				Passes:   h.Passes,
				Fails:    h.Fails,
			},
		},
		Unhealthy:     statuses(h.UnhealthyStatus),
		ContextWindow: m.ContextWindow,
	}
}

// MaxRetries returns the most retries that any model allows.
func (a *App) MaxRetries() int {
	most := *a.Retries.over(defaultRetries).Max
	for _, m := range a.Models {
		most = max(most, *m.Retries.over(a.Retries).over(defaultRetries).Max)
	}
	return most
}

// DialTimeout returns how long connecting to an endpoint may take.
func (a *App) DialTimeout() time.Duration {
	return time.Duration(a.Timeouts.over(defaultTimeouts).Dial)
}

// KeepAlive returns how long an idle connection to an endpoint is kept, or 0 if
// the configuration does not say.
func (a *App) KeepAlive() time.Duration { return time.Duration(orZero(a.Timeouts).KeepAlive) }

// probePath returns the path that a uri stands for, "" if there are no probes.
func probePath(uri string) string {
	if uri == noProbes {
		return ""
	}
	return uri
}

// share returns a percentage as [health.Config] takes it, where 0 would stand
// for the default.
func share(percent int) float64 {
	if percent == 0 {
		return -1
	}
	return float64(percent) / 100
}
