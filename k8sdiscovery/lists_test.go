package k8sdiscovery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// many returns so many words, separated by commas.
func many(n int, word string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d,", word, i)
	}
	return b.String()
}

// Lists are as long as an object of the cluster can be, and cost no more than
// they hold. What is beyond the bounds is left out, with a word on it.
func TestLongLists(t *testing.T) {
	began := time.Now()
	s := newTestSet(t)
	aliases := make([]any, 180_000)
	for i := range aliases {
		aliases[i] = fmt.Sprintf("a%d", i)
	}
	s.setObject(at("a/m/models/x"), map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{annotationServePaths: many(60_000, "/p") + strings.Repeat("q", 257)}},
		"spec":     map[string]any{"source": strings.Repeat("s", 1<<20), "litellm": map[string]any{"aliases": aliases}, "serviceLabels": aliases},
	})
	s.setService(types.NamespacedName{Namespace: "models", Name: "x"}, readService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationServiceLabels: many(60_000, "l") + strings.Repeat("k", 257) + ",a\x01"}},
	}))
	for i := range 100 {
		s.setAdapter(at(fmt.Sprintf("a//models/l%02d", i)), map[string]any{"spec": map[string]any{"adapterName": fmt.Sprint("lora-", i), "modelRef": "x"}})
	}
	sum := s.rebuild(testNow)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	m := sum.models[0]
	if len(m.Aliases) != 64 || m.Aliases[63] != "a63" {
		t.Errorf("%d aliases", len(m.Aliases))
	}
	if g := m.Traits.Groups; len(g) != 64 || g[63] != "l63" {
		t.Errorf("%d service labels", len(g))
	}
	if p := m.Traits.ServePaths; len(p) != 64 || p[63] != "/p63" {
		t.Errorf("%d serve paths", len(p))
	}
	if len(m.Adapters) != 64 {
		t.Errorf("%d adapters", len(m.Adapters))
	}
	for key, value := range m.Traits.Metadata {
		if n := len(fmt.Sprint(value)); n > 64*8 {
			t.Errorf("metadata %s has %d bytes", key, n)
		}
	}
	check(t, "warnings", sum.warnings, []string{
		"Model models/x: serve path \"qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq\" is left out; write at most 256 bytes without control characters",
		"Model models/x: service label \"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\", like 1 more, is left out; write at most 256 bytes of text without control characters, other than _unknown",
		"Model models/x: the first 64 of 180000 are taken as its aliases, the others are left out",
		"Model models/x: the first 64 of 60000 are taken as its serve paths, the others are left out",
		"Model models/x: the first 64 of 60000 are taken as its service labels, the others are left out",
		"of the 100 LoRAAdapters of model x those after the first 64 are left out; a model has at most so many",
	})
}

// A service label that cannot be the name of a model is left out.
func TestServiceLabelsAreNames(t *testing.T) {
	s := newTestSet(t)
	s.setObject(at("a/m/models/x"), object(t, "{}"))
	s.setService(types.NamespacedName{Namespace: "models", Name: "x"}, readService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationActiveServices: "chat,_unknown,a\x01b,\xff"}},
	}))
	sum := s.rebuild(testNow)
	check(t, "labels", sum.models[0].Traits.Groups, []string{"chat"})
	check(t, "warnings", sum.warnings, []string{
		`Model models/x: service label "_unknown", like 2 more, is left out; write at most 256 bytes of text without control characters, other than _unknown`,
	})
}

// Who asks for the models does not wait until others have been made.
func TestModelsDoNotWait(t *testing.T) {
	c := New(Config{Kubeconfig: kubeconfigOf(t, "http://127.0.0.1:1")})
	defer c.Close()
	r := c.Resources(ResourcesConfig{Namespaces: []string{"models"}})
	defer r.Close()
	e := c.Service(models, "a", "", Attributes{})
	defer e.Close()
	r.mu.Lock() // as rebuilding does
	e.mu.Lock()
	defer r.mu.Unlock()
	defer e.mu.Unlock()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for _, s := range []interface {
			routing.Source
			routing.Settler
		}{r, e} {
			s.Models()
			s.Settled()
		}
	}()
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		t.Error("they wait")
	}
}
