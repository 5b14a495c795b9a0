package metrics

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/usage"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Status is how a request ended, a label of requests_total.
type Status uint8

// The statuses.
const (
	// StatusSuccess: an upstream answered below 500.
	StatusSuccess Status = iota
	// StatusError: the gateway refused the request.
	StatusError
	// StatusUpstreamError: an upstream answered 5xx, could not be reached
	// or died while answering.
	StatusUpstreamError
	// StatusClientClosed: the client left.
	StatusClientClosed
	// StatusUnsupported: the model does not serve the path.
	StatusUnsupported
	// StatusBackground: a background call does not wake a model.
	StatusBackground
	// StatusParked: the model is not to be served.
	StatusParked
	// StatusPreempted: another model has its place.
	StatusPreempted

	numStatuses = int(StatusPreempted) + 1
)

var statusNames = [numStatuses]string{
	"success", "error", "upstream_error", "client_closed",
	"endpoint_unsupported", "background_not_ready", "parked", "parked_behind_primary",
}

func (s Status) String() string { return statusNames[s] }

// Model records what happens to the requests for one model. Its series are
// found once, so that recording costs an atomic addition.
type Model struct {
	name string
	refs int // of models.m, under models.mu

	// mu is held to make and to delete series. What is left of the requests
	// for a model or a target that has gone makes no new ones.
	mu      sync.Mutex
	gone    bool
	targets map[string]int // how often each was admitted

	requests          [numStatuses]prometheus.Counter
	duration, ttft    prometheus.Observer
	active            prometheus.Gauge
	completions       [2]prometheus.Counter // plain, stream
	promptTokens      prometheus.Observer
	completionTokens  prometheus.Observer
	promptTotal       prometheus.Counter
	cachedTotal       prometheus.Counter
	reserved, overdue prometheus.Counter
	clamped           prometheus.Counter
	strategies        sync.Map // strategy's name → *Strategy
	waiting
}

var models = struct {
	mu sync.Mutex
	m  map[string]*Model
}{m: make(map[string]*Model)}

// Acquire returns the recorder of a model. Each Acquire is undone by one
// Release; the model's series go with the last.
func Acquire(name string) *Model {
	models.mu.Lock()
	defer models.mu.Unlock()
	m := models.m[name]
	if m == nil {
		m = &Model{name: name, targets: make(map[string]int)}
		for i := range m.requests {
			m.requests[i] = requests.WithLabelValues(name, statusNames[i])
		}
		m.duration = duration.WithLabelValues(name)
		m.ttft = ttft.WithLabelValues(name)
		m.active = active.WithLabelValues(name)
		m.completions = [2]prometheus.Counter{
			completions.WithLabelValues(name, "false"), completions.WithLabelValues(name, "true"),
		}
		m.promptTokens = promptTokens.WithLabelValues(name)
		m.completionTokens = completionTokens.WithLabelValues(name)
		m.promptTotal = promptTokensTotal.WithLabelValues(name)
		m.cachedTotal = cachedTokensTotal.WithLabelValues(name)
		m.clamped = clamped.WithLabelValues(name, "context_window_headroom")
		m.reserved = reservations.WithLabelValues(name)
		m.overdue = reservationsExpired.WithLabelValues(name)
		m.waiting = newWaiting(name)
		models.m[name] = m
	}
	m.refs++
	return m
}

// Release undoes one Acquire.
func (m *Model) Release() {
	models.mu.Lock()
	defer models.mu.Unlock()
	if m.refs--; m.refs > 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	delete(models.m, m.name)
	for _, vec := range perModel {
		vec.DeletePartialMatch(prometheus.Labels{"model": m.name})
	}
}

// Unknown records requests that name no declared model. It is never released.
var Unknown = sync.OnceValue(func() *Model { return Acquire(UnknownModel) })

// Begin counts a request as in progress until End.
func (m *Model) Begin() { m.active.Inc() }

// End records how a request ended and how long it took.
func (m *Model) End(s Status, took time.Duration) {
	m.active.Dec()
	m.requests[s].Inc()
	m.duration.Observe(took.Seconds())
}

// Refused records a request that did not get as far as being in progress.
func (m *Model) Refused(s Status) { m.requests[s].Inc() }

// FirstToken records the time to a stream's first token.
func (m *Model) FirstToken(took time.Duration) { m.ttft.Observe(took.Seconds()) }

// Retried records that an attempt was repeated.
func (m *Model) Retried(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gone {
		retries.WithLabelValues(m.name, reason).Inc()
	}
}

