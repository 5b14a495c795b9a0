package k8sdiscovery

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// trimPod drops from a pod what makes no difference to where it is reached.
func trimPod(o metav1.Object) {
	p := o.(*corev1.Pod)
	p.Annotations, p.OwnerReferences, p.Finalizers = nil, nil, nil
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName}
	p.Status = corev1.PodStatus{
		Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs,
		Conditions: slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type != corev1.PodReady }),
	}
}

// podBuilder returns a function that makes endpoints of pods, at this port.
func podBuilder(port int, a Attributes) func([]metav1.Object) ([]routing.Spec, []string) {
	return func(objects []metav1.Object) ([]routing.Spec, []string) {
		var found []candidate
		var warnings []string
		for _, o := range objects {
			p := o.(*corev1.Pod)
			if !ready(p) {
				continue
			}
			for _, s := range append([]corev1.PodIP{{IP: p.Status.PodIP}}, p.Status.PodIPs...) {
				ip, ok := parseIP(s.IP)
				if !ok {
					continue
				}
				if !isOfPod(ip) {
					warnings = append(warnings, noPod("pod "+p.Name+" has", ip.String()))
					continue
				}
				found = append(found, candidate{
					uid: p.UID, isPod: true, pod: p.Name, node: p.Spec.NodeName, zone: p.Labels[corev1.LabelTopologyZone],
					ip: ip, port: port, leaving: p.DeletionTimestamp != nil,
				})
			}
		}
		return specsOf(found, a), warnings
	}
}

func ready(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed &&
		slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}
