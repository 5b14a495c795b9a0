package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A Kubelet plays the scheduler and the kubelet for the pods of a namespace.
// It binds each to a node, runs an upstream at its address in the place of its
// containers, and says that it is ready. When the pod is deleted, the upstream
// ends as engines do: no further connections, while what is under way goes on
// to its end.
type Kubelet struct {
	c         *Cluster
	namespace string
	options   KubeletOptions
	node      string
	ctx       context.Context
	tb        testing.TB
	wg        sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]*Pod
}

// KubeletOptions are what tests may want otherwise.
type KubeletOptions struct {
	// Handle answers the requests to the pods. Without it they answer as
	// [harness.Answer] does.
	Handle func(*harness.Exchange)

	// Port is where pods listen, 8000 unless set.
	Port int

	// DualStack gives each pod an IPv6 address too.
	DualStack bool

	// Address gives a pod its address. Without it each gets one of its own.
	Address func(*corev1.Pod) string

	// Hold keeps pods from being ready until it is closed.
	Hold <-chan struct{}

	// Zone is that of the node.
	Zone string
}

// A Pod is a pod that runs.
type Pod struct {
	Name, IP string
	Upstream *harness.Upstream

	upstreams []*harness.Upstream // one per address
	ending    bool
}

var addresses atomic.Uint32

// NewAddress returns an address that is nobody's yet.
func NewAddress() string {
	n := addresses.Add(1)
	return fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&0xff, n&0xff)
}

// NewAddress6 returns an address of IPv6 that is nobody's yet.
func NewAddress6(tb testing.TB) string {
	tb.Helper()
	ip, err := newAddress6()
	if err != nil {
		tb.Fatal(err)
	}
	return ip
}

func newAddress6() (string, error) {
	ip := fmt.Sprintf("fd00::%x", addresses.Add(1))
	return ip, addAddr(ip + "/128")
}

// Kubelet starts a kubelet for a namespace. It ends with the test.
func (c *Cluster) Kubelet(tb testing.TB, namespace string, options KubeletOptions) *Kubelet {
	tb.Helper()
	if options.Port == 0 {
		options.Port = 8000
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &Kubelet{
		c: c, namespace: namespace, options: options, node: "node-" + namespace,
		ctx: ctx, tb: tb, pods: make(map[types.UID]*Pod),
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.node}}
	if options.Zone != "" {
		node.Labels = map[string]string{corev1.LabelTopologyZone: options.Zone}
	}
	if _, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); ignoreExists(err) != nil {
		tb.Fatal(err)
	}
	harness.Eventually(tb, harness.Patience, "the namespace takes pods", func() bool { return c.hasAccount(ctx, namespace) })

	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.see(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { k.see(o.(*corev1.Pod)) },
	}); err != nil {
		tb.Fatal(err)
	}
	factory.Start(ctx.Done())
	tb.Cleanup(func() {
		cancel()
		factory.Shutdown()
		k.wg.Wait()
	})
	return k
}

// see does what a pod's state asks for. It is called for one pod after another.
func (k *Kubelet) see(pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	running := k.pods[pod.UID]
	switch {
	case pod.DeletionTimestamp != nil:
		if running == nil || !running.ending {
			if running != nil {
				running.ending = true
			}
			k.wg.Go(func() { k.end(pod, running) })
		}
	case running == nil:
		running = &Pod{Name: pod.Name}
		k.pods[pod.UID] = running
		k.wg.Go(func() { k.run(pod, running) })
	}
}

func (k *Kubelet) run(pod *corev1.Pod, p *Pod) {
	if pod.Spec.NodeName == "" {
		k.insist("binding "+pod.Name, func(ctx context.Context) error {
			return k.c.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
				Target:     corev1.ObjectReference{Kind: "Node", Name: k.node},
			}, metav1.CreateOptions{})
		})
	}
	addrs, err := k.addresses(pod)
	if err != nil {
		k.tb.Errorf("pod %s: %v", pod.Name, err)
		return
	}
	var us []*harness.Upstream
	for _, ip := range addrs {
		u, err := harness.ListenUpstream(k.tb, net.JoinHostPort(ip, strconv.Itoa(k.options.Port)), k.options.Handle)
		if err != nil {
			k.tb.Errorf("pod %s: %v", pod.Name, err)
			return
		}
		us = append(us, u)
	}
	k.mu.Lock()
	p.IP, p.Upstream, p.upstreams = addrs[0], us[0], us
	k.mu.Unlock()
	if k.options.Hold != nil {
		select {
		case <-k.options.Hold:
		case <-k.ctx.Done():
			return
		}
	}
	k.report(pod.Name, addrs, true)
}

// addresses returns the addresses for a new pod.
func (k *Kubelet) addresses(pod *corev1.Pod) ([]string, error) {
	if k.options.Address != nil {
		return []string{k.options.Address(pod)}, nil
	}
	addrs := []string{NewAddress()}
	if k.options.DualStack {
		ip, err := newAddress6()
		return append(addrs, ip), err
	}
	return addrs, nil
}

// report writes a pod's status.
func (k *Kubelet) report(name string, addrs []string, ready bool) {
	now := metav1.Now()
	condition := corev1.ConditionFalse
	if ready {
		condition = corev1.ConditionTrue
	}
	status := corev1.PodStatus{
		Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: condition, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: condition, LastTransitionTime: now},
		},
		StartTime: &now,
	}
	if addrs != nil {
		status.HostIP, status.PodIP = "10.0.0.1", addrs[0]
		status.HostIPs = []corev1.HostIP{{IP: "10.0.0.1"}}
		for _, ip := range addrs {
			status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
		}
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		panic(err) // it always can be
	}
	k.insist("writing the status of "+name, func(ctx context.Context) error {
		_, err := k.c.Client.CoreV1().Pods(k.namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// end ends a pod, which does not run if p is nil.
func (k *Kubelet) end(pod *corev1.Pod, p *Pod) {
	if p != nil {
		k.mu.Lock()
		us := p.upstreams
		k.mu.Unlock()
		for _, u := range us {
			u.Drain()
		}
	}
	k.insist("deleting "+pod.Name, func(ctx context.Context) error {
		return k.c.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)),
			Preconditions:      &metav1.Preconditions{UID: &pod.UID},
		})
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, pod.UID)
}

// insist does something until it is done, or until there is nothing to do it to.
func (k *Kubelet) insist(what string, do func(context.Context) error) {
	var last error
	err := wait.PollUntilContextCancel(k.ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = do(ctx)
		return last == nil || apierrors.IsNotFound(last) || apierrors.IsConflict(last), nil
	})
	if err != nil && k.ctx.Err() == nil {
		k.tb.Errorf("%s: %v", what, last)
	}
}

// Pods returns the pods that run and are not about to end.
func (k *Kubelet) Pods() []Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var pods []Pod
	for _, p := range k.pods {
		if p.Upstream != nil && !p.ending {
			pods = append(pods, *p)
		}
	}
	return pods
}

// WaitPods waits until n pods run.
func (k *Kubelet) WaitPods(tb testing.TB, n int) []Pod {
	tb.Helper()
	harness.Eventually(tb, startup, fmt.Sprintf("%d pods run", n), func() bool { return len(k.Pods()) == n })
	return k.Pods()
}

// SetReady says of a pod whether it is ready.
func (k *Kubelet) SetReady(pod Pod, ready bool) { k.report(pod.Name, nil, ready) }