// Completed records a completion and its usage.
func (m *Model) Completed(stream bool, u usage.Tokens) {
	i := 0
	if stream {
		i = 1
	}
	m.completions[i].Inc()
	if !u.Known {
		return
	}
	m.promptTokens.Observe(float64(u.Prompt))
	m.completionTokens.Observe(float64(u.Completion))
	if u.CachedKnown {
		m.promptTotal.Add(float64(u.Prompt))
		m.cachedTotal.Add(float64(u.Cached))
	}
}

// Reserved records a pick that counts as load before its attempt dials.
func (m *Model) Reserved() { m.reserved.Inc() }

// Clamped records that a limit of tokens was cut down to what the context
// window leaves.
func (m *Model) Clamped() { m.clamped.Inc() }

// Endpoints records how many of the model's endpoints came and went.
func (m *Model) Endpoints(added, removed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return
	}
	endpointChanges.WithLabelValues(m.name, "added").Add(float64(added))
	endpointChanges.WithLabelValues(m.name, "removed").Add(float64(removed))
}

// Remapped says which share of keys a change of endpoints moved.
func (m *Model) Remapped(share float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gone {
		remapped.WithLabelValues(m.name).Set(share)
	}
}

// Admit says that an endpoint with this target serves the model. It is undone
// by one Retire.
func (m *Model) Admit(target string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.targets[target]++
}

// Retire undoes one Admit; the target's series go with the last.
func (m *Model) Retire(target string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.targets[target]--; m.targets[target] > 0 {
		return
	}
	delete(m.targets, target)
	m.strategies.Range(func(_, s any) bool {
		s.(*Strategy).targets.Delete(target)
		return true
	})
	targetHits.DeletePartialMatch(prometheus.Labels{"model": m.name, "target": target})
}

// Strategy returns the recorder of the model's decisions under a strategy.
func (m *Model) Strategy(name string) *Strategy {
	if s, ok := m.strategies.Load(name); ok {
		return s.(*Strategy)
	}
	s, _ := m.strategies.LoadOrStore(name, &Strategy{model: m, name: name})
	return s.(*Strategy)
}

// Strategy records the decisions of a strategy for a model.
type Strategy struct {
	model     *Model
	name      string
	decisions [routing.NumKeySources][2]atomic.Pointer[prometheus.Counter]
	keys      [routing.NumKeySources]atomic.Pointer[keySet]
	targets   sync.Map // target → prometheus.Counter
}

// The outcomes of a routing decision, and the target of a service-fallback.
const (
	OutcomePod     = "pod"
	OutcomeService = "service-fallback"
	TargetService  = "service-dns"
)

// Decided records one decision and the attempt that follows from it.
func (s *Strategy) Decided(key routing.Key, service bool, target string) {
	i := 0
	if service {
		i, target = 1, TargetService
	}
	c := s.decisions[key.Source][i].Load()
	t, ok := s.targets.Load(target)
	if c == nil || !ok {
		if c, t = s.make(key.Source, i, target); c == nil {
			return
		}
	}
	(*c).Inc()
	if t != nil {
		t.(prometheus.Counter).Inc()
	}
	if key.Usable() {
		s.seen(key)
	}
}

// outcomes are those of a decision, by its place in Strategy.decisions.
var outcomes = [2]string{OutcomePod, OutcomeService}

// make returns the counter of decisions, nil if the model has gone, and that
// of the target's hits, nil if the target has.
func (s *Strategy) make(source routing.KeySource, outcome int, target string) (*prometheus.Counter, any) {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return nil, nil
	}
	slot := &s.decisions[source][outcome]
	if slot.Load() == nil {
		c := decisions.WithLabelValues(m.name, s.name, source.String(), outcomes[outcome])
		slot.Store(&c)
	}
	if target != TargetService && m.targets[target] == 0 {
		return slot.Load(), nil
	}
	t, _ := s.targets.LoadOrStore(target, targetHits.WithLabelValues(m.name, s.name, target))
	return slot.Load(), t
}

// seen counts a key towards the cardinality of its source.
func (s *Strategy) seen(key routing.Key) {
	set := s.keys[key.Source].Load()
	if set == nil {
		if set = s.makeKeySet(key.Source); set == nil {
			return
		}
	}
	set.add(key.Hash)
}

// makeKeySet returns the set of a source's keys, nil if the model has gone.
func (s *Strategy) makeKeySet(of routing.KeySource) *keySet {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if set := s.keys[of].Load(); set != nil || m.gone {
		return set
	}
	set := &keySet{
		count:    cardinality.WithLabelValues(m.name, s.name, of.String()),
		overflow: cardinalityOverflow.WithLabelValues(m.name, s.name, of.String()),
	}
	s.keys[of].Store(set)
	return set
}

// ReservationsExpired records n picks of a model that never became an attempt.
func ReservationsExpired(model string, n int) {
	models.mu.Lock()
	m := models.m[model]
	models.mu.Unlock()
	if m != nil {
		m.overdue.Add(float64(n))
	}
}
