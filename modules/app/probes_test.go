package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// changing is a source of one model's endpoints that the test changes.
type changing struct {
	mu      sync.Mutex
	specs   []routing.Spec
	changed chan struct{}
}

func (c *changing) Models() ([]routing.Model, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return []routing.Model{{Endpoints: c.specs}}, c.changed
}

func (c *changing) set(specs ...routing.Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.specs = specs
	if c.changed != nil {
		close(c.changed)
	}
	c.changed = make(chan struct{})
}

// engine answers probes with a status and tells of each.
func engine(t *testing.T, status int) (routing.Spec, <-chan struct{}) {
	asked := make(chan struct{}, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		select {
		case asked <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(s.Close)
	return routing.Spec{Scheme: "http", Address: strings.TrimPrefix(s.URL, "http://")}, asked
}

// The endpoints of models with probes are probed as they come and go, and
// metrics say what was found.
func TestProbes(t *testing.T) {
	good, goodAsked := engine(t, http.StatusOK)
	bad, _ := engine(t, http.StatusInternalServerError)
	late, lateAsked := engine(t, http.StatusOK)
	unasked, unaskedAsked := engine(t, http.StatusOK)

	src := new(changing)
	src.set(good, bad)
	policy := &catalog.Policy{Health: health.Config{Probe: health.Probe{Path: "/health", Interval: time.Millisecond}}}
	a := &App{instance: instance{logger: zap.NewNop()}}
	a.catalogs = []*catalog.Catalog{catalog.New(catalog.Config{
		Ledger: ledger.New(ledger.Config{}), Health: health.NewRegistry(health.Settings{}),
		Models: []catalog.Declaration{
			{Name: "m", Sources: []routing.Source{src}, Policy: policy},
			{Name: "n", Sources: []routing.Source{src}, Policy: policy},
			{Name: "plain", Sources: []routing.Source{&changing{specs: []routing.Spec{unasked}}}, Policy: new(catalog.Policy)},
		},
	})}
	defer a.catalogs[0].Close()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.catalogs[0].Follow(ctx) })
	running.Go(func() { a.probe(ctx) })
	defer running.Wait()
	defer cancel()

	s := &state{apps: []*App{a}}
	defer live.Store(live.Swap(s))
	for healthy(t, "m", bad) != 0 || healthy(t, "n", bad) != 0 {
		<-goodAsked
	}
	if healthy(t, "m", good) != 1 || healthy(t, "plain", unasked) != 1 {
		t.Error("an endpoint that is well is not healthy")
	}

	src.set(good, late)
	<-lateAsked
	select {
	case <-unaskedAsked:
		t.Error("an endpoint of a model without probes is probed")
	default:
	}
}

// healthy returns what metrics say of an endpoint, -1 if nothing.
func healthy(t *testing.T, model string, e routing.Spec) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(collector)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "flexinfer_proxy_upstream_healthy" {
			continue
		}
		for _, m := range f.GetMetric() {
			of := make(map[string]string)
			for _, l := range m.GetLabel() {
				of[l.GetName()] = l.GetValue()
			}
			if of["model"] == model && of["target"] == e.Target() {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}
