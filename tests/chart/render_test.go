package chart

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

const chartDir = "../../charts/flexinfer-gateway"

// run runs helm with values on its input, where "-" stands for it, and returns
// what it printed.
func run(t *testing.T, values string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(filepath.Join(os.Getenv("KUBE_BIN"), "helm"), args...)
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stdin = strings.NewReader(values)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// objects are what the chart makes.
type objects struct {
	deployment appsv1.Deployment
	service    corev1.Service
	config     corev1.ConfigMap
	account    corev1.ServiceAccount
	budget     policyv1.PodDisruptionBudget
	autoscaler autoscalingv2.HorizontalPodAutoscaler

	roles           []rbacv1.Role
	bindings        []rbacv1.RoleBinding
	clusterRoles    []rbacv1.ClusterRole
	clusterBindings []rbacv1.ClusterRoleBinding

	monitors map[string]map[string]any // by kind

	kinds map[string]int
}

// render returns the objects of the release gw in the namespace models.
func render(t *testing.T, values string) *objects { return renderAs(t, "gw", values) }

func renderAs(t *testing.T, release, values string) *objects {
	t.Helper()
	stdout, stderr, err := run(t, values, "template", release, chartDir, "--namespace", "models", "--values", "-")
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, stderr)
	}
	o := &objects{kinds: make(map[string]int), monitors: make(map[string]map[string]any)}
	for doc := range strings.SplitSeq(stdout, "\n---") {
		o.add(t, strings.TrimPrefix(doc, "---"))
	}
	return o
}

// refused returns the error with which helm refuses values.
func refused(t *testing.T, values string) string {
	t.Helper()
	_, stderr, err := run(t, values, "template", "gw", chartDir, "--values", "-")
	if err == nil {
		t.Errorf("not refused: %s", values)
	}
	return stderr
}

func (o *objects) add(t *testing.T, doc string) {
	t.Helper()
	var head struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
	}
	if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
		t.Fatalf("%v:\n%s", err, doc)
	}
	into := map[string]any{
		"Deployment":              &o.deployment,
		"Service":                 &o.service,
		"ConfigMap":               &o.config,
		"ServiceAccount":          &o.account,
		"PodDisruptionBudget":     &o.budget,
		"HorizontalPodAutoscaler": &o.autoscaler,
	}[head.Kind]
	switch head.Kind {
	case "":
		return // a template that made nothing
	case "Role":
		into = grow(&o.roles)
	case "RoleBinding":
		into = grow(&o.bindings)
	case "ClusterRole":
		into = grow(&o.clusterRoles)
	case "ClusterRoleBinding":
		into = grow(&o.clusterBindings)
	case "ServiceMonitor", "PodMonitor":
		monitor := make(map[string]any)
		o.monitors[head.Kind] = monitor
		into = &monitor
	}
	if into == nil {
		t.Fatalf("a %s:\n%s", head.Kind, doc)
	}
	if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
		t.Errorf("%s: %v\n%s", head.Kind, err, doc)
	}
	if cluster := strings.HasPrefix(head.Kind, "Cluster"); (head.Metadata.Namespace == "") != cluster {
		t.Errorf("%s %s: namespace %q", head.Kind, head.Metadata.Name, head.Metadata.Namespace)
	}
	o.kinds[head.Kind]++
}

func grow[T any](list *[]T) *T {
	*list = append(*list, *new(T))
	return &(*list)[len(*list)-1]
}

// container returns the one of the pods.
func (o *objects) container(t *testing.T) *corev1.Container {
	t.Helper()
	pod := &o.deployment.Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) > 0 {
		t.Fatalf("containers: %v, %v", pod.Containers, pod.InitContainers)
	}
	return &pod.Containers[0]
}

// environment returns the variables of the pods that have a plain value.
func (o *objects) environment(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, v := range o.container(t).Env {
		if _, twice := found[v.Name]; twice {
			t.Errorf("%s is set twice", v.Name)
		}
		found[v.Name] = v.Value
	}
	return found
}
