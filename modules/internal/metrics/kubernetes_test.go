package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestKubernetesSeriesGoWithTheirModel(t *testing.T) {
	const model = "kubernetes-series"
	reg := prometheus.NewRegistry()
	if err := Register(reg); err != nil {
		t.Fatal(err)
	}
	record := func() {
		ScaleUp(model)
		StalledLoad(model, "LoadingWeights")
		SwapSignal("group", model)
		GroupQueued("group", model, 3)
	}
	count := func() int {
		n, err := testutil.GatherAndCount(reg, "flexinfer_proxy_scale_ups_total", "flexinfer_proxy_stalled_load_total",
			"flexinfer_proxy_gpugroup_swap_signals_total", "flexinfer_proxy_gpugroup_queued_requests_total")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	record()
	if n := count(); n != 0 {
		t.Errorf("%d series of a model that nobody has", n)
	}
	m := Acquire(model)
	record()
	if n := count(); n != 4 {
		t.Errorf("%d series, want 4", n)
	}
	if got := testutil.ToFloat64(groupQueued.WithLabelValues("group", model)); got != 3 {
		t.Errorf("%v calls queued, want 3", got)
	}
	m.Release()
	record()
	if n := count(); n != 0 {
		t.Errorf("%d series are left", n)
	}
}
