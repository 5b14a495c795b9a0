package cluster

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Deployment makes a Deployment of pods that carry its name as a label.
func (c *Cluster) Deployment(tb testing.TB, namespace, name, label string, replicas int32) {
	tb.Helper()
	labels := map[string]string{label: name}
	_, err := c.Client.AppsV1().Deployments(namespace).Create(tb.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "engine", Image: "engine:1"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
}
