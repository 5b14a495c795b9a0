package k8sdiscovery

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// A trouble is why a list or a watch fails, as far as the log tells them apart.
type trouble uint8

const (
	none       trouble = iota
	away               // the API server does not answer, or not with this
	refused            // the API server may not be asked for this
	unknown            // the API server does not know the resource
	unentitled         // the API server does not know who asks
)

func troubleOf(err error) trouble {
	switch {
	case err == nil:
		return none
	case apierrors.IsForbidden(err):
		return refused
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return unknown
	case apierrors.IsUnauthorized(err):
		return unentitled
	}
	return away
}

// troubles are those of a feed's lists and of its watches.
type troubles struct{ list, watch trouble }

// hopeless reports whether waiting does not help.
func (t troubles) hopeless() bool {
	return t.list == refused || t.list == unknown
}

// observed is a cache.ListWatch that tells a feed how it fares. The informer's
// own handler of errors does not see those that it tries again.
type observed struct {
	*cache.ListWatch
	f *feed
}

// IsWatchListSemanticsUnSupported has the first objects come as a list. As a
// stream they save the server memory, but the client cannot stop then while the
// server is away.
func (observed) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext implements [cache.ListerWithContext].
func (o observed) ListWithContext(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	list, err := o.ListWatch.ListWithContext(ctx, opts)
	if ctx.Err() == nil {
		o.f.note(err, func(t *troubles) *trouble { return &t.list })
	}
	return list, err
}

// WatchWithContext implements [cache.WatcherWithContext].
func (o observed) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	w, err := o.ListWatch.WatchWithContext(ctx, opts)
	if ctx.Err() == nil {
		o.f.note(err, func(t *troubles) *trouble { return &t.watch })
	}
	return w, err
}

// note notes how a list or a watch went, and logs what is news.
func (f *feed) note(err error, of func(*troubles) *trouble) {
	now := troubleOf(err)
	f.mu.Lock()
	f.pace.note(err)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		f.mu.Unlock()
		return // it is no trouble: a list follows
	}
	before := f.troubles
	*of(&f.troubles) = now
	after := f.troubles
	if before.hopeless() != after.hopeless() {
		f.touchAll()
	}
	f.mu.Unlock()

	logger := f.c.logger()
	switch {
	case now != none && before.list != now && before.watch != now:
		logger.Warn(f.complaint(now), zap.Stringer("watching", f.key), zap.Error(err))
	case after == troubles{} && before != troubles{}:
		logger.Info("the cluster answers again", zap.Stringer("watching", f.key))
	}
}

// complaint says what a trouble is and what to do about it.
func (f *feed) complaint(t trouble) string {
	switch t {
	case refused:
		role := "Role in namespace " + f.key.namespace
		if f.key.namespace == "" {
			role = "ClusterRole"
		}
		return fmt.Sprintf("the cluster refuses to show the gateway what it looks for; add this rule to its %s: %s", role, f.rule())
	case unknown:
		return "the cluster does not have this resource; it is picked up when it comes"
	case unentitled:
		return "the cluster does not accept the gateway's credentials; what is known serves on"
	}
	return "the cluster does not answer; what is known serves on"
}

// rule returns the rule of a Role that the feed needs, as YAML has it.
func (f *feed) rule() string {
	return fmt.Sprintf(`{apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`, f.key.resource.Group, f.key.resource.Resource)
}
