package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestLint(t *testing.T) {
	for _, values := range []string{
		``,
		`kubernetes: {namespaces: ["*"], gpuGroups: true, pods: true, apiGroup: ai.flexinfer}`,
		`{autoscaling: {enabled: true}, metrics: {podMonitor: {enabled: true}}, observability: {tracing: {enabled: true}}}`,
	} {
		if stdout, stderr, err := run(t, values, "lint", "--strict", chartDir, "--values", "-"); err != nil {
			t.Errorf("%s: %v\n%s%s", values, err, stdout, stderr)
		}
	}
}

func TestPods(t *testing.T) {
	o := render(t, ``)
	if want := map[string]int{"Deployment": 1, "Service": 1, "ConfigMap": 1, "ServiceAccount": 1, "Role": 1, "RoleBinding": 1}; !maps.Equal(o.kinds, want) {
		t.Errorf("made %v, want %v", o.kinds, want)
	}
	d := &o.deployment
	pod := &d.Spec.Template.Spec
	c := o.container(t)

	if d.Name != "gw-flexinfer-gateway-proxy" || d.Spec.Template.Labels["app"] != "flexinfer-proxy" {
		t.Errorf("name %s, labels %v", d.Name, d.Spec.Template.Labels)
	}
	for _, selector := range []map[string]string{d.Spec.Selector.MatchLabels, o.service.Spec.Selector} {
		if !maps.Equal(selector, d.Spec.Template.Labels) {
			t.Errorf("selector %v, labels %v", selector, d.Spec.Template.Labels)
		}
	}
	if len(c.Ports) != 1 || c.Ports[0].Name != "http" || c.Ports[0].ContainerPort != 8080 {
		t.Errorf("ports: %v", c.Ports)
	}
	if p := o.service.Spec.Ports; len(p) != 1 || p[0].Port != 80 || p[0].TargetPort.String() != "http" {
		t.Errorf("ports of the service: %v", p)
	}

	// Its listener closes while calls end: a liveness probe would kill them.
	if c.LivenessProbe != nil || c.StartupProbe != nil || c.Lifecycle != nil {
		t.Error("there is a liveness or startup probe, or a lifecycle hook")
	}
	if p := c.ReadinessProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Path != "/readyz" || p.HTTPGet.Port.String() != "http" {
		t.Errorf("readiness probe: %v", p)
	}
	if *pod.TerminationGracePeriodSeconds != 640 {
		t.Errorf("grace period: %d", *pod.TerminationGracePeriodSeconds)
	}
	if u := d.Spec.Strategy.RollingUpdate; u.MaxUnavailable.IntValue() != 0 || u.MaxSurge.IntValue() != 1 {
		t.Errorf("a rollout takes a gateway away before there is another: %v", u)
	}

	if s := pod.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser == 0 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security context of the pod: %v", s)
	}
	if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
		t.Errorf("security context: %v", s)
	}
	if pod.HostNetwork || pod.ServiceAccountName != o.account.Name || !*pod.AutomountServiceAccountToken || *o.account.AutomountServiceAccountToken {
		t.Errorf("service account %s of %s", pod.ServiceAccountName, o.account.Name)
	}

	// What Caddy writes has a place, since the root is read-only.
	env := o.environment(t)
	empty := make(map[string]bool)
	for _, v := range pod.Volumes {
		empty[v.Name] = v.EmptyDir != nil
	}
	writable := make(map[string]bool)
	for _, m := range c.VolumeMounts {
		writable[m.MountPath] = empty[m.Name] && !m.ReadOnly
	}
	for _, name := range []string{"XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		if !writable[env[name]] {
			t.Errorf("%s=%s is not writable: %v", name, env[name], c.VolumeMounts)
		}
	}
	if config := c.Command[slices.Index(c.Command, "--config")+1]; !strings.HasPrefix(config, "/etc/caddy/") || o.config.Data["Caddyfile"] == "" {
		t.Errorf("the configuration is %s, the map has %v", config, o.config.Data)
	}
}

