package k8sdiscovery

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

var testNow = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// object reads a resource as the API server would send it.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	data, err := yaml.ToJSON([]byte("# YAML\n" + text)) // else one that begins with a brace is taken for JSON
	if err != nil {
		t.Fatal(err)
	}
	var obj map[string]any
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	if err := d.Decode(&obj); err != nil {
		t.Fatal(err)
	}
	numbers(obj)
	return obj
}

// numbers makes of each number what the Kubernetes decoder makes of it.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = numbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = numbers(e)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	}
	return v
}

func nowhere() surroundings {
	return surroundings{
		now: testNow, stalledLoad: defaultStalledLoad,
		endpoints:   func(string) ([]routing.Spec, []string) { return nil, nil },
		activeModel: func(string) (string, bool) { return "", false },
	}
}

func model(t *testing.T, text string) *translation {
	t.Helper()
	return translate(Ref{Group: "ai.flexinfer", Kind: KindModel, Namespace: "models", Name: "m"}, object(t, text), nowhere())
}

func deployment(t *testing.T, text string, in surroundings) *translation {
	t.Helper()
	return translate(Ref{Group: "ai.flexinfer", Kind: KindModelDeployment, Namespace: "models", Name: "m"}, object(t, text), in)
}

func TestModelState(t *testing.T) {
	loading := func(age time.Duration) string {
		return fmt.Sprintf("status: {phase: Loading, loadingSubstage: LoadingWeights, loadingProgressAt: %q, message: shard 3/8}",
			testNow.Add(-age).Format(time.RFC3339))
	}
	for name, tt := range map[string]struct {
		obj  string
		want routing.State
		due  time.Duration // from now; 0 is never
	}{
		"ready":            {obj: "status: {phase: Ready}"},
		"ready and parked": {obj: "{spec: {litellm: {enabled: false}}, status: {phase: Ready}}"},
		"parked": {
			obj:  "{spec: {litellm: {enabled: false}}, status: {phase: Idle, sharedGroup: {preemptedBy: primary/big}}}",
			want: routing.State{Phase: routing.Parked, Message: "model m is parked"},
		},
		"not parked": {
			obj:  "{spec: {litellm: {enabled: true}}, status: {phase: Idle}}",
			want: routing.State{Phase: routing.Asleep},
		},
		"parked by a word": {
			obj:  "{spec: {litellm: {enabled: 'false'}}}",
			want: routing.State{Phase: routing.Asleep},
		},
		"behind a primary": {
			obj:  "status: {phase: Preempted, sharedGroup: {preemptedBy: primary/big}}",
			want: routing.State{Phase: routing.Preempted, Message: "model m is parked behind primary/big"},
		},
		"preempted for now": {
			obj:  "status: {phase: Preempted, sharedGroup: {preemptedBy: big}}",
			want: routing.State{Phase: routing.Asleep},
		},
		"no status":      {obj: "{}", want: routing.State{Phase: routing.Asleep}},
		"status is null": {obj: "status: null", want: routing.State{Phase: routing.Asleep}},
		"status is text": {obj: "status: Ready", want: routing.State{Phase: routing.Asleep}},
		"phase is a number": {
			obj:  "status: {phase: 1}",
			want: routing.State{Phase: routing.Asleep},
		},
		"failed": {
			obj:  "status: {phase: Failed, message: out of memory}",
			want: routing.State{Phase: routing.Failed, Message: "model m failed: out of memory"},
		},
		"failed, as conditions say": {
			obj: `{status: {phase: Failed, conditions: [7, {type: Cached, status: "True", message: fine},
				{type: Schedulable, status: "False", reason: VRAMInsufficient, message: "needs 24 GB"}]}}`,
			want: routing.State{Phase: routing.Failed, Message: "model m failed: needs 24 GB"},
		},
		"failed, with a reason": {
			obj:  `{status: {phase: Failed, conditions: [{type: Ready, status: "False", reason: VRAMInsufficient}]}}`,
			want: routing.State{Phase: routing.Failed, Message: "model m failed: VRAMInsufficient"},
		},
		"failed, nobody knows why": {
			obj:  "status: {phase: Failed}",
			want: routing.State{Phase: routing.Failed, Message: "model m failed: its resource does not say why"},
		},
		"loading": {
			obj:  "status: {phase: Loading, loadingSubstage: ImagePulling, message: pulling}",
			want: routing.State{Phase: routing.Asleep, Message: "pulling", Substage: "ImagePulling"},
		},
		"loading, almost stalled": {
			obj:  loading(119 * time.Second),
			want: routing.State{Phase: routing.Asleep, Message: "shard 3/8", Substage: "LoadingWeights"},
			due:  time.Second,
		},
		"stalled": {
			obj: loading(120 * time.Second),
			want: routing.State{
				Phase: routing.Stalled, Substage: "LoadingWeights", RetryAfter: 30 * time.Second,
				Message: "model m gets nowhere: no progress in LoadingWeights for 2m0s: shard 3/8",
			},
		},
		"stalled in another substage": {
			obj:  strings.Replace(loading(time.Hour), "LoadingWeights", "Compiling", 1),
			want: routing.State{Phase: routing.Asleep, Message: "shard 3/8", Substage: "Compiling"},
		},
		"no longer loading": {
			obj:  strings.Replace(loading(time.Hour), "Loading,", "Pending,", 1),
			want: routing.State{Phase: routing.Asleep, Message: "shard 3/8", Substage: "LoadingWeights"},
		},
		"progress at no time": {
			obj:  "status: {phase: Loading, loadingSubstage: LoadingWeights, loadingProgressAt: lately}",
			want: routing.State{Phase: routing.Asleep, Substage: "LoadingWeights"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := model(t, tt.obj)
			if tr.traits.State != tt.want {
				t.Errorf("got  %+v\nwant %+v", tr.traits.State, tt.want)
			}
			if want := testNow.Add(tt.due); tt.due != 0 && !tr.due.Equal(want) || tt.due == 0 && !tr.due.IsZero() {
				t.Errorf("due %v, want %v from now", tr.due, tt.due)
			}
		})
	}
}

