package metrics

var (
	scaleUps = counter("scale_ups_total",
		"ModelDeployments that were given their replica.", "model")
	stalledLoads = counter("stalled_load_total",
		"Times that a model's loading made no progress for too long.", "model", "substage")
	swapSignals = counter("gpugroup_swap_signals_total",
		"Times that a GPUGroup was told how many calls wait for a model.", "gpugroup", "model")
	groupQueued = counter("gpugroup_queued_requests_total",
		"Calls that began to wait for a model of a GPUGroup.", "gpugroup", "model")
)

// ScaleUp records that a ModelDeployment was given its replica.
func ScaleUp(model string) {
	known(model, func() { scaleUps.WithLabelValues(model).Inc() })
}

// StalledLoad records that a model's loading got stalled in a substage.
func StalledLoad(model, substage string) {
	known(model, func() { stalledLoads.WithLabelValues(model, substage).Inc() })
}

// SwapSignal records that a GPUGroup was told how many calls wait for a model.
func SwapSignal(gpuGroup, model string) {
	known(model, func() { swapSignals.WithLabelValues(gpuGroup, model).Inc() })
}

// GroupQueued records that calls began to wait for a model of a GPUGroup.
func GroupQueued(gpuGroup, model string, calls int) {
	known(model, func() { groupQueued.WithLabelValues(gpuGroup, model).Add(float64(calls)) })
}

// known calls record unless nobody has acquired the model: its series have gone,
// and are not to come back.
func known(model string, record func()) {
	models.mu.Lock()
	defer models.mu.Unlock()
	if models.m[model] != nil {
		record()
	}
}
