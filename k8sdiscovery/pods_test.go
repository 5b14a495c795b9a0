package k8sdiscovery

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const isReady = `"phase":"Running","conditions":[{"type":"Initialized","status":"True"},{"type":"Ready","status":"True"}]`

func TestPods(t *testing.T) {
	const deleted = `,"deletionTimestamp":"2026-01-01T00:00:00Z"`
	for _, tt := range []struct {
		name string
		pods []string // metadata and status
		want string
	}{
		{name: "none"},
		{name: "ready", pods: []string{`{"metadata":{"uid":"u1"},"status":{"podIP":"10.0.0.1",` + isReady + `}}`}, want: "u1@10.0.0.1:8000"},
		{name: "not ready", pods: []string{`{"metadata":{"uid":"u1"},"status":{"podIP":"10.0.0.1","phase":"Running","conditions":[{"type":"Ready","status":"False"}]}}`}},
		{name: "unknown", pods: []string{`{"metadata":{"uid":"u1"},"status":{"podIP":"10.0.0.1","phase":"Pending"}}`}},
		{name: "no address", pods: []string{`{"metadata":{"uid":"u1"},"status":{` + isReady + `}}`}},
		{name: "over", pods: []string{`{"metadata":{"uid":"u1"},"status":{"podIP":"10.0.0.1","phase":"Failed","conditions":[{"type":"Ready","status":"True"}]}}`}},
		{
			name: "dual stack",
			pods: []string{`{"metadata":{"uid":"u1"},"status":{"podIP":"fd00::1","podIPs":[{"ip":"fd00::1"},{"ip":"10.0.0.1"}],` + isReady + `}}`},
			want: "u1@10.0.0.1:8000",
		},
		{name: "IPv6", pods: []string{`{"metadata":{"uid":"u1"},"status":{"podIP":"fd00::1",` + isReady + `}}`}, want: "u1@[fd00::1]:8000"},
		{
			name: "one is deleted",
			pods: []string{
				`{"metadata":{"uid":"u1"` + deleted + `},"status":{"podIP":"10.0.0.1",` + isReady + `}}`,
				`{"metadata":{"uid":"u2"},"status":{"podIP":"10.0.0.2",` + isReady + `}}`,
			},
			want: "u2@10.0.0.2:8000",
		},
		{
			name: "all are deleted",
			pods: []string{
				`{"metadata":{"uid":"u1"` + deleted + `},"status":{"podIP":"10.0.0.1",` + isReady + `}}`,
				`{"metadata":{"uid":"u2"` + deleted + `},"status":{"podIP":"10.0.0.2","phase":"Running"}}`,
			},
			want: "u1@10.0.0.1:8000",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var objects []metav1.Object
			for _, text := range tt.pods {
				p := new(corev1.Pod)
				if err := json.Unmarshal([]byte(text), p); err != nil {
					t.Fatal(err)
				}
				objects = append(objects, kinds[pods].trimmed(p))
			}
			specs, _ := podBuilder(8000, Attributes{})(objects)
			if got := said(specs); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			slices.Reverse(objects)
			if again, _ := podBuilder(8000, Attributes{})(objects); said(again) != tt.want {
				t.Errorf("in another order: %s", said(again))
			}
		})
	}
}

func TestPodLabels(t *testing.T) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p1", UID: "u1", Labels: map[string]string{corev1.LabelTopologyZone: "z1"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "engine"}}},
		Status: corev1.PodStatus{PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
	trimmed := kinds[pods].trimmed(p).(*corev1.Pod)
	if len(trimmed.Spec.Containers) != 0 || len(trimmed.Status.Conditions) != 1 {
		t.Errorf("kept what nobody reads: %+v", trimmed)
	}
	specs, _ := podBuilder(8000, Attributes{})([]metav1.Object{trimmed})
	if l := specs[0].Labels; l["pod"] != "p1" || l["node"] != "n1" || l["zone"] != "z1" || len(l) != 3 {
		t.Errorf("labels: %v", l)
	}
}
