package k8sdiscovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func (w *Waker) get(ctx context.Context, ref Ref) (*unstructured.Unstructured, error) {
	l, err := w.c.open()
	if err != nil {
		return nil, unreachable(err)
	}
	obj, err := l.dynamic.Resource(ref.resource()).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	return obj, w.explain(err, ref.resource(), ref.Namespace, "get")
}

func (w *Waker) patch(ctx context.Context, r schema.GroupVersionResource, key types.NamespacedName, patch map[string]any, sub ...string) error {
	l, err := w.c.open()
	if err != nil {
		return unreachable(err)
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = l.dynamic.Resource(r).Namespace(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, data, metav1.PatchOptions{}, sub...)
	return w.explain(err, r, key.Namespace, "patch", sub...)
}

// explain logs once which rule a refused request lacks.
func (w *Waker) explain(err error, r schema.GroupVersionResource, namespace, verb string, sub ...string) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	resource := strings.Join(append([]string{r.Resource}, sub...), "/")
	rule := fmt.Sprintf(`{apiGroups: [%q], resources: [%q], verbs: [%q]}`, r.Group, resource, verb)
	w.mu.Lock()
	_, known := w.refused[namespace+rule]
	w.refused[namespace+rule] = struct{}{}
	w.mu.Unlock()
	if !known {
		w.c.logger().Warn("the cluster refuses what wakes models and keeps them awake; add this rule to the gateway's Role in namespace "+
			namespace+": "+rule, zap.Error(err))
	}
	return &reason{
		text:  fmt.Sprintf("forbidden: the gateway may not %s %s in namespace %s", verb, resource, namespace),
		cause: err, final: true, refused: true,
	}
}

// A reason is why a model was not woken, in words that are for clients, too.
type reason struct {
	text    string
	cause   error // for the log; nil if there is no more to say
	final   bool  // to ask again would not help
	refused bool  // for want of a right, which has been logged
}

func (r *reason) Error() string { return r.text }
func (r *reason) Unwrap() error { return r.cause }

func isRefused(err error) bool {
	r, ok := errors.AsType[*reason](err)
	return ok && r.refused
}

func unreachable(err error) error {
	return &reason{text: "it is not known how to reach the cluster", cause: err, final: true}
}

// reasonFor returns what to say of err.
func reasonFor(err error) *reason {
	if r, ok := errors.AsType[*reason](err); ok {
		return r
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return &reason{text: "the cluster's API cannot be reached", cause: err}
	}
	switch code := status.Status().Code; {
	case code == http.StatusNotFound:
		return &reason{text: "the cluster does not have its resource", cause: err, final: true}
	case code == http.StatusConflict:
		return &reason{text: "others keep changing its resource", cause: err, final: true}
	case code == http.StatusUnauthorized:
		return &reason{text: "the cluster does not accept the gateway's credentials", cause: err}
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
		return &reason{text: "the cluster refuses the change to its resource", cause: err, final: true}
	}
	return &reason{text: "the cluster's API does not answer as it should", cause: err}
}

// complain logs the details of a reason, once until all is well again.
func (w *Waker) complain(model string, r *reason) {
	if r.cause == nil || r.refused {
		return
	}
	key := r.text
	if r.final {
		key += " " + model
	}
	w.mu.Lock()
	_, known := w.failing[key]
	w.failing[key] = struct{}{}
	w.mu.Unlock()
	if !known {
		w.c.logger().Warn("a model is not woken: "+r.text, zap.String("model", model), zap.Bool("final", r.final), zap.Error(r.cause))
	}
}

// answered notes that a model was woken.
func (w *Waker) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.failing)
}