func TestDeploymentState(t *testing.T) {
	const ready = `status: {conditions: [{type: Ready, status: "True"}], phase: Failed, message: broken}`
	const unready = `status: {conditions: [{type: Ready, status: "False"}], phase: Failed, message: broken}`
	for name, tt := range map[string]struct {
		obj  string
		want routing.Phase
	}{
		"ready":                  {"{spec: {replicas: 1}, " + ready + "}", routing.Serving},
		"ready by default":       {"{" + ready + "}", routing.Serving},
		"ready without replicas": {"{spec: {replicas: 0}, " + ready + "}", routing.Asleep},
		"unready":                {"{spec: {replicas: 1}}", routing.Asleep},
		"failed":                 {"{spec: {replicas: 1}, " + unready + "}", routing.Failed},
		"failed before":          {"{spec: {replicas: 0}, " + unready + "}", routing.Asleep},
		"never parked":           {"{spec: {replicas: 0, litellm: {enabled: false}}}", routing.Asleep},
		"odd replicas":           {"{spec: {replicas: many}, " + ready + "}", routing.Serving},
	} {
		t.Run(name, func(t *testing.T) {
			if got := deployment(t, tt.obj, nowhere()).traits.State.Phase; got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestGPUGroupHoldsAModelBack(t *testing.T) {
	const obj = `{spec: {replicas: 1, gpuGroupRef: g, coldStartTimeoutSeconds: 90}, status: {conditions: [{type: Ready, status: "True"}]}}`
	for name, tt := range map[string]struct {
		active string
		exists bool
		want   routing.Phase
		cold   time.Duration
	}{
		"active":         {"m", true, routing.Serving, 180 * time.Second},
		"another active": {"n", true, routing.Asleep, 180 * time.Second},
		"none active":    {"", true, routing.Asleep, 180 * time.Second},
		"no such group":  {"", false, routing.Serving, 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			in := nowhere()
			in.activeModel = func(group string) (string, bool) { return tt.active, tt.exists && group == "g" }
			tr := deployment(t, obj, in)
			if got := tr.traits.State.Phase; got != tt.want || tr.traits.ColdStart != tt.cold {
				t.Errorf("got %v and %v, want %v and %v", got, tr.traits.ColdStart, tt.want, tt.cold)
			}
		})
	}
}

func TestAnnotations(t *testing.T) {
	for name, tt := range map[string]struct {
		annotations string
		want        routing.Traits
		warning     string
	}{
		"none": {annotations: "{}"},
		"all": {
			annotations: `{flexinfer.ai/routing: " prefix ", flexinfer.ai/routing-options: "load_factor=2,load_floor=3",
				flexinfer.ai/serve-paths: "/v1/chat, ,/v1/embeddings,", flexinfer.ai/route-priority: "-5"}`,
			want: routing.Traits{Strategy: "prefix", Options: "load_factor=2,load_floor=3", ServePaths: []string{"/v1/chat", "/v1/embeddings"}, Priority: -5},
		},
		"blank":                {annotations: `{flexinfer.ai/serve-paths: " , ", flexinfer.ai/route-priority: " "}`},
		"priority is a word":   {annotations: `{flexinfer.ai/route-priority: high}`, warning: `is "high"; write a whole number`},
		"priority is too high": {annotations: `{flexinfer.ai/route-priority: "99999999999"}`, warning: "write a whole number"},
		"annotations are not":  {annotations: "7"},
		"odd annotation":       {annotations: "{flexinfer.ai/routing: 7}"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, tr := range []*translation{
				model(t, "metadata: {annotations: "+tt.annotations+"}"),
				deployment(t, "metadata: {annotations: "+tt.annotations+"}", nowhere()),
			} {
				got := routing.Traits{
					Strategy: tr.traits.Strategy, Options: tr.traits.Options,
					ServePaths: tr.traits.ServePaths, Priority: tr.traits.Priority,
				}
				if !reflect.DeepEqual(got, tt.want) {
					t.Errorf("%s: got %+v, want %+v", tr.ref.Kind, got, tt.want)
				}
				if all := strings.Join(tr.warnings, "\n"); !strings.Contains(all, tt.warning) || (all == "") != (tt.warning == "") {
					t.Errorf("%s: warnings %q, want %q", tr.ref.Kind, all, tt.warning)
				}
			}
		})
	}
}

func TestUpstreamModel(t *testing.T) {
	for name, tt := range map[string]struct{ spec, want string }{
		"Hugging Face":     {`{source: "HF://Qwen/Qwen3-8B"}`, "Qwen/Qwen3-8B"},
		"Ollama":           {`{source: "ollama://llama3:8b"}`, "llama3:8b"},
		"file":             {`{source: "file:///models/a.gguf"}`, "/models/a.gguf"},
		"claim":            {`{source: "pvc://claim/a/b.gguf"}`, "a/b.gguf"},
		"claim alone":      {`{source: "pvc://claim"}`, ""},
		"another scheme":   {`{source: "s3://bucket/a"}`, "s3://bucket/a"},
		"no scheme":        {`{source: "a"}`, "a"},
		"served name":      {`{source: "HF://a/b", config: {servedModelName: c}}`, "c"},
		"empty":            {`{source: "HF://a/b", config: {servedModelName: ""}}`, "a/b"},
		"odd served name":  {`{source: "HF://a/b", config: {servedModelName: [c]}}`, "a/b"},
		"LiteLLM's is not": {`{source: "HF://a/b", litellm: {servedModelName: c}}`, "a/b"},
		"no string":        {`{source: 7}`, ""},
		"too long":         {`{source: ` + strings.Repeat("x", maxName+1) + `}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := model(t, "spec: "+tt.spec).traits.Service.Model; got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	in, asked := nowhere(), ""
	in.endpoints = func(model string) ([]routing.Spec, []string) { asked = model; return nil, nil }
	if got := deployment(t, "spec: {model: 'llama3:8b'}", in).traits.Service.Model; got != "llama3:8b" || asked != got {
		t.Errorf("a ModelDeployment's is %q, its endpoints' %q", got, asked)
	}
}

func TestServiceAddress(t *testing.T) {
	port := func(ports ...corev1.ServicePort) *service {
		return readService(&corev1.Service{Spec: corev1.ServiceSpec{Ports: ports}})
	}
	for name, tt := range map[string]struct {
		backend string
		service *service
		last    int32
		want    string
	}{
		"named http":     {"ollama", port(corev1.ServicePort{Port: 9}, corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Port: 7}), 0, "80"},
		"first":          {"ollama", port(corev1.ServicePort{Name: "a", Port: 81}, corev1.ServicePort{Name: "b", Port: 82}), 0, "81"},
		"no ports":       {"ollama", port(), 83, "83"},
		"no Service":     {"ollama", nil, 84, "84"},
		"Ollama":         {"ollama", nil, 0, "11434"},
		"llama.cpp":      {"llama.cpp", port(), 0, "8080"},
		"ComfyUI":        {"comfyui", nil, 0, "8188"},
		"vLLM":           {"vllm", nil, 0, "8000"},
		"never heard of": {"x", nil, 0, "8000"},
	} {
		t.Run(name, func(t *testing.T) {
			in := nowhere()
			in.service, in.lastPort = tt.service, tt.last
			s := deployment(t, "spec: {backend: "+tt.backend+"}", in).traits.Service
			if want := "http://m.models.svc.cluster.local:" + tt.want; s.URL() != want {
				t.Errorf("got %s, want %s", s.URL(), want)
			}
		})
	}
}

func TestGroups(t *testing.T) {
	for name, tt := range map[string]struct {
		annotations map[string]string
		want        []string
	}{
		"none":             {nil, nil},
		"static":           {map[string]string{annotationServiceLabels: " chat,,Chat, chat "}, []string{"chat", "Chat"}},
		"managed":          {map[string]string{annotationServiceLabels: "a", annotationActiveServices: "b"}, []string{"b"}},
		"managed inactive": {map[string]string{annotationServiceLabels: "a", annotationActiveServices: ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := readService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: tt.annotations}}).groups
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestContextWindow(t *testing.T) {
	for config, want := range map[string]int{
		"{}": 0,
		"{contextSize: 4, maxModelLen: 1, maxTotalSeqLength: 2, contextWindowSize: 3}": 1,
		"{contextSize: 4, contextWindowSize: 3}":                                       3,
		"{maxModelLen: 0, contextSize: 4}":                                             4,
		"{maxModelLen: -1, contextSize: 4.0}":                                          4,
		`{maxModelLen: "8192"}`:                                                        0,
		"{maxModelLen: 1.5}":                                                           0,
		"{maxModelLen: 1e300, contextSize: 99999999999}":                               0,
		"{maxModelLen: [8192], contextSize: null}":                                     0,
	} {
		if got := model(t, "spec: {config: "+config+"}").traits.ContextWindow; got != want {
			t.Errorf("%s: got %d, want %d", config, got, want)
		}
	}
	if got := deployment(t, "spec: {config: {maxModelLen: 9}}", nowhere()).traits.ContextWindow; got != 0 {
		t.Errorf("a ModelDeployment has %d", got)
	}
}

func TestColdStart(t *testing.T) {
	for spec, want := range map[string]time.Duration{
		"{serverless: {coldStartTimeout: 3m}}":  3 * time.Minute,
		"{serverless: {coldStartTimeout: 1ns}}": time.Second,
		"{serverless: {coldStartTimeout: 1s}}":  time.Second,
		"{serverless: {coldStartTimeout: 180}}": 0,
		"{serverless: {coldStartTimeout: -3m}}": 0,
		"{serverless: [3m]}":                    0,
	} {
		if got := model(t, "spec: "+spec).traits.ColdStart; got != want {
			t.Errorf("%s: got %s, want %s", spec, got, want)
		}
	}
	if got := deployment(t, "spec: {coldStartTimeoutSeconds: 75}", nowhere()).traits.ColdStart; got != 75*time.Second {
		t.Errorf("a ModelDeployment has %s", got)
	}
}

func TestShortColdStartIsSaid(t *testing.T) {
	check(t, "warnings", model(t, "spec: {serverless: {coldStartTimeout: 20ms}}").warnings, []string{
		"Model models/m: spec.serverless.coldStartTimeout is 20ms; write a time from 1s on; it counts as that",
	})
}

// Annotations that are too long are as unknown ones, and are not handed on whole.
func TestLongAnnotations(t *testing.T) {
	long := strings.Repeat("prefix,", 30_000)
	m := model(t, `metadata: {annotations: {flexinfer.ai/routing: "`+long+`", flexinfer.ai/routing-options: "`+long+`"}}`)
	for value, most := range map[string]int{m.traits.Strategy: 64, m.traits.Options: 1024} {
		if len(value) > most || len(value) < most-8 || !strings.HasSuffix(value, "…") {
			t.Errorf("%d bytes of %d: %q", len(value), most, value)
		}
	}
	check(t, "warnings", m.warnings, []string{
		"Model models/m: annotation flexinfer.ai/routing has 210000 bytes; write at most 64; calls go to the Service",
		"Model models/m: annotation flexinfer.ai/routing-options has 210000 bytes; write at most 1024; calls go to the Service",
	})
}

// A swap takes twice as long as the longest of what it could be, whatever the
// model says of itself.
func TestSwapTime(t *testing.T) {
	for _, tt := range []struct {
		spec        string
		usual, want time.Duration
	}{
		{"", 0, 120 * time.Second},
		{"", 30 * time.Second, 120 * time.Second},
		{"", 4 * time.Minute, 8 * time.Minute},
		{"coldStartTimeoutSeconds: 75", 4 * time.Minute, 8 * time.Minute},
		{"coldStartTimeoutSeconds: 300", 4 * time.Minute, 10 * time.Minute},
	} {
		in := nowhere()
		in.coldStart = tt.usual
		in.activeModel = func(string) (string, bool) { return "other", true }
		if got := deployment(t, "spec: {gpuGroupRef: g, "+tt.spec+"}", in).traits.ColdStart; got != tt.want {
			t.Errorf("%q, usually %s: got %s, want %s", tt.spec, tt.usual, got, tt.want)
		}
		// Where no group has a say, it is what the model says.
		if got := deployment(t, "spec: {gpuGroupRef: g, coldStartTimeoutSeconds: 9}", nowhere()).traits.ColdStart; got != 9*time.Second {
			t.Errorf("without a group: %s", got)
		}
	}
}

func TestMetadata(t *testing.T) {
	m := model(t, `
metadata: {creationTimestamp: "2026-07-01T12:00:00Z"}
spec: {backend: vllm, source: "HF://a/b", gpu: {shared: g, priority: 50}, serviceLabels: [chat, 7], litellm: {servedModelName: s, aliases: [a]}}
status: {phase: Ready}`)
	want := map[string]any{
		"backend": "vllm", "source": "HF://a/b", "ready": true, "version": "v1alpha2", "phase": "Ready", "gpu_shared": "g",
		"gpu_priority": 50, "served_model_name": "s", "aliases": []string{"a"}, "service_labels": []string{"chat"},
	}
	if !reflect.DeepEqual(m.traits.Metadata, want) || m.traits.Created != testNow.Unix() {
		t.Errorf("got %v, created %d", m.traits.Metadata, m.traits.Created)
	}
	d := deployment(t, `{spec: {backend: ollama, model: x, replicas: 0, gpuGroupRef: g, litellm: {aliases: [a]}}, status: {phase: Idle}}`, nowhere())
	want = map[string]any{
		"backend": "ollama", "ready": false, "scaled": false, "version": "v1alpha1", "deprecated": true, "phase": "Idle",
		"gpu_group": "g", "aliases": []string{"a"},
	}
	if !reflect.DeepEqual(d.traits.Metadata, want) || len(d.aliases) != 0 {
		t.Errorf("got %v, aliases %q", d.traits.Metadata, d.aliases)
	}
}

// Whatever stands where something else is expected counts as absent.
func TestWrongTypes(t *testing.T) {
	whole := object(t, `
metadata: {annotations: {flexinfer.ai/routing: prefix}, creationTimestamp: x}
spec:
  backend: vllm
  source: HF://a/b
  model: m
  replicas: 1
  gpuGroupRef: g
  coldStartTimeoutSeconds: 60
  serviceLabels: [a]
  config: {servedModelName: a, maxModelLen: 1}
  serverless: {coldStartTimeout: 1s}
  gpu: {shared: a, priority: 1}
  litellm: {enabled: true, servedModelName: a, aliases: [a]}
  adapterName: a
  modelRef: b
status: {phase: Loading, message: a, loadingSubstage: LoadingWeights, loadingProgressAt: x, conditions: [{type: Ready, status: "True"}], sharedGroup: {preemptedBy: x}, activeModel: m}
`)
	odd := []any{nil, "text", int64(-7), 1e300, true, []any{nil, int64(1), []any{}}, map[string]any{"enabled": int64(0)}}
	var spoil func(at map[string]any, check func())
	spoil = func(at map[string]any, check func()) {
		for k, v := range maps.Clone(at) {
			for _, o := range odd {
				at[k] = o
				check()
			}
			at[k] = v
			if inner, ok := v.(map[string]any); ok {
				spoil(inner, check)
			}
		}
	}
	spoil(whole, func() {
		s := newTestSet(t)
		for _, kind := range []string{KindModel, KindModelDeployment} {
			s.setObject(Ref{Group: "ai.flexinfer", Kind: kind, Namespace: "models", Name: kind}, whole)
		}
		s.setAdapter(Ref{Group: "ai.flexinfer", Namespace: "models", Name: "a"}, whole)
		s.setGPUGroup(Ref{Group: "ai.flexinfer", Namespace: "models", Name: "g"}, whole)
		if got := s.rebuild(testNow).models; len(got) != 2 {
			t.Errorf("%d models", len(got))
		}
	})
}

func TestOneLine(t *testing.T) {
	if got := oneLine(" a\r\n\tb\x00c\u2028d "); got != "a b c d" {
		t.Errorf("got %q", got)
	}
	long := oneLine(strings.Repeat("ü", 10_000))
	if len(long) > maxMessage || len(long) < maxMessage-4 || !utf8.ValidString(long) || !strings.HasSuffix(long, "ü…") {
		t.Errorf("%d bytes: %.20q", len(long), long)
	}
}
