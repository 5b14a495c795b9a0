package k8sdiscovery

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// newTestSet returns a set that prefers the namespace models.
func newTestSet(t testing.TB) *resourceSet {
	t.Helper()
	s := newResourceSet()
	s.groups, s.stalledLoad = apiGroups, defaultStalledLoad
	s.rank = func(namespace string) int { return slices.Index([]string{"models", "other"}, namespace) }
	s.endpoints = func(types.NamespacedName, string, string) ([]routing.Spec, []string) { return nil, nil }
	return s
}

// at returns the reference that group/kind/namespace/name stands for, with the
// first letters of group and kind.
func at(text string) Ref {
	p := strings.Split(text, "/")
	return Ref{
		Group:     map[string]string{"a": "ai.flexinfer", "i": "inference.flexinfer.ai"}[p[0]],
		Kind:      map[string]string{"m": KindModel, "d": KindModelDeployment}[p[1]],
		Namespace: p[2], Name: p[3],
	}
}

func TestNames(t *testing.T) {
	type names map[string][]string // aliases and adapters, with a + before
	for name, tt := range map[string]struct {
		objects  map[string]string
		adapters map[string]string
		sources  map[string]string // of each name: who has it, by spec.source or spec.model
		want     names
		warnings []string
	}{
		"a Model before a ModelDeployment": {
			objects: map[string]string{"a/d/models/x": "{model: old}", "a/m/models/x": "{source: new}", "a/d/models/y": "{model: 'y'}"},
			sources: map[string]string{"x": "new", "y": "y"},
			want:    names{"x": nil, "y": nil},
		},
		"a Model elsewhere before a ModelDeployment": {
			objects:  map[string]string{"a/d/models/x": "{model: old}", "a/m/other/x": "{source: new}"},
			sources:  map[string]string{"x": "new"},
			want:     names{"x": nil},
			warnings: []string{"ModelDeployment models/x of ai.flexinfer is left out: the name is taken by Model other/x of ai.flexinfer"},
		},
		"the namespace that is configured first": {
			objects:  map[string]string{"a/m/other/x": "{source: second}", "i/m/models/x": "{source: first}"},
			sources:  map[string]string{"x": "first"},
			want:     names{"x": nil},
			warnings: []string{"Model other/x of ai.flexinfer is left out: the name is taken by Model models/x of inference.flexinfer.ai"},
		},
		"the first API group": {
			objects:  map[string]string{"a/m/models/x": "{source: first}", "i/m/models/x": "{source: second}"},
			sources:  map[string]string{"x": "first"},
			want:     names{"x": nil},
			warnings: []string{"Model models/x of inference.flexinfer.ai is left out: the name is taken by Model models/x of ai.flexinfer"},
		},
		"aliases": {
			objects: map[string]string{
				"a/m/models/x": "{litellm: {servedModelName: ' s ', aliases: [x, a, '', a, 7, \"b\\u0001\"]}}",
				"a/m/models/y": "{litellm: {aliases: [a, c]}}",
				"a/d/models/z": "{litellm: {aliases: [d]}}",
			},
			want: names{"x": {"s", "a"}, "y": {"c"}, "z": nil},
			warnings: []string{
				`Model models/x: alias "b\x01" is left out; write at most 256 bytes of text without control characters, other than _unknown`,
				`alias "a" of model y is left out: model x has it`,
			},
		},
		"aliases and adapters of the namespace that is configured first": {
			objects: map[string]string{
				"a/m/other/a":  "{litellm: {aliases: [taken, free, _unknown]}}",
				"a/m/models/x": "{litellm: {aliases: [taken]}}",
			},
			adapters: map[string]string{
				"a//other/1":  "{adapterName: l, modelRef: a}",
				"a//models/2": "{adapterName: l, modelRef: x}",
				"a//models/3": "{adapterName: _unknown, modelRef: x}",
			},
			want: names{"a": {"free"}, "x": {"taken", "+l"}},
			warnings: []string{
				`LoRAAdapter models/3 is left out: its adapterName is "_unknown"; write at most 256 bytes of text without control characters, other than _unknown`,
				"LoRAAdapter other/1 is left out: model x has an adapter l",
				`Model other/a: alias "_unknown" is left out; write at most 256 bytes of text without control characters, other than _unknown`,
				`alias "taken" of model a is left out: model x has it`,
			},
		},
		"a parked model has none": {
			objects: map[string]string{"a/m/models/x": "{litellm: {enabled: false, aliases: [a]}}", "a/m/models/y": "{litellm: {aliases: [a]}}"},
			want:    names{"x": nil, "y": {"a"}},
		},
		"adapters": {
			objects: map[string]string{"a/m/models/x": "{}", "a/m/models/y": "{}", "a/d/models/z": "{}"},
			adapters: map[string]string{
				"a//models/1": "{adapterName: l, modelRef: x}",
				"i//models/1": "{adapterName: l, modelRef: x}",
				"a//models/2": "{adapterName: l, modelRef: 'y'}",
				"a//models/3": "{adapterName: 'y', modelRef: x}",
				"a//models/4": "{adapterName: k, modelRef: nobody}",
				"a//models/5": "{modelRef: x}",
				"a//other/6":  "{adapterName: n, modelRef: x}",
				"a//models/7": "{adapterName: k, modelRef: z}",
			},
			want: names{"x": {"+l"}, "y": nil, "z": {"+k"}},
			warnings: []string{
				"LoRAAdapter models/2 is left out: model x has an adapter l",
				"LoRAAdapter models/3 is left out: y is the name of a model",
				"LoRAAdapter models/5 is left out: write its adapterName",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestSet(t)
			for ref, spec := range tt.objects {
				s.setObject(at(ref), object(t, "spec: "+spec))
			}
			for ref, spec := range tt.adapters {
				s.setAdapter(at(ref), object(t, "spec: "+spec))
			}
			sum := s.rebuild(testNow)
			got := make(names)
			for _, m := range sum.models {
				got[m.Name] = m.Aliases
				for _, a := range m.Adapters {
					got[m.Name] = append(got[m.Name], "+"+a)
				}
				if want, ok := tt.sources[m.Name]; ok && m.Traits.Service.Model != want {
					t.Errorf("%s is that of %s", m.Name, m.Traits.Service.Model)
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if !slices.Equal(sum.warnings, tt.warnings) {
				t.Errorf("warnings %q, want %q", sum.warnings, tt.warnings)
			}
			if again := s.rebuild(testNow).warnings; len(again) > 0 {
				t.Errorf("warned again: %q", again)
			}
		})
	}
}

func TestWarningReturnsWithItsCause(t *testing.T) {
	s := newTestSet(t)
	bad := object(t, "metadata: {annotations: {flexinfer.ai/route-priority: x}}")
	for i, step := range []struct {
		obj  map[string]any
		want int
	}{{bad, 1}, {bad, 0}, {object(t, "{}"), 0}, {bad, 1}, {nil, 0}, {bad, 1}} {
		s.setObject(at("a/m/models/x"), step.obj)
		if got := s.rebuild(testNow).warnings; len(got) != step.want {
			t.Errorf("step %d: warnings %q, want %d", i, got, step.want)
		}
	}
}

// What has not changed stays the very same, and no change is said.
func TestSameStaysTheSame(t *testing.T) {
	s := newTestSet(t)
	ready := map[types.NamespacedName]bool{}
	s.endpoints = func(key types.NamespacedName, port, model string) ([]routing.Spec, []string) {
		if !ready[key] {
			return nil, nil
		}
		return []routing.Spec{{ID: key.Name, Scheme: "http", Address: "10.0.0.1:" + port, Model: model}}, nil
	}
	for _, name := range []string{"x", "y"} {
		ready[types.NamespacedName{Namespace: "models", Name: name}] = true
		s.setService(types.NamespacedName{Namespace: "models", Name: name}, &service{port: 80, portName: "http", groups: []string{"g"}})
		s.setObject(at("a/m/models/"+name), object(t, "{spec: {source: a}, status: {phase: Ready}}"))
	}
	before := s.rebuild(testNow)
	if !before.changed || len(before.models) != 2 {
		t.Fatalf("got %+v", before)
	}

	// A time of last use makes no difference.
	s.setObject(at("a/m/models/x"), object(t, "{spec: {source: a}, status: {phase: Ready, lastActiveTime: '2026-07-01T12:00:00Z'}}"))
	s.touch(types.NamespacedName{Namespace: "models", Name: "y"})
	if sum := s.rebuild(testNow); sum.changed || &sum.models[0] != &before.models[0] {
		t.Error("something has changed")
	}

	s.setObject(at("a/m/models/x"), object(t, "{spec: {source: a}, status: {phase: Idle}}"))
	after := s.rebuild(testNow)
	if !after.changed {
		t.Fatal("nothing has changed")
	}
	for i, same := range []bool{false, true} {
		a, b := before.models[i], after.models[i]
		if (a.Traits == b.Traits) != same {
			t.Errorf("traits of %s: the same is %v", a.Name, !same)
		}
		if &a.Endpoints[0] != &b.Endpoints[0] {
			t.Errorf("endpoints of %s are others", a.Name)
		}
	}
	if before.models[0].Traits.State.Phase != routing.Serving {
		t.Error("what was given out has changed")
	}

	ready[types.NamespacedName{Namespace: "models", Name: "y"}] = false
	s.touch(types.NamespacedName{Namespace: "models", Name: "y"})
	if last := s.rebuild(testNow); !last.changed || len(last.models[1].Endpoints) != 0 || last.models[1].Traits != after.models[1].Traits {
		t.Errorf("without endpoints: %+v", last)
	}
}

func TestLastSeenPort(t *testing.T) {
	s, key := newTestSet(t), types.NamespacedName{Namespace: "models", Name: "x"}
	address := func() string { return s.rebuild(testNow).models[0].Traits.Service.Address }
	s.setObject(at("a/m/models/x"), object(t, "spec: {backend: ollama}"))
	s.setService(key, &service{port: 80})
	if got := address(); !strings.HasSuffix(got, ":80") {
		t.Errorf("with a Service: %s", got)
	}
	s.setService(key, nil)
	if got := address(); !strings.HasSuffix(got, ":80") {
		t.Errorf("without it: %s", got)
	}
	s.setObject(at("a/m/models/x"), nil)
	s.rebuild(testNow)
	s.setObject(at("a/m/models/x"), object(t, "spec: {backend: ollama}"))
	if got := address(); !strings.HasSuffix(got, ":11434") {
		t.Errorf("another model of the same name: %s", got)
	}
}

func TestGPUGroupTouchesItsModels(t *testing.T) {
	s := newTestSet(t)
	s.endpoints = func(types.NamespacedName, string, string) ([]routing.Spec, []string) {
		return []routing.Spec{{Scheme: "http", Address: "10.0.0.1:8000"}}, nil
	}
	phases := func() (phases []routing.Phase) {
		for _, m := range s.rebuild(testNow).models {
			phases = append(phases, m.Traits.State.Phase)
		}
		return phases
	}
	const obj = `{spec: {gpuGroupRef: g}, status: {conditions: [{type: Ready, status: "True"}]}}`
	s.setObject(at("a/d/models/x"), object(t, obj))
	s.setObject(at("a/d/models/y"), object(t, obj))
	for i, step := range []struct {
		group string
		want  []routing.Phase
	}{
		{"", []routing.Phase{routing.Serving, routing.Serving}},
		{"status: {activeModel: x}", []routing.Phase{routing.Serving, routing.Asleep}},
		{"status: {activeModel: 'y'}", []routing.Phase{routing.Asleep, routing.Serving}},
		{"status: {}", []routing.Phase{routing.Asleep, routing.Asleep}},
		{"", []routing.Phase{routing.Serving, routing.Serving}},
	} {
		var group map[string]any
		if step.group != "" {
			group = object(t, step.group)
		}
		s.setGPUGroup(at("a//models/g"), group)
		if got := phases(); !slices.Equal(got, step.want) {
			t.Errorf("step %d: got %v, want %v", i, got, step.want)
		}
	}
}

func TestStalledByTheClock(t *testing.T) {
	s := newTestSet(t)
	loading := object(t, fmt.Sprintf("status: {phase: Loading, loadingSubstage: LoadingWeights, loadingProgressAt: %q}", testNow.Format(time.RFC3339)))
	s.setObject(at("a/m/models/x"), loading)
	sum := s.rebuild(testNow)
	if want := testNow.Add(defaultStalledLoad); !sum.due.Equal(want) || len(sum.stalled) != 0 {
		t.Fatalf("due %v, want %v; stalled %v", sum.due, want, sum.stalled)
	}
	sum = s.rebuild(sum.due)
	if len(sum.stalled) != 1 || !sum.changed || sum.models[0].Traits.State.Phase != routing.Stalled || !sum.due.IsZero() {
		t.Fatalf("when it is due: %+v", sum)
	}
	s.setObject(at("a/m/models/x"), loading)
	if sum = s.rebuild(testNow.Add(time.Hour)); len(sum.stalled) != 0 {
		t.Error("stalled twice")
	}
}

// A model that is ready before its endpoints are seen goes on sleeping for a
// moment; one that loses them, or has none at the start, goes to its Service.
func TestReadyBeforeItsEndpoints(t *testing.T) {
	s := newTestSet(t)
	found := false
	s.endpoints = func(types.NamespacedName, string, string) ([]routing.Spec, []string) {
		if !found {
			return nil, nil
		}
		return []routing.Spec{{Scheme: "http", Address: "10.0.0.1:8000"}}, nil
	}
	now := testNow
	step := func(what, phase string, want routing.Phase) summary {
		t.Helper()
		s.setObject(at("a/m/models/x"), object(t, "status: {phase: "+phase+"}"))
		sum := s.rebuild(now)
		if got := sum.models[0].Traits.State.Phase; got != want {
			t.Errorf("%s: it is %s, want %s", what, got, want)
		}
		return sum
	}
	step("at the start", "Ready", routing.Serving)
	step("asleep", "Idle", routing.Asleep)
	if sum := step("ready", "Ready", routing.Asleep); !sum.due.Equal(now.Add(endpointsWithin)) {
		t.Errorf("due %v", sum.due)
	}
	now = now.Add(endpointsWithin / 2)
	step("still", "Ready", routing.Asleep)
	found = true
	if sum := step("with endpoints", "Ready", routing.Serving); !sum.due.IsZero() {
		t.Errorf("due %v", sum.due)
	}
	found = false
	step("when they are gone", "Ready", routing.Serving)
	step("asleep again", "Idle", routing.Asleep)
	step("ready again", "Ready", routing.Asleep)
	now = now.Add(endpointsWithin)
	step("after a while", "Ready", routing.Serving)
}

func BenchmarkChangeOfOneModel(b *testing.B) {
	s := newTestSet(b)
	obj := func(phase string) map[string]any {
		return map[string]any{
			"spec":   map[string]any{"backend": "vllm", "source": "HF://a/b", "litellm": map[string]any{"aliases": []any{}}},
			"status": map[string]any{"phase": phase},
		}
	}
	for i := range 1000 {
		s.setObject(at(fmt.Sprintf("a/m/models/m%04d", i)), obj("Ready"))
	}
	s.rebuild(testNow)
	phases := []string{"Idle", "Ready"}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.setObject(at("a/m/models/m0500"), obj(phases[i%2]))
		if !s.rebuild(testNow).changed {
			b.Fatal("nothing has changed")
		}
	}
}
