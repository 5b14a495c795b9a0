package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Why a model did not wake.
const (
	ActivationScaleUp   = "scale_up"          // nobody could be told to wake it
	ActivationNotReady  = "ready_timeout"     // it was told to, and did not
	ActivationCancelled = "context_cancelled" // no call waited any longer, or the model went
)

// waiting records how the requests for a model wait.
type waiting struct {
	queued, queueRejected, activationRetries prometheus.Counter
	queueDepth                               prometheus.Gauge
	queueWait, activationRetryWait           prometheus.Observer
}

func newWaiting(model string) waiting {
	return waiting{
		queued:              queued.WithLabelValues(model),
		queueRejected:       queueRejected.WithLabelValues(model),
		queueDepth:          queueDepth.WithLabelValues(model),
		queueWait:           queueWait.WithLabelValues(model),
		activationRetries:   activationRetries.WithLabelValues(model),
		activationRetryWait: activationRetryWait.WithLabelValues(model),
	}
}

// Queued records that a request has to wait.
func (w *waiting) Queued() { w.queued.Inc() }

// QueueRejected records that a request found the queue full.
func (w *waiting) QueueRejected() { w.queueRejected.Inc() }

// QueueDepth says how many requests wait.
func (w *waiting) QueueDepth(n int) { w.queueDepth.Set(float64(n)) }

// Waited records that a request does not wait any more, and how long it did.
func (w *waiting) Waited(d time.Duration) { w.queueWait.Observe(d.Seconds()) }

// ActivationRetried records that waking is tried again after a while.
func (w *waiting) ActivationRetried(wait time.Duration) {
	w.activationRetries.Inc()
	w.activationRetryWait.Observe(wait.Seconds())
}

// Activated records how long waking the model took.
func (m *Model) Activated(took time.Duration, woke bool) {
	result := "failure"
	if woke {
		result = "success"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gone {
		activationDuration.WithLabelValues(m.name, "", result).Observe(took.Seconds())
	}
}

// ActivationFailed records why the model did not wake.
func (m *Model) ActivationFailed(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gone {
		activationFailures.WithLabelValues(m.name, reason).Inc()
	}
}
