package k8sdiscovery

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// sliceOf returns the EndpointSlice with this name, and what else JSON says of
// it, as the API server would send it and the feed hands it on.
func sliceOf(t *testing.T, name, rest string) *discoveryv1.EndpointSlice {
	t.Helper()
	s := new(discoveryv1.EndpointSlice)
	if err := json.Unmarshal([]byte(rest), s); err != nil {
		t.Fatalf("%s: %v", rest, err)
	}
	s.Name, s.Namespace, s.Labels = name, "models", map[string]string{discoveryv1.LabelServiceName: "qwen"}
	if s.AddressType == "" {
		s.AddressType = discoveryv1.AddressTypeIPv4
	}
	return kinds[endpointSlices].trimmed(s).(*discoveryv1.EndpointSlice)
}

// said returns endpoints as words: UID, scheme where it is not http, and
// address. An identity that has another address is said whole.
func said(specs []routing.Spec) string {
	var words []string
	for _, s := range specs {
		id := s.ID
		if host, _, err := net.SplitHostPort(s.Address); err == nil {
			id = strings.TrimSuffix(id, "/"+host)
		}
		word := id + "@" + s.Address
		if s.Scheme != "http" {
			word = id + "@" + s.URL()
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

const http8000 = `"ports":[{"name":"http","port":8000}]`

// pod returns an endpoint that is a pod, and what else there is to say of it.
func pod(uid, address, rest string) string {
	if rest != "" {
		rest = "," + rest
	}
	return `{"addresses":["` + address + `"],"targetRef":{"kind":"Pod","name":"pod-` + uid + `","uid":"` + uid + `"}` + rest + `}`
}

func TestSlices(t *testing.T) {
	for _, tt := range []struct {
		name   string
		port   string
		slices []string
		want   string
		warns  string // part of each warning; "" if there is none
	}{
		{name: "no slices"},
		{name: "null endpoints", slices: []string{`{"endpoints":null,` + http8000 + `}`}},
		{name: "an empty slice has no ports", slices: []string{`{"endpoints":[]}`}},
		{
			name: "union without doubles",
			slices: []string{
				`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `,` + pod("u2", "10.0.0.2", "") + `],` + http8000 + `}`,
				`{"endpoints":[` + pod("u2", "10.0.0.2", "") + `,` + pod("u3", "10.0.0.3", "") + `],` + http8000 + `}`,
				`{"endpoints":[` + pod("u4", "10.0.0.4", "") + `],` + http8000 + `}`,
			},
			want: "u1@10.0.0.1:8000 u2@10.0.0.2:8000 u3@10.0.0.3:8000 u4@10.0.0.4:8000",
		},
		{
			name: "addresses without pods",
			slices: []string{
				`{"endpoints":[{"addresses":["10.0.0.1"]},{"addresses":["10.0.0.1"]},{"addresses":["10.0.0.2"],"targetRef":{"kind":"Node","name":"n","uid":"n1"}}],` + http8000 + `}`,
				`{"endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"name":"http","port":8001}]}`,
			},
			want: "@10.0.0.1:8000 @10.0.0.1:8001 @10.0.0.2:8000",
		},
		{
			name: "a pod at the address of something unnamed",
			slices: []string{
				`{"endpoints":[{"addresses":["10.0.0.1"]},` + pod("u1", "10.0.0.1", "") + `],` + http8000 + `}`,
			},
			want: "u1@10.0.0.1:8000",
		},
		{
			name: "the first address of an endpoint counts",
			slices: []string{
				`{"endpoints":[{"addresses":["10.0.0.1","10.0.0.9"]},{"addresses":[]},{"addresses":["what"]}],` + http8000 + `}`,
			},
			want: "@10.0.0.1:8000",
		},
		{
			name: "dual stack is one endpoint, by IPv4",
			slices: []string{
				`{"addressType":"IPv6","endpoints":[` + pod("u1", "fd00::1", "") + `,` + pod("u2", "fd00::2", "") + `],` + http8000 + `}`,
				`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],` + http8000 + `}`,
			},
			want: "u1@10.0.0.1:8000 u2@[fd00::2]:8000",
		},
		{
			name: "IPv6 in any spelling",
			slices: []string{
				`{"addressType":"IPv6","endpoints":[{"addresses":["fd00::1"]},{"addresses":["FD00:0:0:0:0:0:0:1"]}],` + http8000 + `}`,
			},
			want: "@[fd00::1]:8000",
		},
		{
			name: "host names", warns: "to <host:port>",
			slices: []string{`{"addressType":"FQDN","endpoints":[{"addresses":["a.example.com"]}],` + http8000 + `}`},
		},
		{
			name: "conditions",
			slices: []string{`{"endpoints":[` + strings.Join([]string{
				pod("nil", "10.0.0.1", `"conditions":{}`),
				pod("ready", "10.0.0.2", `"conditions":{"ready":true,"terminating":false}`),
				pod("unready", "10.0.0.3", `"conditions":{"ready":false,"serving":true}`),
				pod("leaving", "10.0.0.4", `"conditions":{"ready":false,"serving":true,"terminating":true}`),
				pod("published", "10.0.0.5", `"conditions":{"ready":true,"serving":true,"terminating":true}`),
			}, ",") + `],` + http8000 + `}`},
			want: "nil@10.0.0.1:8000 ready@10.0.0.2:8000",
		},
		{
			name: "only those that leave are left",
			slices: []string{`{"endpoints":[` + strings.Join([]string{
				pod("unready", "10.0.0.1", `"conditions":{"ready":false}`),
				pod("leaving", "10.0.0.2", `"conditions":{"ready":false,"serving":true,"terminating":true}`),
				pod("published", "10.0.0.3", `"conditions":{"ready":true,"terminating":true}`),
				pod("gone", "10.0.0.4", `"conditions":{"ready":false,"serving":false,"terminating":true}`),
				pod("silent", "10.0.0.5", `"conditions":{"ready":false,"terminating":true}`),
			}, ",") + `],` + http8000 + `}`},
			want: "leaving@10.0.0.2:8000 published@10.0.0.3:8000",
		},
		{
			name:   "an address that another pod has now",
			slices: []string{`{"endpoints":[` + pod("old", "10.0.0.1", `"conditions":{"ready":false,"serving":true,"terminating":true}`) + `,` + pod("new", "10.0.0.1", "") + `],` + http8000 + `}`},
			want:   "new@10.0.0.1:8000",
		},
		{
			name: "the port named http, in each slice its own",
			slices: []string{
				`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],"ports":[{"name":"metrics","port":9090},{"name":"http","port":8000}]}`,
				`{"endpoints":[` + pod("u2", "10.0.0.2", "") + `],"ports":[{"name":"http","port":8001}]}`,
			},
			want: "u1@10.0.0.1:8000 u2@10.0.0.2:8001",
		},
		{
			name:   "else the first that is TCP",
			slices: []string{`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],"ports":[{"name":"dns","port":53,"protocol":"UDP"},{"name":"a","port":null},{"name":"b","port":8000},{"port":8001}]}`},
			want:   "u1@10.0.0.1:8000",
		},
		{
			name: "by name", port: "grpc",
			slices: []string{`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],"ports":[{"name":"grpc","port":53,"protocol":"UDP"},{"name":"http","port":8000},{"name":"grpc","port":9000,"protocol":"TCP"}]}`},
			want:   "u1@10.0.0.1:9000",
		},
		{
			name: "by number", port: "8001",
			slices: []string{`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],"ports":[{"name":"http","port":8000},{"name":"b","port":8001}]}`},
			want:   "u1@10.0.0.1:8001",
		},
		{
			name: "by number, where any will do", port: "8001",
			slices: []string{`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],"ports":[{"port":null}]}`},
			want:   "u1@10.0.0.1:8001",
		},
		{
			name: "a number that is the Service's own", port: "80", warns: "no TCP port 80, so its endpoints are passed over; write one of the pods' ports: http 8000, syslog 514 (UDP)",
			slices: []string{`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],"ports":[{"name":"syslog","port":514,"protocol":"UDP"},{"name":"http","port":8000}]}`},
		},
		{
			name: "a name that only one of the slices has", port: "web", warns: "no TCP port web",
			slices: []string{
				`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],` + http8000 + `}`,
				`{"endpoints":[` + pod("u2", "10.0.0.2", "") + `],"ports":[{"name":"web","port":8001}]}`,
			},
			want: "u2@10.0.0.2:8001",
		},
		{
			name: "no ports", warns: "no TCP port, so its endpoints are passed over; their ports: none",
			slices: []string{`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `]}`},
		},
		{
			name: "protocols of the application",
			slices: []string{
				`{"endpoints":[` + pod("u1", "10.0.0.1", "") + `],"ports":[{"name":"http","port":8000,"appProtocol":"https"}]}`,
				`{"endpoints":[` + pod("u2", "10.0.0.2", "") + `],"ports":[{"name":"http","port":8000,"appProtocol":"kubernetes.io/h2c"}]}`,
				`{"endpoints":[` + pod("u3", "10.0.0.3", "") + `],"ports":[{"name":"http","port":8000,"appProtocol":"example.com/mine"}]}`,
			},
			want: "u1@https://10.0.0.1:8000 u2@h2c://10.0.0.2:8000 u3@10.0.0.3:8000",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var objects []metav1.Object
			for i, s := range tt.slices {
				objects = append(objects, sliceOf(t, "qwen-"+string(rune('a'+i)), s))
			}
			build := sliceBuilder(tt.port, Attributes{})
			specs, warnings := build(objects)
			if got := said(specs); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if (tt.warns != "") != (len(warnings) > 0) || slices.ContainsFunc(warnings, func(w string) bool { return !strings.Contains(w, tt.warns) }) {
				t.Errorf("warnings: %q, want %q in each", warnings, tt.warns)
			}
			slices.Reverse(objects)
			if again, _ := build(objects); said(again) != said(specs) {
				t.Errorf("in another order: %s", said(again))
			}
		})
	}
}

func TestSliceAttributes(t *testing.T) {
	s := sliceOf(t, "qwen-a", `{"endpoints":[`+pod("u1", "10.0.0.1", `"nodeName":"n1","zone":"z1"`)+`,{"addresses":["10.0.0.2"],"zone":"z2"}],`+http8000+`}`)
	specs, _ := sliceBuilder("", Attributes{
		Role: "decode", Model: "Qwen/Qwen3-8B", Weight: 2, MaxInflight: 8,
		Header: http.Header{"X-A": {"1"}}, Labels: map[string]string{"zone": "mine", "region": "eu"},
	})([]metav1.Object{s})
	common := routing.Spec{Scheme: "http", Model: "Qwen/Qwen3-8B", Weight: 2, MaxInflight: 8, Header: http.Header{"X-A": {"1"}}}
	first, second := common, common
	first.ID, first.Address = "u1/10.0.0.1", "10.0.0.1:8000"
	first.Labels = map[string]string{"pod": "pod-u1", "node": "n1", "zone": "mine", "region": "eu", "role": "decode"}
	second.Address = "10.0.0.2:8000"
	second.Labels = map[string]string{"zone": "mine", "region": "eu", "role": "decode"}
	want := []routing.Spec{first, second}
	if !slices.EqualFunc(specs, want, func(a, b routing.Spec) bool { return a.Equal(&b) }) {
		t.Errorf("got  %+v\nwant %+v", specs, want)
	}
}

// An endpoint is a pod at an address. An EndpointSlice that gives another
// address the UID of somebody's pod makes another endpoint of it.
func TestIdentity(t *testing.T) {
	id := func(endpoint, port string) string {
		t.Helper()
		s := sliceOf(t, "qwen-a", `{"endpoints":[`+endpoint+`],"ports":[{"port":`+port+`}]}`)
		specs, _ := sliceBuilder("", Attributes{})([]metav1.Object{s})
		if len(specs) != 1 {
			t.Fatalf("%d endpoints", len(specs))
		}
		return specs[0].ID
	}
	mine := id(pod("u1", "10.0.0.1", ""), "8000")
	if mine != "u1/10.0.0.1" {
		t.Errorf("the identity is %q", mine)
	}
	if other := id(pod("u1", "10.0.0.1", ""), "8001"); other != mine {
		t.Errorf("by another port it is %q", other)
	}
	if other := id(pod("u1", "10.6.6.6", ""), "8000"); other == mine {
		t.Error("another address passes for the pod")
	}
	for _, uid := range []string{"http://10.0.0.1:8000", strings.Repeat("u", maxUID+1)} {
		if other := id(pod(uid, "10.6.6.6", ""), "8000"); other != "" {
			t.Errorf("%q is believed", other)
		}
	}
}

// A change in one of 10 slices with 100 endpoints each.
func BenchmarkSlices(b *testing.B) {
	var objects []metav1.Object
	for i := range 10 {
		s := &discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8000))}},
		}
		for j := range 100 {
			uid := fmt.Sprintf("u%d-%d", i, j)
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.0.%d.%d", i, j)}, Zone: new("z1"), NodeName: new("n1"),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: uid, UID: types.UID(uid)},
			})
		}
		objects = append(objects, s)
	}
	build := sliceBuilder("", Attributes{Role: "decode"})
	b.ReportAllocs()
	for b.Loop() {
		if specs, _ := build(objects); len(specs) != 1000 {
			b.Fatal(len(specs))
		}
	}
}
