package routing

import (
	"maps"
	"net/http"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
)

// A Spec describes an endpoint as a source found it.
type Spec struct {
	// ID is the endpoint's identity: the pod's UID and its address where there
	// is a pod, else the empty string, for which URL stands in.
	ID string

	// Scheme is http, https or h2c.
	Scheme string

	// Address is host:port, an IPv6 host in brackets.
	Address string

	// Path is the base path, without a trailing slash. Usually empty.
	Path string

	// Model is the name that this endpoint knows the model by, "" if it is
	// the declared one.
	Model string

	// Weight is the endpoint's share of the load relative to others,
	// 1 to 100. 0 stands for 1.
	Weight int

	// Labels are the operator's own words about the endpoint.
	Labels map[string]string

	// Header holds fields to set on each request to this endpoint.
	Header http.Header

	// MaxInflight is the most calls that the endpoint may have in flight,
	// those of all models together. 0 is as many as come.
	MaxInflight int
}

// URL returns scheme, address and base path in one string.
func (s *Spec) URL() string { return s.Scheme + "://" + s.Address + s.Path }

// Target returns the endpoint's name in metrics, logs and headers: host:port
// and the base path, if any. Never credentials.
func (s *Spec) Target() string { return s.Address + s.Path }

// Normal returns s with its ID filled in and its weight within its bounds.
func (s Spec) Normal() Spec {
	if s.ID == "" {
		s.ID = s.URL()
	}
	s.Weight = min(max(s.Weight, 1), maxWeight)
	return s
}

const maxWeight = 100

// Equal reports whether s and o describe the same endpoint in the same words.
func (s *Spec) Equal(o *Spec) bool {
	return s.ID == o.ID && s.Scheme == o.Scheme && s.Address == o.Address && s.Path == o.Path &&
		s.Model == o.Model && s.Weight == o.Weight && s.MaxInflight == o.MaxInflight && maps.Equal(s.Labels, o.Labels) &&
		maps.EqualFunc(s.Header, o.Header, slices.Equal)
}

// An Endpoint is one replica that serves a model. What a Spec says of it does
// not change; its load does.
type Endpoint struct {
	Spec

	entry  *ledger.Entry
	health *health.State
	tag    uint32
}

// NewEndpoint returns the endpoint that spec describes, as a server of model,
// counted in l. What calls and probes find out about it is known to h; without
// h, which may be nil, it is always fit.
func NewEndpoint(l *ledger.Ledger, h *health.Registry, model string, spec Spec) *Endpoint {
	spec = spec.Normal()
	return &Endpoint{
		Spec:   spec,
		entry:  l.Entry(model, spec.ID, spec.Target()),
		health: h.State(spec.ID),
		tag:    tag(spec.ID),
	}
}

// Health returns what is known of the endpoint's health, whichever model's
// calls found it out. Its methods may be called on nil, which stands for an
// endpoint that is always fit.
func (e *Endpoint) Health() *health.State { return e.health }

// Tag returns 32 bits that stand for the endpoint's ID, for a strategy that
// remembers many places: see [Snapshot.Tagged].
func (e *Endpoint) Tag() uint32 { return e.tag }

func tag(id string) uint32 { return uint32(xxhash.Sum64String(id)) }

// Load returns the number of calls that the endpoint is serving or is about
// to serve for this gateway, whichever model they are for.
func (e *Endpoint) Load() int { return e.entry.Load() }

// Inflight returns the number of calls under way for this endpoint's model.
func (e *Endpoint) Inflight() int { return e.entry.Active() }

// Reserved returns the number of calls for this endpoint's model that picked
// the endpoint and have not dialled it yet.
func (e *Endpoint) Reserved() int { return e.entry.Reserved() }
