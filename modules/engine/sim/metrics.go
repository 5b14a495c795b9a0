package sim

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// The names, and what they count, are vLLM's.
var (
	runningDesc   = newDesc("vllm:num_requests_running", "Number of requests in model execution batches.")
	waitingDesc   = newDesc("vllm:num_requests_waiting", "Number of requests waiting to be processed.")
	usageDesc     = newDesc("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
	queriesDesc   = newDesc("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.")
	hitsDesc      = newDesc("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.")
	promptDesc    = newDesc("vllm:prompt_tokens_total", "Number of prefill tokens processed.")
	generatedDesc = newDesc("vllm:generation_tokens_total", "Number of generation tokens processed.")
	cacheDesc     = newDesc("vllm:cache_config_info", "Information of the LLMEngine CacheConfig.", "block_size", "num_gpu_blocks")
)

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"model_name"}, labels...), nil)
}

// A collector reads an engine's state when it is scraped.
type collector struct{ engine *Engine }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		runningDesc, waitingDesc, usageDesc, queriesDesc, hitsDesc, promptDesc, generatedDesc, cacheDesc,
	} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	e := c.engine
	e.mu.Lock()
	usage := float64(e.cache.used()) / float64(e.cache.capacity)
	e.mu.Unlock()
	for _, m := range e.models {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, value, append([]string{m.name}, labels...)...)
		}
		send(runningDesc, prometheus.GaugeValue, float64(m.running.Load()))
		send(waitingDesc, prometheus.GaugeValue, float64(m.waiting.Load()))
		send(usageDesc, prometheus.GaugeValue, usage)
		send(queriesDesc, prometheus.CounterValue, float64(m.queries.Load()))
		send(hitsDesc, prometheus.CounterValue, float64(m.hits.Load()))
		send(promptDesc, prometheus.CounterValue, float64(m.prompt.Load()))
		send(generatedDesc, prometheus.CounterValue, float64(m.generated.Load()))
		send(cacheDesc, prometheus.GaugeValue, 1, strconv.Itoa(e.cfg.BlockSize), strconv.Itoa(e.cfg.KVBlocks))
	}
}

// newRegistry returns the metrics of e alone: a process may hold several
// engines, and their series have the same names and labels.
func (e *Engine) newRegistry() (*prometheus.Registry, error) {
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(collector{e}); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return registry, nil
}

// metrics answers a scrape, through the exchange so that faults strike here too.
func (x *exchange) metrics() error {
	families, err := x.engine.registry.Gather()
	if err != nil {
		return &apiError{status: http.StatusInternalServerError, message: err.Error()}
	}
	var b bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&b, family); err != nil {
			return &apiError{status: http.StatusInternalServerError, message: err.Error()}
		}
	}
	x.w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	return x.write(http.StatusOK, b.Bytes())
}
