package harness

import (
	"bytes"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics is one scrape.
type Metrics map[string]*dto.MetricFamily

// A Sample is the value of one series. Of a histogram it is the count.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64

	metric *dto.Metric
}

// String writes the sample as a scrape has it.
func (s Sample) String() string {
	var b strings.Builder
	b.WriteString(s.Name + "{")
	for i, name := range slices.Sorted(maps.Keys(s.Labels)) {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(name + "=" + strconv.Quote(s.Labels[name]))
	}
	b.WriteString("} " + strconv.FormatFloat(s.Value, 'g', -1, 64))
	return b.String()
}

// Metrics scrapes the site's /metrics.
func (g *Gateway) Metrics(tb testing.TB) Metrics {
	tb.Helper()
	res, err := g.TryTwice(tb.Context(), http.MethodGet, "/metrics", "")
	if err != nil || res.Status != http.StatusOK {
		tb.Fatalf("GET /metrics: %v %v", res, err)
	}
	return parseMetrics(tb, res.Body)
}

func parseMetrics(tb testing.TB, text []byte) Metrics {
	tb.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		tb.Fatalf("the scrape cannot be read: %v", err)
	}
	return families
}

// Series returns the series of a family that have the labels, which are pairs
// of a name and a value.
func (m Metrics) Series(name string, labels ...string) []Sample {
	var found []Sample
	for _, metric := range m[name].GetMetric() {
		s := Sample{Name: name, Labels: make(map[string]string), Value: valueOf(metric), metric: metric}
		for _, l := range metric.GetLabel() {
			s.Labels[l.GetName()] = l.GetValue()
		}
		if has(s.Labels, labels) {
			found = append(found, s)
		}
	}
	return found
}

func has(labels map[string]string, want []string) bool {
	for i := 0; i+1 < len(want); i += 2 {
		if labels[want[i]] != want[i+1] {
			return false
		}
	}
	return true
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	case m.Summary != nil:
		return float64(m.Summary.GetSampleCount())
	}
	return m.GetUntyped().GetValue()
}

// Value returns the sum of the series of a family that have the labels.
func (m Metrics) Value(name string, labels ...string) float64 {
	sum := 0.0
	for _, s := range m.Series(name, labels...) {
		sum += s.Value
	}
	return sum
}

// Sum returns the sum of all that was observed in the series of a histogram.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, s := range m.Series(name, labels...) {
		sum += s.metric.GetHistogram().GetSampleSum()
	}
	return sum
}

// Buckets returns the upper bounds of the buckets of a histogram, without the
// last one, which has none.
func (m Metrics) Buckets(name string, labels ...string) []float64 {
	var bounds []float64
	for _, s := range m.Series(name, labels...) {
		for _, b := range s.metric.GetHistogram().GetBucket() {
			if !math.IsInf(b.GetUpperBound(), 1) {
				bounds = append(bounds, b.GetUpperBound())
			}
		}
		return bounds
	}
	return nil
}

// Own returns the number of series of the gateway's own families.
func (m Metrics) Own() int {
	n := 0
	for name, family := range m {
		if strings.HasPrefix(name, "flexinfer_") {
			n += len(family.GetMetric())
		}
	}
	return n
}

// Counters returns every value of the gateway's own families that must never
// go back: counters, and the counts of histograms.
func (m Metrics) Counters() map[string]float64 {
	values := make(map[string]float64)
	for name, family := range m {
		if !strings.HasPrefix(name, "flexinfer_") || family.GetType() == dto.MetricType_GAUGE {
			continue
		}
		for _, s := range m.Series(name) {
			v := s.Value
			s.Value = 0
			values[s.String()] = v
		}
	}
	return values
}
