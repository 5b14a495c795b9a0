package chart

import (
	"testing"
)

func TestBudget(t *testing.T) {
	for _, tt := range []struct {
		values string
		want   string // "": none
	}{
		{`proxy: {replicaCount: 1}`, ""},
		{`proxy: {replicaCount: 2}`, "1"},
		{`{proxy: {replicaCount: 3}, podDisruptionBudget: {minAvailable: 50%}}`, "50%"},
		{`{proxy: {replicaCount: 3}, podDisruptionBudget: {enabled: false}}`, ""},
		{`autoscaling: {enabled: true, minReplicas: 2}`, "1"},
		{`autoscaling: {enabled: true, minReplicas: 1}`, ""},
	} {
		o := render(t, tt.values)
		if tt.want == "" {
			if o.kinds["PodDisruptionBudget"] > 0 {
				t.Errorf("%s: there is a budget", tt.values)
			}
			continue
		}
		if got := o.budget.Spec.MinAvailable.String(); got != tt.want {
			t.Errorf("%s: at least %s, want %s", tt.values, got, tt.want)
		}
		if o.budget.Spec.Selector.MatchLabels["app"] != "flexinfer-proxy" {
			t.Errorf("%s: selector %v", tt.values, o.budget.Spec.Selector)
		}
	}
}

func TestAutoscaler(t *testing.T) {
	o := render(t, `autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 9, targetCPUUtilizationPercentage: 55}`)
	spec := o.autoscaler.Spec
	if o.deployment.Spec.Replicas != nil {
		t.Error("the deployment has a count too: each upgrade would undo the autoscaler's")
	}
	if spec.ScaleTargetRef.Name != o.deployment.Name || *spec.MinReplicas != 3 || spec.MaxReplicas != 9 ||
		*spec.Metrics[0].Resource.Target.AverageUtilization != 55 {
		t.Errorf("got %v", spec)
	}
}

func TestMonitors(t *testing.T) {
	for kind, tt := range map[string]struct{ values, endpoints string }{
		"ServiceMonitor": {`metrics: {serviceMonitor: {enabled: true, interval: 7s, labels: {prometheus: main}}}`, "endpoints"},
		"PodMonitor":     {`metrics: {podMonitor: {enabled: true, interval: 7s, labels: {prometheus: main}}}`, "podMetricsEndpoints"},
	} {
		o := render(t, tt.values)
		if o.kinds["ServiceMonitor"]+o.kinds["PodMonitor"] != 1 {
			t.Fatalf("%s: made %v", kind, o.kinds)
		}
		monitor := o.monitors[kind]
		spec := monitor["spec"].(map[string]any)
		endpoint := spec[tt.endpoints].([]any)[0].(map[string]any)
		if endpoint["path"] != "/metrics" || endpoint["port"] != o.service.Spec.Ports[0].Name || endpoint["interval"] != "7s" {
			t.Errorf("%s: %v", kind, endpoint)
		}
		if monitor["metadata"].(map[string]any)["labels"].(map[string]any)["prometheus"] != "main" {
			t.Errorf("%s: %v", kind, monitor["metadata"])
		}
		for name, value := range spec["selector"].(map[string]any)["matchLabels"].(map[string]any) {
			if o.service.Labels[name] != value || o.deployment.Spec.Template.Labels[name] != value {
				t.Errorf("%s: selects %s=%v", kind, name, value)
			}
		}
	}
}