func TestPodValues(t *testing.T) {
	o := render(t, `
proxy:
  replicaCount: 3
  image: {repository: example.com/gateway, tag: "1"}
  imagePullSecrets: [{name: pull}]
  service: {type: NodePort, port: 8000, annotations: {a: b}}
  resources: {limits: {memory: 1Gi}}
  nodeSelector: {disk: ssd}
  tolerations: [{key: gpu, operator: Exists}]
  affinity: {nodeAffinity: {}}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
  priorityClassName: high
  podAnnotations: {note: x}
  podLabels: {team: llm}
  extraEnv: [{name: LLM_API_KEY, valueFrom: {secretKeyRef: {name: s, key: token}}}]
serviceAccounts: {proxy: {name: mine, annotations: {role: z}}}
`)
	pod, c := &o.deployment.Spec.Template, o.container(t)
	for what, ok := range map[string]bool{
		"replicas":    *o.deployment.Spec.Replicas == 3,
		"image":       c.Image == "example.com/gateway:1",
		"pull secret": pod.Spec.ImagePullSecrets[0].Name == "pull",
		"service": o.service.Spec.Type == "NodePort" && o.service.Spec.Ports[0].Port == 8000 &&
			o.service.Annotations["a"] == "b",
		"resources":     c.Resources.Limits.Memory().String() == "1Gi" && c.Resources.Requests.Cpu().String() == "200m",
		"node selector": pod.Spec.NodeSelector["disk"] == "ssd",
		"tolerations":   pod.Spec.Tolerations[0].Key == "gpu",
		"affinity":      pod.Spec.Affinity.NodeAffinity != nil,
		"spread":        pod.Spec.TopologySpreadConstraints[0].TopologyKey == "zone",
		"priority":      pod.Spec.PriorityClassName == "high",
		"annotations":   pod.Annotations["note"] == "x" && pod.Annotations["checksum/config"] != "",
		"labels":        pod.Labels["team"] == "llm" && pod.Labels["app"] == "flexinfer-proxy",
		"account": o.account.Name == "mine" && o.account.Annotations["role"] == "z" &&
			pod.Spec.ServiceAccountName == "mine" && o.bindings[0].Subjects[0].Name == "mine",
	} {
		if !ok {
			t.Errorf("%s: not as the values say", what)
		}
	}
	if last := c.Env[len(c.Env)-1]; last.Name != "LLM_API_KEY" || last.ValueFrom.SecretKeyRef.Key != "token" {
		t.Errorf("the last variable is %v", last)
	}

	if got := render(t, ``).container(t).Image; got != "flexinfer-gateway:v0.1.0" {
		t.Errorf("by default the image is %s, the Dockerfile and the examples make flexinfer-gateway:v0.1.0", got)
	}
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	if got := render(t, `proxy: {image: {tag: "1", digest: "`+digest+`"}}`).container(t).Image; !strings.HasSuffix(got, "@"+digest) {
		t.Errorf("image %s", got)
	}
	o = render(t, `serviceAccounts: {proxy: {create: false}}`)
	if got := o.deployment.Spec.Template.Spec.ServiceAccountName; got != "default" || o.kinds["ServiceAccount"] > 0 {
		t.Errorf("no account of its own: it is %s, made %v", got, o.kinds)
	}
}

// Names are FlexInfer's, and none is too long.
func TestNames(t *testing.T) {
	long := strings.Repeat("r", 53)
	for _, tt := range []struct{ release, values, want string }{
		{"gw", ``, "gw-flexinfer-gateway-proxy"},
		{"flexinfer-gateway", ``, "flexinfer-gateway-proxy"},
		{"gw", `fullnameOverride: flexinfer`, "flexinfer-proxy"},
		{"gw", `nameOverride: llm`, "gw-llm-proxy"},
		{long, ``, long + "-fle-proxy"},
		{long, `nameOverride: "` + long + `"`, long + "-proxy"},
	} {
		o := renderAs(t, tt.release, tt.values)
		for what, got := range map[string]string{
			"deployment": o.deployment.Name, "service": o.service.Name, "configmap": o.config.Name,
			"account": o.account.Name, "role": o.roles[0].Name, "binding": o.bindings[0].RoleRef.Name,
			"volume": o.deployment.Spec.Template.Spec.Volumes[0].ConfigMap.Name,
		} {
			if got != tt.want || len(got) > 63 {
				t.Errorf("%s, %s: the %s is %s, want %s", tt.release, tt.values, what, got, tt.want)
			}
		}
	}
}

