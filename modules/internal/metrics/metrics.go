// Package metrics holds the gateway's Prometheus collectors. They are made
// once for the process and registered anew in each configuration's registry,
// so that counters never go back on a reload. Names and labels are those of
// FlexInfer's proxy.
//
// No label value comes from a client: models are declared names, everything
// else is shared under [UnknownModel].
package metrics

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// UnknownModel is the model label of requests that name no declared model.
const UnknownModel = "_unknown"

// longBuckets extends client_golang's default buckets upward to the length of
// real completions, in seconds.
var longBuckets = slices.Concat(prometheus.DefBuckets, []float64{20, 30, 60, 120, 300, 600})

// tokenBuckets are 16, 32 … 32768 tokens, and on to the windows of today.
var tokenBuckets = prometheus.ExponentialBuckets(16, 2, 17)

// queueBuckets are FlexInfer's, in seconds, and on to the longest cold starts.
var queueBuckets = []float64{0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "flexinfer", Subsystem: "proxy", Name: name, Help: help}, labels)
}

func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "flexinfer", Subsystem: "proxy", Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "flexinfer", Subsystem: "proxy", Name: name, Help: help, Buckets: buckets}, labels)
}

// The collectors, one for the process.
var (
	requests = counter("requests_total",
		"Requests by model and how they ended.", "model", "status")
	retries = counter("upstream_retries_total",
		"Attempts that were repeated with another upstream, by reason.", "model", "reason")
	duration = histogram("request_duration_seconds",
		"Time from a request's arrival to the end of its answer.", longBuckets, "model")
	active = gauge("active_connections",
		"Requests in progress.", "model")
	decisions = counter("routing_decisions_total",
		"Routing decisions. The outcome is pod or service-fallback.", "model", "strategy", "key_source", "outcome")
	targetHits = counter("routing_target_hits_total",
		"Attempts sent to each target.", "model", "strategy", "target")
	cardinality = gauge("routing_key_cardinality",
		"Distinct routing keys seen, counted up to 4096.", "model", "strategy", "key_source")
	cardinalityOverflow = counter("routing_key_cardinality_overflow_total",
		"Times that the count of distinct routing keys reached its cap.", "model", "strategy", "key_source")
	endpointChanges = counter("endpoint_changes_total",
		"Endpoints that came (added) and went (removed).", "model", "change_type")
	ttft = histogram("time_to_first_token_seconds",
		"Time from a streaming request's arrival to the first byte of its answer's body that is not a comment.", longBuckets, "model")
	clamped = counter("max_tokens_clamped_total",
		"Requests whose limit of tokens was cut down, by reason.", "model", "reason")
	reservations = counter("least_loaded_reservations_total",
		"Picks that counted as load before their attempts dialled.", "model")
	reservationsExpired = counter("least_loaded_reservations_expired_total",
		"Picks that never became an attempt and stopped counting.", "model")
	queued = counter("queued_requests_total",
		"Requests that waited, for a model to wake or for room.", "model")
	queueRejected = counter("queue_rejected_total",
		"Requests that found the queue full.", "model")
	queueDepth = gauge("queue_depth",
		"Requests that wait.", "model")
	queueWait = histogram("queue_wait_duration_seconds",
		"How long requests waited, however that ended.", queueBuckets, "model")
	activationRetries = counter("activation_retries_total",
		"Attempts to wake a model that were repeated.", "model")
	activationRetryWait = histogram("activation_retry_wait_duration_seconds",
		"How long it was waited before waking was tried again.", []float64{1, 2, 5, 10, 15, 20, 30, 45, 60}, "model")
	activationDuration = histogram("activation_duration_seconds",
		"How long waking a model took. The backend is always empty.", []float64{1, 5, 10, 30, 60, 120, 180, 300, 600, 900}, "model", "backend", "result")
	activationFailures = counter("activation_failures_total",
		"Models that did not wake, by reason.", "model", "reason")
	groupDecisions = counter("label_group_route_decisions_total",
		"Calls for a label that several models may claim, by how their model was found.", "label", "strategy", "outcome")
	groupHits = counter("label_group_route_target_hits_total",
		"Calls for a label, by the model that they went to.", "label", "strategy", "model")
	refresh = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "flexinfer", Subsystem: "proxy", Name: "endpoint_refresh_duration_seconds",
		Help:    "How long it took to put a change of models or endpoints into effect.",
		Buckets: []float64{.001, .005, .01, .05, .1, .5, 1},
	})
	remapped = gauge("routing_remapped_ratio",
		"The share of keys that the last change of endpoints moved to others, of models with a hash ring.", "model")
	promptTokens = histogram("request_prompt_tokens",
		"Prompt tokens per completion, as the engine counted them.", tokenBuckets, "model")
	completionTokens = histogram("request_completion_tokens",
		"Completion tokens per completion, as the engine counted them.", tokenBuckets, "model")
	completions = counter("completions_total",
		"Completions that an engine answered with a 2xx status.", "model", "stream")
	promptTokensTotal = counter("prompt_tokens_total",
		"Prompt tokens of completions for which the engine reported cached tokens.", "model")
	cachedTokensTotal = counter("cached_prompt_tokens_total",
		"Prompt tokens that the engine took from its prefix cache.", "model")
)

// perModel lists the vectors with a model label, whose series go when the
// model does.
var perModel = []interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}{
	requests, retries, duration, active, decisions, targetHits, cardinality, cardinalityOverflow,
	endpointChanges, ttft, promptTokens, completionTokens, completions, promptTokensTotal, cachedTokensTotal,
	reservations, reservationsExpired, clamped,
	queued, queueRejected, queueDepth, queueWait,
	activationRetries, activationRetryWait, activationDuration, activationFailures,
	remapped,
	scaleUps, stalledLoads, swapSignals, groupQueued,
}

// perLabel lists the vectors with a label label.
var perLabel = []interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}{groupDecisions, groupHits}

// Refreshed records how long a change of models took to come into effect.
func Refreshed(took time.Duration) { refresh.Observe(took.Seconds()) }

// Register registers the process's collectors, and others, in a
// configuration's registry.
func Register(reg prometheus.Registerer, others ...prometheus.Collector) error {
	for _, c := range perModel {
		others = append(others, c)
	}
	for _, c := range perLabel {
		others = append(others, c)
	}
	others = append(others, shutdowns, shutdownDuration, refresh)
	for _, c := range others {
		if err := reg.Register(c); err != nil {
			if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); !ok {
				return err
			}
		}
	}
	return nil
}
