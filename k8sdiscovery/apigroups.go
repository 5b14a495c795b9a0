package k8sdiscovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// apiGroups are the API groups under which FlexInfer's resources are found:
// first that of its code and chart, then that of its user documentation. Of
// two resources with the same name the one in the first has it.
var apiGroups = []string{"ai.flexinfer", "inference.flexinfer.ai"}

// groupsOf returns the API groups to look into, given the configured one.
func groupsOf(group string) []string {
	if group != "" {
		return []string{group}
	}
	return apiGroups
}

const (
	// How often the API server is asked for resources that it did not have:
	// after the start, and after others came, they may be about to come.
	discoveryInterval      = 10 * time.Second
	discoveryIntervalEarly = time.Second
	discoveryEarly         = 30 * time.Second

	discoveryTimeout = 5 * time.Second
)

// resourceKinds are what is read of each kind of resource, by version and name.
var resourceKinds = map[schema.GroupVersionResource]func(*resourceSet, Ref, map[string]any){
	{Version: "v1alpha2", Resource: "models"}: func(s *resourceSet, ref Ref, obj map[string]any) {
		ref.Kind = KindModel
		s.setObject(ref, obj)
	},
	{Version: "v1alpha1", Resource: "modeldeployments"}: func(s *resourceSet, ref Ref, obj map[string]any) {
		ref.Kind = KindModelDeployment
		s.setObject(ref, obj)
	},
	{Version: "v1alpha2", Resource: "loraadapters"}: (*resourceSet).setAdapter,
	{Version: "v1alpha1", Resource: "gpugroups"}:    (*resourceSet).setGPUGroup,
}

// wanted returns the resources that r is about.
func (r *Resources) wanted() (all []schema.GroupVersionResource) {
	for _, group := range r.set.groups {
		for k := range resourceKinds {
			if k.Resource != "gpugroups" || r.cfg.GPUGroups {
				all = append(all, k.GroupVersion().WithResource(k.Resource))
				all[len(all)-1].Group = group
			}
		}
	}
	return all
}

// followServed follows those of the wanted resources that the API server is
// known to have, and reports whether there are any.
func (r *Resources) followServed() bool {
	r.c.mu.Lock()
	served := maps.Clone(r.c.served)
	r.c.mu.Unlock()
	found := false
	for _, gvr := range r.wanted() {
		if _, ok := served[gvr]; ok {
			r.follow(gvr)
			found = true
		}
	}
	return found
}

// follow has r know of a resource. Called without r.mu, or before r is used.
func (r *Resources) follow(gvr schema.GroupVersionResource) {
	read := resourceKinds[schema.GroupVersionResource{Version: gvr.Version, Resource: gvr.Resource}]
	r.watch(gvr, func(r *Resources, old, now metav1.Object) {
		if now != nil {
			read(r.set, refOf(gvr.Group, now), now.(*unstructured.Unstructured).Object)
		} else {
			read(r.set, refOf(gvr.Group, old), nil)
		}
	})
	r.watch(endpointSlices, applySlice)
	r.watch(services, func(r *Resources, old, now metav1.Object) {
		if now != nil {
			r.set.setService(refOf("", now).key(), readService(now.(*corev1.Service)))
		} else {
			r.set.setService(refOf("", old).key(), nil)
		}
	})
}

func refOf(group string, o metav1.Object) Ref {
	return Ref{Group: group, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// watch has apply called for what happens to a resource in the namespaces,
// unless that is so.
func (r *Resources) watch(gvr schema.GroupVersionResource, apply func(r *Resources, old, now metav1.Object)) {
	for _, namespace := range r.cfg.Namespaces {
		if namespace == AllNamespaces {
			namespace = ""
		}
		k := feedKey{gvr, namespace}
		r.mu.Lock()
		if r.subs[k] != nil || r.closed {
			r.mu.Unlock()
			continue
		}
		s := r.c.follow(gvr, namespace, all, &resourceWatcher{r: r, apply: apply})
		r.subs[k] = s
		started := r.cancel != nil
		r.mu.Unlock()
		s.join()
		if started {
			if err := s.start(); err != nil {
				r.c.logger().Error("a resource cannot be watched", zap.Stringer("resource", k), zap.Error(err))
			}
		}
	}
}

// discover finds out which of the wanted resources the API server has, and
// follows them, until it has all of them or ctx is done.
func (r *Resources) discover(ctx context.Context) {
	begin, left, told, away := time.Now(), -1, false, false
	complain := make(map[string]struct{})
	for {
		missing, err := r.lookUp(ctx, complain)
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.asked = r.asked || err == nil
		none := len(r.subs) == 0
		r.mu.Unlock()
		r.refresh()
		if missing == 0 {
			return
		}
		if err != nil && !away {
			r.c.logger().Warn("the cluster does not say which of FlexInfer's resources it has; what is known serves on", zap.Error(err))
		}
		away = err != nil
		if err == nil && none && !told {
			told = true
			r.c.logger().Warn("the cluster has none of FlexInfer's resources; they are picked up when it does",
				zap.Strings("api_groups", r.set.groups))
		}
		if missing != left {
			begin, left = time.Now(), missing
		}
		interval := discoveryInterval
		if time.Since(begin) < discoveryEarly {
			interval = discoveryIntervalEarly
		}
		timer := time.NewTimer(interval)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// lookUp asks the API server for the wanted resources that it did not have, and
// returns how many it still does not. The error says that it did not answer.
func (r *Resources) lookUp(ctx context.Context, complained map[string]struct{}) (missing int, err error) {
	byVersion := make(map[schema.GroupVersion][]schema.GroupVersionResource)
	r.mu.Lock()
	followed := make(map[schema.GroupVersionResource]bool)
	for k := range r.subs {
		followed[k.resource] = true
	}
	r.mu.Unlock()
	for _, gvr := range r.wanted() {
		if !followed[gvr] {
			byVersion[gvr.GroupVersion()] = append(byVersion[gvr.GroupVersion()], gvr)
		}
	}
	for _, version := range slices.SortedFunc(maps.Keys(byVersion), func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) }) {
		has, e := r.c.resourcesOf(ctx, version)
		if apierrors.IsForbidden(e) {
			// What may not be asked for counts as absent.
			if _, ok := complained[version.String()]; !ok && ctx.Err() == nil {
				complained[version.String()] = struct{}{}
				r.c.logger().Warn(fmt.Sprintf("the cluster refuses to say which resources it has; "+
					"add this rule to the gateway's ClusterRole: {nonResourceURLs: [\"/apis/%s\"], verbs: [\"get\"]}", version), zap.Error(e))
			}
			e = nil
		}
		if e != nil {
			err = e
		}
		for _, gvr := range byVersion[version] {
			if !slices.Contains(has, gvr.Resource) {
				missing++
				continue
			}
			r.c.mu.Lock()
			r.c.served[gvr] = struct{}{}
			r.c.mu.Unlock()
			r.follow(gvr)
		}
	}
	return missing, err
}

// resourcesOf returns the resources that the API server has of a version, none
// if it does not know that.
func (c *Cluster) resourcesOf(ctx context.Context, version schema.GroupVersion) ([]string, error) {
	l, err := c.open()
	if err != nil {
		return nil, err
	}
	client, err := discovery.NewDiscoveryClientForConfigAndClient(l.config, l.client)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	list, err := client.ServerResourcesForGroupVersionWithContext(ctx, version.String())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, resource := range list.APIResources {
		names = append(names, resource.Name)
	}
	return names, nil
}
