package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// service makes a Service for the pods with the label app=name.
func service(t *testing.T, ns, name string) *corev1.Service {
	t.Helper()
	svc, err := kube.Client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8000)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// deployment makes a Deployment of pods with the label app=name.
func deployment(t *testing.T, ns, name string, replicas int32) {
	t.Helper()
	kube.Deployment(t, ns, name, "app", replicas)
}

// scale changes how many pods a Deployment has.
func scale(t *testing.T, ns, name string, replicas int) {
	t.Helper()
	patchDeployment(t, ns, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func patchDeployment(t *testing.T, ns, name, patch string) {
	t.Helper()
	if _, err := kube.Client.AppsV1().Deployments(ns).Patch(t.Context(), name,
		types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