// FlexInfer's values become FlexInfer's variables, which give the gateway
// its defaults. What nobody has set stays out.
func TestEnvironment(t *testing.T) {
	own := func(o *objects) map[string]string {
		env := o.environment(t)
		maps.DeleteFunc(env, func(name, _ string) bool {
			return !strings.HasPrefix(name, "PROXY_") && !strings.HasPrefix(name, "FLEXINFER_")
		})
		return env
	}
	want := map[string]string{
		"PROXY_SHUTDOWN_DRAIN_DELAY":      "5s",
		"PROXY_GRACEFUL_SHUTDOWN_TIMEOUT": "10m",
		"PROXY_MAX_TOKENS_CLAMP_ENABLED":  "true",
	}
	if got := own(render(t, ``)); !maps.Equal(got, want) {
		t.Errorf("by default %v, want %v", got, want)
	}
	// Every value of FlexInfer's chart that asks for nothing else.
	got := own(render(t, `
proxy:
  enabled: true
  timeouts: {queue: 90s, coldStart: 5m}
  routing: {explicitKeyMaxLength: 64, systemSegmentMaxLength: 10000000, documentSegmentMaxLength: 128, labelGroupMode: prefix-session-or-rr}
  maxTokensClamp: {enabled: false, promptReserveTokens: 1024}
  gracefulShutdown: {timeout: 1m30s, drainDelay: 500ms, terminationGracePeriodSeconds: 100}
  auth: {enabled: false, tokenSecretName: "", tokenSecretKey: token}
  rateLimit: {enabled: false, perModelRPS: 100, burst: 50, globalRPS: 1000, globalBurst: 200}
  admission: {enabled: false, safetyMarginPercent: 5, defaultMaxTokens: 256}
  pyannoteUpstream: ""
  kokoroUpstream: ""
`))
	want = map[string]string{
		"PROXY_SHUTDOWN_DRAIN_DELAY":                   "500ms",
		"PROXY_GRACEFUL_SHUTDOWN_TIMEOUT":              "1m30s",
		"PROXY_MAX_TOKENS_CLAMP_ENABLED":               "false",
		"PROXY_MAX_TOKENS_CLAMP_PROMPT_RESERVE_TOKENS": "1024",
		"PROXY_QUEUE_TIMEOUT":                          "90s",
		"PROXY_COLD_START_TIMEOUT":                     "5m",
		"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH":        "64",
		"PROXY_ROUTING_SYSTEM_SEGMENT_MAX_LENGTH":      "10000000",
		"PROXY_ROUTING_DOCUMENT_SEGMENT_MAX_LENGTH":    "128",
		"FLEXINFER_PROXY_LABEL_GROUP_ROUTING":          "prefix-session-or-rr",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTracing(t *testing.T) {
	o := render(t, `observability: {tracing: {enabled: true, otlpEndpoint: "http://c:4318", serviceNamespace: llm}}`)
	env := o.environment(t)
	if env["OTEL_EXPORTER_OTLP_ENDPOINT"] != "http://c:4318" || env["OTEL_RESOURCE_ATTRIBUTES"] != "service.namespace=llm" ||
		env["OTEL_SERVICE_NAME"] == "" || !strings.Contains(o.config.Data["Caddyfile"], "\ttracing\n") {
		t.Errorf("got %v and\n%s", env, o.config.Data["Caddyfile"])
	}
	if env := render(t, ``).environment(t); env["OTEL_SERVICE_NAME"] != "" {
		t.Errorf("not asked for: %v", env)
	}
}
