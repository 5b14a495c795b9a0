package sources

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(UpstreamModels))
}

// UpstreamModels is a source of models that asks each upstream which ones it
// has: GET /v1/models, which Ollama, vLLM, llama.cpp and others answer. A
// model is served by exactly the upstreams that list it. One listed as
// name:latest goes by its name alone too.
//
// The upstreams are asked in the background, at once and then at each
// interval; one that has never answered is asked more often. What an upstream
// listed last stands while it does not answer, and over reloads.
type UpstreamModels struct {
	// The upstreams to ask.
	Upstreams []Upstream `json:"upstreams,omitempty"`

	// How often each upstream is asked. Default: `30s`.
	Interval caddy.Duration `json:"interval,omitempty"`

	specs   []routing.Spec
	pollers []*poller // one for each of specs
	dial    dialFunc
	logger  *zap.Logger

	mu      sync.Mutex
	models  []routing.Model
	settled bool
	changed chan struct{}
}

// CaddyModule returns the Caddy module information.
func (*UpstreamModels) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.sources.upstream_models",
		New: func() caddy.Module { return new(UpstreamModels) },
	}
}

// Provision sets up s. It asks no upstream: [UpstreamModels.Start] does.
func (s *UpstreamModels) Provision(ctx caddy.Context) error {
	s.logger = ctx.Logger()
	s.changed = make(chan struct{})
	if len(s.Upstreams) == 0 {
		return errors.New("no upstreams to ask for their models")
	}
	if s.Interval < 0 {
		return fmt.Errorf("interval is %s; write a time above 0, such as 30s", time.Duration(s.Interval))
	}
	if s.Interval == 0 {
		s.Interval = caddy.Duration(defaultPollInterval)
	}
	for _, u := range s.Upstreams {
		if u.Model != "" {
			return fmt.Errorf("upstream %s: model is for upstreams of a declared model; this one's are those that it lists", u.Address)
		}
	}
	var err error
	if s.specs, err = specsOf(s.Upstreams); err != nil {
		return err
	}
	for i := range s.specs {
		p, err := loadPoller(&s.specs[i], s.dial)
		if err != nil {
			return err
		}
		s.pollers = append(s.pollers, p)
	}
	for _, p := range s.pollers {
		p.subscribe(s)
	}
	s.refresh() // what an earlier configuration has learned
	return nil
}

// Start begins to ask the upstreams, unless an earlier configuration has.
func (s *UpstreamModels) Start() error {
	for _, p := range s.pollers {
		p.start(s, time.Duration(s.Interval))
	}
	return nil
}

// Cleanup ends what Provision and Start began.
func (s *UpstreamModels) Cleanup() error {
	var errs []error
	s.mu.Lock()
	held := s.pollers
	s.pollers = nil
	s.mu.Unlock()
	for _, p := range held {
		p.unsubscribe(s)
		if _, err := pollers.Delete(p.key); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Models implements [routing.Source]. The models are in the order of their
// names.
func (s *UpstreamModels) Models() ([]routing.Model, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.models, s.changed
}

// Settled reports whether each upstream has answered or failed to, once, and
// one of them did answer. If none does they have settled after 10 to 20 s.
// Until then an unknown model may be known in a moment. The channel that
// Models returns is closed also when this changes.
func (s *UpstreamModels) Settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled
}

// refresh takes over what the pollers know, and tells those who wait for a
// change if it is one.
func (s *UpstreamModels) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pollers == nil {
		return // cleaned up: requests under way keep what there was
	}
	models, settled := s.collect()
	if settled == s.settled && equalModels(models, s.models) {
		return
	}
	s.models, s.settled = models, settled
	close(s.changed)
	s.changed = make(chan struct{})
}

// collect turns the pollers' lists by upstream into endpoints by model.
func (s *UpstreamModels) collect() ([]routing.Model, bool) {
	var models []routing.Model
	endpoints := make(map[string][]routing.Spec)
	settled, answered := true, false
	for i, p := range s.pollers {
		st := p.state()
		settled = settled && st.asked
		answered = answered || st.answered || st.overdue
		for _, name := range st.names {
			endpoints[name] = append(endpoints[name], s.specs[i])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(endpoints)) {
		m := routing.Model{Name: name, Endpoints: endpoints[name]}
		if untagged, ok := strings.CutSuffix(name, ":latest"); ok && untagged != "" {
			m.Aliases = []string{untagged} // as Ollama has it
		}
		models = append(models, m)
	}
	return models, settled && answered
}

func equalModels(a, b []routing.Model) bool {
	return slices.EqualFunc(a, b, func(a, b routing.Model) bool {
		return a.Name == b.Name && slices.EqualFunc(a.Endpoints, b.Endpoints, func(a, b routing.Spec) bool { return a.Equal(&b) })
	})
}

// log reports the outcome of asking an upstream, loudly where it is news.
func (s *UpstreamModels) log(target string, models int, err error, news, wasFailing bool) {
	level, msg := zap.DebugLevel, "upstream listed its models"
	switch {
	case err != nil && !wasFailing:
		level, msg = zap.WarnLevel, "upstream does not list its models; what it listed last stands"
	case err != nil:
		msg = "upstream still does not list its models"
	case news || wasFailing:
		level = zap.InfoLevel
	}
	if c := s.logger.Check(level, msg); c != nil {
		c.Write(zap.String("target", target), zap.Int("models", models), zap.Error(err))
	}
}

// Interface guards
var (
	_ caddy.Module       = (*UpstreamModels)(nil)
	_ caddy.Provisioner  = (*UpstreamModels)(nil)
	_ caddy.CleanerUpper = (*UpstreamModels)(nil)
	_ routing.Source     = (*UpstreamModels)(nil)
	_ routing.Starter    = (*UpstreamModels)(nil)
	_ routing.Settler    = (*UpstreamModels)(nil)
)
