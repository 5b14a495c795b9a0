package k8sdiscovery

import (
	"encoding/json"
	"slices"
	"strings"
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

// Some addresses are no pod's, whoever says so.
func TestAddressesOfNoPod(t *testing.T) {
	for _, address := range []string{
		"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.9.9.9", "169.254.169.254", "224.0.0.1", "239.1.1.1", "255.255.255.255",
		"::", "::1", "fe80::1", "febf::1", "fe80::1%eth0", "fd00::1%eth0", "ff02::1", "ff0e::1",
		"::ffff:0.0.0.0", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:224.0.0.1",
	} {
		p := new(corev1.Pod)
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"p","uid":"u1"},"status":{"podIP":"`+address+`","podIPs":[{"ip":"`+address+`"},{"ip":"10.0.0.1"}],`+isReady+`}}`), p); err != nil {
			t.Fatal(err)
		}
		specs, warnings := podBuilder(8000, Attributes{})([]metav1.Object{p})
		if got := said(specs); got != "u1@10.0.0.1:8000" || len(warnings) == 0 || !strings.Contains(warnings[0], "pod p has the address") {
			t.Errorf("a pod at %s: %s; warnings %q", address, got, warnings)
		}
		s := sliceOf(t, "qwen-a", `{"endpoints":[`+pod("u1", address, "")+`,`+pod("u2", "10.0.0.2", "")+`],`+http8000+`}`)
		specs, warnings = sliceBuilder("", Attributes{})([]metav1.Object{s})
		if got := said(specs); got != "u2@10.0.0.2:8000" || len(warnings) != 1 || !strings.Contains(warnings[0], "EndpointSlices of qwen hold the address") {
			t.Errorf("a slice with %s: %s; warnings %q", address, got, warnings)
		}
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
