package app

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
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

// policyOf returns how calls for m are made, or those for a model that a
// source lists if m is nil.
func (a *App) policyOf(*Model) *catalog.Policy {
	p := &catalog.Policy{Retries: defaultRetries}
	if a.Retries != nil {
		p.Retries = *a.Retries
	}
	return p
}

// MaxRetries returns the most retries that any model allows.
func (a *App) MaxRetries() int {
	most := a.policyOf(nil).Retries
	for _, m := range a.Models {
		most = max(most, a.policyOf(m).Retries)
	}
	return most
}
