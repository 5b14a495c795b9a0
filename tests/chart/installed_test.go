package chart

import (
	"net"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// A release is one of the chart.
type release struct{ namespace, name string }

// object is the name of the release's objects.
func (r release) object() string { return r.name + "-flexinfer-gateway-proxy" }

// manage runs helm as the administrator, with values on its input.
func manage(t *testing.T, values string, args ...string) {
	t.Helper()
	args = append(args, "--kubeconfig", kube.Kubeconfig())
	if stdout, stderr, err := run(t, values, args...); err != nil {
		t.Fatalf("helm %v: %v\n%s%s", args, err, stdout, stderr)
	}
}

// upgrade installs the chart, or upgrades it.
func upgrade(t *testing.T, namespace, values string) release {
	t.Helper()
	r := release{namespace, "gw"}
	manage(t, values, "upgrade", "--install", r.name, chartDir, "--namespace", namespace, "--values", "-")
	return r
}

func (r release) uninstall(t *testing.T) {
	t.Helper()
	manage(t, "", "uninstall", r.name, "--namespace", r.namespace)
}

func (r release) deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d, err := kube.Client.AppsV1().Deployments(r.namespace).Get(t.Context(), r.object(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// start runs a gateway outside of a pod, which else is as the release's are: it
// has their Caddyfile, environment, and service account.
func (r release) start(t *testing.T) *harness.Gateway {
	t.Helper()
	config, err := kube.Client.CoreV1().ConfigMaps(r.namespace).Get(t.Context(), r.object(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := r.deployment(t).Spec.Template.Spec
	account := kube.AccountNamed(r.namespace, pod.ServiceAccountName)
	var env []string
	for _, v := range pod.Containers[0].Env {
		switch {
		case v.ValueFrom != nil:
			env = append(env, v.Name+"="+r.namespace) // there is but the one with the namespace
		case !strings.HasPrefix(v.Name, "XDG_"):
			env = append(env, v.Name+"="+v.Value)
		}
	}
	return startAs(t, account, config.Data["Caddyfile"], env)
}

// startAs starts a gateway with a Caddyfile that is meant for pods, on ports of
// its own, as the account.
func startAs(t *testing.T, account *cluster.Account, caddyfile string, env []string) *harness.Gateway {
	t.Helper()
	env = append(env, account.InCluster(t)...)
	// The drain is no matter of these tests.
	env = append(env, "PROXY_SHUTDOWN_DRAIN_DELAY=0s", "PROXY_GRACEFUL_SHUTDOWN_TIMEOUT=2s")
	return harness.StartCaddyfile(t, env, func(site, admin string) string {
		_, port, err := net.SplitHostPort(site)
		if err != nil {
			t.Fatal(err)
		}
		return strings.NewReplacer(
			"\tadmin localhost:2019\n", "",
			"\tpersist_config off\n", "\tpersist_config off\n\tadmin "+admin+"\n",
			"\n:8080 {", "\n:"+port+" {",
		).Replace(caddyfile)
	})
}

// The API server takes what the chart makes, in a namespace that holds pods to
// the strictest of Kubernetes' standards; a change of the Caddyfile rolls the
// pods, and nothing stays behind.
func TestChartInstalls(t *testing.T) {
	ns, other := kube.Namespace(t), kube.Namespace(t)
	if _, err := kube.Client.CoreV1().Namespaces().Patch(t.Context(), ns, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	k := kube.Kubelet(t, ns, cluster.KubeletOptions{Port: 8080})
	values := `{proxy: {replicaCount: 2}, kubernetes: {namespaces: [` + ns + `, ` + other + `], gpuGroups: true, pods: true}, extraSite: "`
	r := upgrade(t, ns, values+`log"}`)
	before := k.WaitPods(t, 2)

	ready := func() (n int) {
		list, err := kube.Client.DiscoveryV1().EndpointSlices(ns).List(t.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + r.object()})
		if err != nil {
			return -1
		}
		for _, slice := range list.Items {
			for _, port := range slice.Ports {
				if *port.Name == "http" && *port.Port == 8080 {
					n += len(slice.Endpoints)
				}
			}
		}
		return n
	}
	harness.Eventually(t, harness.Patience, "both pods are behind the Service", func() bool { return ready() == 2 })
	budget, err := kube.Client.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), r.object(), metav1.GetOptions{})
	if err != nil || budget.Spec.MinAvailable.IntValue() != 1 {
		t.Errorf("budget %v, %v", budget, err)
	}
	for _, in := range []string{ns, other} {
		if _, err := kube.Client.RbacV1().Roles(in).Get(t.Context(), r.object(), metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}

	upgrade(t, ns, values+`header X-A b"}`)
	harness.Eventually(t, harness.Patience, "there are new pods, and the old ones are gone", func() bool {
		now := k.Pods()
		return len(now) == 2 && now[0].Name != before[0].Name && now[0].Name != before[1].Name &&
			now[1].Name != before[0].Name && now[1].Name != before[1].Name
	})

	r.uninstall(t)
	harness.Eventually(t, harness.Patience, "no pod is left", func() bool { return len(k.Pods()) == 0 })
	for _, in := range []string{ns, other} {
		if _, err := kube.Client.RbacV1().Roles(in).Get(t.Context(), r.object(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the role in %s: %v", in, err)
		}
	}
}
