package kube

import (
	"net"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// podPort is where upstreams of the tests listen, unless they say otherwise.
const podPort = 8000

// upstream starts an upstream at an address of its own.
func upstream(t *testing.T) *harness.Upstream {
	t.Helper()
	return harness.NewUpstreamAt(t, net.JoinHostPort(cluster.NewAddress(), strconv.Itoa(podPort)), nil)
}

// upstreams starts n of them.
func upstreams(t *testing.T, n int) []*harness.Upstream {
	t.Helper()
	us := make([]*harness.Upstream, n)
	for i := range us {
		us[i] = upstream(t)
	}
	return us
}

func hostOf(u *harness.Upstream) string {
	host, _, _ := net.SplitHostPort(u.Addr)
	return host
}

// httpPort is the port of slices that have no other.
func httpPort(number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: new("http"), Port: &number, Protocol: new(corev1.ProtocolTCP)}
}

// sliceOf returns a slice of a Service, with the port http 8000 and the
// endpoints.
func sliceOf(service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{httpPort(podPort)},
		Endpoints:   endpoints,
	}
}

// at returns the endpoint that an upstream is, of which nothing is said but
// its address.
func at(u *harness.Upstream) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{hostOf(u)}}
}

// endpointsAt returns those of several upstreams.
func endpointsAt(us ...*harness.Upstream) []discoveryv1.Endpoint {
	list := make([]discoveryv1.Endpoint, len(us))
	for i, u := range us {
		list[i] = at(u)
	}
	return list
}

// having returns an endpoint with conditions: whether it is ready, serves and
// terminates, nil where the slice does not say.
func having(e discoveryv1.Endpoint, ready, serving, terminating *bool) discoveryv1.Endpoint {
	e.Conditions = discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}
	return e
}

// forPod returns an endpoint that is a pod's.
func forPod(e discoveryv1.Endpoint, ns, name, uid string) discoveryv1.Endpoint {
	e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: name, UID: types.UID(uid)}
	return e
}

// apply makes a slice, or puts another in its place.
func apply(t *testing.T, ns string, slice *discoveryv1.EndpointSlice) {
	t.Helper()
	client := kube.Client.DiscoveryV1().EndpointSlices(ns)
	if old, err := client.Get(t.Context(), slice.Name, metav1.GetOptions{}); err == nil {
		slice.ResourceVersion = old.ResourceVersion
		if _, err := client.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	slice.ResourceVersion = ""
	if _, err := client.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func deleteSlice(t *testing.T, ns, name string) {
	t.Helper()
	if err := kube.Client.DiscoveryV1().EndpointSlices(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
