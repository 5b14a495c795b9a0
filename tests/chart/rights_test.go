package chart

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// verbs returns what rules allow, as "group/resource: verbs".
func verbs(t *testing.T, rules []rbacv1.PolicyRule) []string {
	t.Helper()
	var found []string
	for _, r := range rules {
		if len(r.NonResourceURLs) > 0 || len(r.ResourceNames) > 0 {
			t.Errorf("rule %v", r)
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				found = append(found, group+"/"+resource+": "+strings.Join(r.Verbs, " "))
			}
		}
	}
	slices.Sort(found)
	return found
}

// Rights are these and no others.
func TestRights(t *testing.T) {
	flexinfer := func(groups ...string) []string {
		rights := []string{"/services: list watch", "discovery.k8s.io/endpointslices: list watch"}
		for _, g := range groups {
			rights = append(rights,
				g+"/models: get list watch", g+"/loraadapters: list watch", g+"/models/status: patch",
				g+"/modeldeployments: get list watch patch", g+"/modeldeployments/status: patch")
		}
		return rights
	}
	both := []string{"ai.flexinfer", "inference.flexinfer.ai"}
	for _, tt := range []struct {
		name, values string
		namespaces   []string
		want         []string
	}{
		{"default", ``, []string{"models"}, flexinfer(both...)},
		{"several namespaces", `kubernetes: {namespaces: [a, b, a]}`, []string{"a", "b"}, flexinfer(both...)},
		{"one group", `kubernetes: {apiGroup: ai.flexinfer}`, []string{"models"}, flexinfer("ai.flexinfer")},
		{"pods", `kubernetes: {pods: true}`, []string{"models"}, append(flexinfer(both...), "/pods: list watch")},
		{
			"gpu groups", `kubernetes: {gpuGroups: true, apiGroup: ai.flexinfer}`,
			[]string{"models"}, append(flexinfer("ai.flexinfer"), "ai.flexinfer/gpugroups: get list watch patch"),
		},
		{"all namespaces", `kubernetes: {namespaces: ["*"]}`, nil, flexinfer(both...)},
		{"none", `rbac: {create: false}`, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := render(t, tt.values)
			slices.Sort(tt.want)
			var namespaces []string
			for i, role := range o.roles {
				namespaces = append(namespaces, role.Namespace)
				if got := verbs(t, role.Rules); !slices.Equal(got, tt.want) {
					t.Errorf("in %s: got %q, want %q", role.Namespace, got, tt.want)
				}
				b := o.bindings[i]
				if b.Namespace != role.Namespace || b.RoleRef.Kind != "Role" || b.RoleRef.Name != role.Name {
					t.Errorf("binding in %s of %v, role in %s", b.Namespace, b.RoleRef, role.Namespace)
				}
				checkSubjects(t, o, b.Subjects)
			}
			if !slices.Equal(namespaces, tt.namespaces) || len(o.bindings) != len(o.roles) {
				t.Errorf("roles in %q and %d bindings, want %q", namespaces, len(o.bindings), tt.namespaces)
			}
			if all := tt.namespaces == nil && tt.want != nil; !all {
				if len(o.clusterRoles)+len(o.clusterBindings) > 0 {
					t.Error("rights in the whole cluster")
				}
				return
			}
			if len(o.clusterRoles) != 1 || len(o.clusterBindings) != 1 {
				t.Fatalf("cluster roles %v, bindings %v", o.clusterRoles, o.clusterBindings)
			}
			role, b := o.clusterRoles[0], o.clusterBindings[0]
			if got := verbs(t, role.Rules); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if b.RoleRef.Kind != "ClusterRole" || b.RoleRef.Name != role.Name || !strings.Contains(role.Name, "models") {
				t.Errorf("binding of %v, role %s", b.RoleRef, role.Name)
			}
			checkSubjects(t, o, b.Subjects)
		})
	}
}

func checkSubjects(t *testing.T, o *objects, subjects []rbacv1.Subject) {
	t.Helper()
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: o.account.Name, Namespace: "models"}}
	if !slices.Equal(subjects, want) {
		t.Errorf("subjects %v, want %v", subjects, want)
	}
}
