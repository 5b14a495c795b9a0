package transport

import (
	"context"
	"io"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/direct"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const (
	hitRateTimeout = 1500 * time.Millisecond
	maxMetrics     = 1 << 20 // bytes
)

// A hitRate is an endpoint's share of prompt tokens that it found in its cache,
// over its whole life, as it says itself when a client wants to know.
type hitRate struct{ result chan string }

// hitRateAge is for how long an answer serves those who ask: anybody may.
const hitRateAge = time.Second

// hitRates are the answers of a transport's endpoints.
type hitRates struct {
	mu sync.Mutex
	of map[string]datedRate // by the endpoint's ID
}

type datedRate struct {
	*hitRate
	asked time.Time
}

// ask begins to ask the endpoint, unless somebody has just done so. It takes
// hitRateTimeout at most.
func (h *hitRates) ask(rt http.RoundTripper, e *routing.Endpoint) *hitRate {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if last, ok := h.of[e.ID]; ok && now.Sub(last.asked) < hitRateAge {
		return last.hitRate
	}
	for id, last := range h.of {
		if now.Sub(last.asked) >= hitRateAge {
			delete(h.of, id)
		}
	}
	if h.of == nil {
		h.of = make(map[string]datedRate)
	}
	rate := &hitRate{result: make(chan string, 1)}
	h.of[e.ID] = datedRate{rate, now}
	go func() {
		// Not the client's context: others may be waiting as well.
		ctx, cancel := context.WithTimeout(context.Background(), hitRateTimeout)
		defer cancel()
		rate.result <- fetchHitRate(ctx, rt, e)
	}()
	return rate
}

// value returns the rate with four decimals, or "" if the endpoint does not
// say. Unless wait is set, it is "" as well if the answer is not there yet.
func (h *hitRate) value(wait bool) (rate string) {
	if h == nil {
		return ""
	}
	if wait {
		rate = <-h.result
	} else {
		select {
		case rate = <-h.result:
		default:
			return ""
		}
	}
	h.result <- rate // for whoever asks next
	return rate
}

func fetchHitRate(ctx context.Context, rt http.RoundTripper, e *routing.Endpoint) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, direct.URL(e.Scheme, e.Target(), "/metrics"), http.NoBody)
	if err != nil {
		return ""
	}
	maps.Copy(req.Header, e.Header)
	res, err := rt.RoundTrip(req)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return ""
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(res.Body, maxMetrics))
	if err != nil && len(families) == 0 {
		return ""
	}
	if rate, ok := rateOf(families); ok {
		return strconv.FormatFloat(rate, 'f', 4, 64)
	}
	return ""
}

// rateOf finds the rate among an engine's metrics: a gauge of it, as older
// versions of vLLM have, or the quotient of two counters.
func rateOf(families map[string]*dto.MetricFamily) (rate float64, ok bool) {
	for _, name := range []string{"vllm:gpu_prefix_cache_hit_rate", "vllm:prefix_cache_hit_rate"} {
		if f := families[name]; f != nil && len(f.GetMetric()) > 0 {
			rate = valueOf(f.GetMetric()[0])
			return math.Abs(rate), rate >= 0 && rate <= 1 // and no -0
		}
	}
	var hits, queries float64
	for name, f := range families {
		var sum *float64
		switch {
		case strings.HasSuffix(name, "prefix_cache_hits_total"):
			sum = &hits
		case strings.HasSuffix(name, "prefix_cache_queries_total"):
			sum = &queries
		default:
			continue
		}
		for _, m := range f.GetMetric() {
			*sum += valueOf(m)
		}
	}
	rate = hits / queries
	return math.Abs(rate), rate >= 0 && rate <= 1
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	if m.Untyped == nil {
		return math.NaN()
	}
	return m.Untyped.GetValue()
}
