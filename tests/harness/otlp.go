package harness

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metric "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// A Collector takes what OpenTelemetry exporters push over HTTP.
type Collector struct {
	server *httptest.Server

	mu     sync.Mutex
	spans  []Span
	pushed []*metric.Metric // of the last push
}

// A Span is one that was pushed.
type Span struct {
	Name, TraceID, SpanID, ParentID string
	Attributes                      map[string]*common.AnyValue
}

// Text returns an attribute that is text, or "".
func (s Span) Text(name string) string { return s.Attributes[name].GetStringValue() }

// NewCollector starts a collector.
func NewCollector(tb testing.TB) *Collector {
	tb.Helper()
	c := new(Collector)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		req := new(tracepb.ExportTraceServiceRequest)
		if take(w, r, req) {
			c.addSpans(req)
		}
	})
	mux.HandleFunc("POST /v1/metrics", func(w http.ResponseWriter, r *http.Request) {
		req := new(metricspb.ExportMetricsServiceRequest)
		if take(w, r, req) {
			c.setMetrics(req)
		}
	})
	c.server = httptest.NewServer(mux)
	tb.Cleanup(c.server.Close)
	return c
}

// take reads a message that was pushed.
func take(w http.ResponseWriter, r *http.Request, into proto.Message) bool {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, into)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	return true
}

// Env is the environment of a process that pushes to the collector.
func (c *Collector) Env() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.server.URL,
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_EXPORTER_OTLP_COMPRESSION=none",
		"OTEL_BSP_SCHEDULE_DELAY=100",
	}
}

func (c *Collector) addSpans(req *tracepb.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range req.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				span := Span{
					Name: s.GetName(), TraceID: hex.EncodeToString(s.GetTraceId()), SpanID: hex.EncodeToString(s.GetSpanId()),
					ParentID: hex.EncodeToString(s.GetParentSpanId()), Attributes: make(map[string]*common.AnyValue),
				}
				for _, a := range s.GetAttributes() {
					span.Attributes[a.GetKey()] = a.GetValue()
				}
				c.spans = append(c.spans, span)
			}
		}
	}
}

func (c *Collector) setMetrics(req *metricspb.ExportMetricsServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pushed = nil
	for _, resource := range req.GetResourceMetrics() {
		for _, scope := range resource.GetScopeMetrics() {
			c.pushed = append(c.pushed, scope.GetMetrics()...)
		}
	}
}

// Spans returns the spans of a trace.
func (c *Collector) Spans(traceID string) (found []Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.TraceID == traceID {
			found = append(found, s)
		}
	}
	return found
}

// Value returns the sum of the series in the last push that have the labels,
// as [Metrics.Value] does.
func (c *Collector) Value(name string, labels ...string) (sum float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.pushed {
		if m.GetName() != name {
			continue
		}
		for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
			if has(attributes(p.GetAttributes()), labels) {
				sum += p.GetAsDouble()
			}
		}
		for _, p := range m.GetHistogram().GetDataPoints() {
			if has(attributes(p.GetAttributes()), labels) {
				sum += float64(p.GetCount())
			}
		}
	}
	return sum
}

func attributes(list []*common.KeyValue) map[string]string {
	m := make(map[string]string, len(list))
	for _, a := range list {
		m[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return m
}
