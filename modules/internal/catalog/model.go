package catalog

import (
	"sync/atomic"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/budget"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/queue"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A Model is a model as one moment knows it.
type Model struct {
	// Name is the declared name.
	Name string

	// Aliases are other names for it, Adapters names of its LoRA adapters.
	Aliases, Adapters []string

	// Strategy picks among the Snapshot's endpoints. StrategyName is its
	// name as users type it.
	Strategy     routing.Strategy
	StrategyName string
	Snapshot     *routing.Snapshot

	// Policy says how calls are made, and Budget how many of them may be
	// repeated.
	Policy *Policy
	Budget *budget.Budget

	// ServePaths are the beginnings of the paths that it serves; none stands
	// for all.
	ServePaths []string

	// Groups are the labels that it claims a share of. Of those that claim
	// one the highest Priority comes first.
	Groups   []string
	Priority int

	// State says whether it serves, and Activator wakes it when it sleeps;
	// nil if nobody does.
	State     routing.State
	Activator routing.Activator

	// Lane is what it keeps through reloads; nil in a catalog without.
	Lane *Lane

	// Created is the Unix time at which it came to be, 0 if that is not
	// known, and Metadata what its source says of it to people.
	Created  int64
	Metadata map[string]any

	// Metrics records what happens to the model's requests, and Decisions
	// what its own strategy decides.
	Metrics   *metrics.Model
	Decisions *metrics.Strategy

	declared bool // by the configuration
	limited  bool // an endpoint has a bound of its own
	report   func(took time.Duration, problem string)
	from     origin
}

// Waits reports whether calls for the model may have to wait.
func (m *Model) Waits() bool {
	return m.Lane != nil && (m.limited || m.Activator != nil || m.State.Phase != routing.Serving)
}

// Queue returns where the model's calls wait.
func (m *Model) Queue() *queue.Queue { return m.Lane.queue }

// Latest returns the lane's model as the newest configuration and the sources
// know it, nil if it has gone.
func (m *Model) Latest() *Model { return m.Lane.latest.Load() }

// Enter counts a call as one of the model's, for the groups that it is of. The
// caller takes 1 off the counter in the end.
func (m *Model) Enter() *atomic.Int64 {
	m.Lane.calls.Add(1)
	return &m.Lane.calls
}

// Ready reports whether the model serves calls now.
func (m *Model) Ready() bool {
	if m.State.Phase != routing.Serving {
		return false
	}
	for i := range m.Snapshot.Len() {
		if m.Snapshot.At(i).Health().Healthy() {
			return true
		}
	}
	return m.Snapshot.HasService()
}
