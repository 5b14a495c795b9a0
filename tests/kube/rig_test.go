package kube

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// The other tests stand on firm ground: a Deployment becomes pods, pods become
// endpoints, and an API server that is killed comes back with all of it.
func TestRig(t *testing.T) {
	ns := kube.Namespace(t)
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{})
	service(t, ns, "m")
	deployment(t, ns, "m", 2)
	pods := k.WaitPods(t, 2)
	ready := func() int {
		list, err := kube.Client.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=m",
		})
		if err != nil {
			return -1
		}
		n := 0
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					n++
				}
			}
		}
		return n
	}
	harness.Eventually(t, harness.Patience, "both pods are endpoints", func() bool { return ready() == 2 })
	k.SetReady(pods[0], false)
	harness.Eventually(t, harness.Patience, "one pod is not ready", func() bool { return ready() == 1 })
	kube.KillAPI(t)
	kube.StartAPI(t)
	k.SetReady(pods[0], true)
	harness.Eventually(t, harness.Patience, "it is ready again", func() bool { return ready() == 2 })
	scale(t, ns, "m", 0)
	harness.Eventually(t, harness.Patience, "no pod is left", func() bool { return ready() == 0 && len(k.Pods()) == 0 })
}
