package chart

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The kubelet must not cut a drain off.
func TestGracePeriod(t *testing.T) {
	for _, tt := range []struct{ timeout, delay, least string }{
		{"10m", "5s", "606"},
		{"1h30m", "0", "5401"},
		{"90s", "1500ms", "92"},
		{"1.5h", "1m", "5461"},
		{".5m", "999999us", "31"},
		{"1m0.5s", "1000000000ns", "62"},
	} {
		grace := func(seconds string) string {
			return `proxy: {gracefulShutdown: {timeout: "` + tt.timeout + `", drainDelay: "` + tt.delay +
				`", terminationGracePeriodSeconds: ` + seconds + `}}`
		}
		o := render(t, grace(tt.least))
		if got := yamlOf(t, o.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds); got != tt.least {
			t.Errorf("%s and %s: grace period %s", tt.timeout, tt.delay, got)
		}
		less := tt.least[:len(tt.least)-1] + string(tt.least[len(tt.least)-1]-1)
		if got := refused(t, grace(less)); !strings.Contains(got, "terminationGracePeriodSeconds is "+less) || !strings.Contains(got, "write "+tt.least+" or more") {
			t.Errorf("%s and %s with %s: %s", tt.timeout, tt.delay, less, got)
		}
	}
}

func yamlOf(t *testing.T, v any) string {
	t.Helper()
	b, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		values string
		want   []string
	}{
		{`proxy: {gracefulShutdown: {timeout: 10 minutes}}`, []string{"proxy.gracefulShutdown.timeout", "is no duration", "1h30m"}},
		{`proxy: {gracefulShutdown: {drainDelay: "5"}}`, []string{"proxy.gracefulShutdown.drainDelay", "is no duration"}},
		{`proxy: {gracefulShutdown: {drainDelay: -5s}}`, []string{"is no duration"}},
		{`proxy: {gracefulShutdown: {timeout: 0s}}`, []string{"no bound", "10m"}},
		{`proxy: {enabled: false}`, []string{"leave the chart out"}},

		{`proxy: {auth: {enabled: true, tokenSecretName: s}}`, []string{"extraEnv", "name: s, key: token", "respond @denied 401", "header_up -Authorization"}},
		{`proxy: {rateLimit: {enabled: true, globalRPS: 7}}`, []string{"caddy-ratelimit", "extraSite", "events 7"}},
		{`proxy: {admission: {enabled: true}}`, []string{"extraSite", "max_size 256KiB"}},
		{`proxy: {pyannoteUpstream: "http://p:1"}`, []string{"handle /diarize {", "reverse_proxy http://p:1"}},
		{`proxy: {kokoroUpstream: "http://k:1"}`, []string{"handle /v1/audio/speech {", "reverse_proxy http://k:1"}},

		{`kubernetes: {namespaces: [a, "*"]}`, []string{`"*" is all namespaces`}},
		{`kubernetes: {namespaces: [A]}`, []string{"/kubernetes/namespaces/0"}},
		{`kubernetes: {namespaces: a}`, []string{"/kubernetes/namespaces"}},
		{`kubernetes: {syncTimeout: 10}`, []string{"/kubernetes/syncTimeout"}},
		{`proxy: {timeouts: {queue: 60}}`, []string{"/proxy/timeouts/queue"}},
		{`proxy: {timeouts: {queue: 1d}}`, []string{"/proxy/timeouts/queue"}},
		{`proxy: {routing: {labelGroupMode: random}}`, []string{"/proxy/routing/labelGroupMode", "least-loaded"}},
		{`proxy: {routing: {explicitKeyMaxLength: 0}}`, []string{"/proxy/routing/explicitKeyMaxLength"}},
		{`proxy: {image: {digest: "sha256:0"}}`, []string{"/proxy/image/digest"}},
		{`proxy: {replicaCount: "2"}`, []string{"/proxy/replicaCount"}},

		{`autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 2}`, []string{"maxReplicas is below minReplicas"}},
		{`{autoscaling: {enabled: true}, proxy: {resources: {requests: {cpu: null}}}}`, []string{"proxy.resources.requests.cpu"}},
		{`metrics: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}`, []string{"scrape each gateway twice"}},
	} {
		got := refused(t, tt.values)
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: refused with\n%s, which says nothing of %q", tt.values, got, want)
			}
		}
	}
}

// A misspelt value is refused, wherever it stands.
func TestUnknownValues(t *testing.T) {
	b, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(b, &values); err != nil {
		t.Fatal(err)
	}
	// Where Kubernetes, or the user, has the say.
	free := []string{
		"proxy.resources", "proxy.resources.requests", "proxy.nodeSelector", "proxy.affinity", "proxy.podAnnotations",
		"proxy.podLabels", "proxy.service.annotations", "serviceAccounts.proxy.annotations",
		"metrics.serviceMonitor.labels", "metrics.podMonitor.labels",
	}
	checked := 0
	var walk func(path []string, at map[string]any)
	walk = func(path []string, at map[string]any) {
		if slices.Contains(free, strings.Join(path, ".")) {
			return
		}
		checked++
		misspelt := "surprise: 1"
		for _, key := range slices.Backward(path) {
			misspelt = key + ": {" + misspelt + "}"
		}
		if got := refused(t, misspelt); !strings.Contains(got, "surprise") {
			t.Errorf("%s: refused with\n%s", misspelt, got)
		}
		for _, key := range slices.Sorted(maps.Keys(at)) {
			if inner, ok := at[key].(map[string]any); ok {
				walk(append(slices.Clone(path), key), inner)
			}
		}
	}
	walk(nil, values)
	if checked < 15 {
		t.Errorf("only %d objects were looked at", checked)
	}
	if got := render(t, `global: {anything: 1}`).deployment.Name; got == "" { // of a parent chart
		t.Error("no deployment")
	}
}
