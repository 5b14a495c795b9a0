// Package selection holds the load balancing policy that routes requests to
// where their KV cache is.
package selection

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(Selection))
}

// Selection picks an upstream with one of the gateway's strategies. Beside
// `dynamic flexinfer` it passes on the endpoint that was picked for the call.
// Over any other pool of upstreams, static or dynamic, it makes the pick
// itself, and needs neither the `flexinfer` app nor the other modules:
//
//	reverse_proxy 10.0.0.5:8000 10.0.0.6:8000 {
//		lb_policy flexinfer session-affinity
//	}
//
// The policy respects the proxy's health checks. It never refuses a request:
// a body larger than the app's max_body streams on without a key.
type Selection struct {
	// The strategy. Default: that of the call's model, if the `flexinfer`
	// handler found one, else that of the `flexinfer` app.
	StrategyRaw json.RawMessage `json:"strategy,omitempty" caddy:"namespace=flexinfer.strategies inline_key=strategy"`

	app          *app.App
	strategy     routing.Strategy
	strategyName string
	inherits     bool // the strategy is nobody's choice
	ledger       *ledger.Ledger
	pool         atomic.Pointer[pool]
}

// CaddyModule returns the Caddy module information.
func (*Selection) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.selection_policies.flexinfer",
		New: func() caddy.Module { return new(Selection) },
	}
}

// Provision sets up s.
func (s *Selection) Provision(ctx caddy.Context) (err error) {
	if s.StrategyRaw != nil && besideDynamic(ctx) {
		return fmt.Errorf("dynamic flexinfer picks the endpoint, so a strategy in lb_policy would have no effect; "+
			"write it in front of the proxy: flexinfer_call %s", s.typedStrategy())
	}
	if s.app, err = app.Of(ctx); err != nil {
		return err
	}
	s.ledger = s.app.SharedLedger()
	if s.strategy, s.strategyName, err = s.app.LoadStrategy(ctx, s, "StrategyRaw", s.StrategyRaw); err != nil {
		return err
	}
	if s.inherits = s.strategy == nil; s.inherits {
		s.strategy, s.strategyName = s.app.Strategy()
	}
	return nil
}

// besideDynamic reports whether the proxy that is being provisioned takes its
// upstreams from dynamic flexinfer.
func besideDynamic(ctx caddy.Context) bool {
	for _, m := range ctx.Modules() {
		if h, ok := m.(*reverseproxy.Handler); ok {
			var source struct {
				Source string `json:"source"`
			}
			if json.Unmarshal(h.DynamicUpstreamsRaw, &source) == nil && source.Source == "flexinfer" {
				return true
			}
		}
	}
	return false
}

func (s *Selection) typedStrategy() string {
	var m struct {
		Strategy string `json:"strategy"`
	}
	_ = json.Unmarshal(s.StrategyRaw, &m)
	return strings.ReplaceAll(m.Strategy, "_", "-")
}

// Select implements [reverseproxy.Selector]. r is the proxy's own clone of
// the request, and gets the body of this attempt.
func (s *Selection) Select(upstreams reverseproxy.UpstreamPool, r *http.Request, _ http.ResponseWriter) *reverseproxy.Upstream {
	if len(upstreams) == 0 {
		return nil
	}
	c := call.Join(r, s.app.Settings())
	if lease := c.Lease(); lease != nil && c.Model() != nil && len(upstreams) == 1 && upstreams[0].Dial == lease.Endpoint().Address && !c.Foreign() {
		return upstreams[0]
	}
	_ = c.ReadBody(r) // what cannot be read streams on, unkeyed
	p := s.pool.Load()
	if p == nil || !p.same(upstreams) {
		p = newPool(s.ledger, upstreams)
		s.pool.Store(p)
	}
	strategy, name := s.strategy, s.strategyName
	if m := c.Model(); m != nil && s.inherits {
		strategy, name = m.Strategy, m.StrategyName
	}
	lease := c.NextOf(p.snapshot, strategy, name, func(id string) bool {
		return !upstreams[p.index[id]].Available()
	})
	if lease == nil {
		return nil
	}
	c.Rewind(r)
	return upstreams[p.index[lease.Endpoint().ID]]
}

// A pool is a proxy's own set of upstreams as the strategies see it.
type pool struct {
	dials    []string
	index    map[string]int // endpoint's ID → place among the upstreams
	snapshot *routing.Snapshot
}

func newPool(l *ledger.Ledger, upstreams reverseproxy.UpstreamPool) *pool {
	p := &pool{index: make(map[string]int, len(upstreams))}
	endpoints := make([]*routing.Endpoint, 0, len(upstreams))
	for i, u := range upstreams {
		e := routing.NewEndpoint(l, nil, catalog.Undeclared, routing.Spec{Scheme: "http", Address: u.Dial})
		p.dials = append(p.dials, u.Dial)
		if _, ok := p.index[e.ID]; !ok {
			p.index[e.ID] = i
		}
		endpoints = append(endpoints, e)
	}
	p.snapshot = routing.New(catalog.Undeclared, endpoints, nil, nil)
	return p
}

func (p *pool) same(upstreams reverseproxy.UpstreamPool) bool {
	if len(upstreams) != len(p.dials) {
		return false
	}
	for i, u := range upstreams {
		if u.Dial != p.dials[i] {
			return false
		}
	}
	return true
}

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens. Syntax:
//
//	lb_policy flexinfer [<strategy>] {
//		<options of the strategy...>
//	}
func (s *Selection) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume policy name
	if !d.NextArg() {
		if d.NextBlock(0) {
			return d.Errf("options belong to a strategy: lb_policy flexinfer <strategy> { %s ... }", d.Val())
		}
		return nil
	}
	raw, err := app.ParseStrategy(d)
	if err != nil {
		return err
	}
	s.StrategyRaw = raw
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Selection)(nil)
	_ reverseproxy.Selector = (*Selection)(nil)
	_ caddyfile.Unmarshaler = (*Selection)(nil)
)
