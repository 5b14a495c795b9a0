package k8sdiscovery

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

var (
	endpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
	pods           = corev1.SchemeGroupVersion.WithResource("pods")
	services       = corev1.SchemeGroupVersion.WithResource("services")
)

// A kind is a resource that is watched in its Go type. All others are watched
// as [unstructured.Unstructured].
type kind struct {
	object metav1.Object                   // an example
	list   func() runtime.Object           // a new list
	trim   func(metav1.Object)             // drops what nobody reads
	index  func(metav1.Object) (of string) // what watchers may ask for, besides all
}

var kinds = map[schema.GroupVersionResource]kind{
	endpointSlices: {
		object: new(discoveryv1.EndpointSlice),
		list:   func() runtime.Object { return new(discoveryv1.EndpointSliceList) },
		trim:   trimSlice,
		index:  serviceOf,
	},
	pods: {
		object: new(corev1.Pod),
		list:   func() runtime.Object { return new(corev1.PodList) },
		trim:   trimPod,
	},
	services: {
		object: new(corev1.Service),
		list:   func() runtime.Object { return new(corev1.ServiceList) },
		trim:   trimService,
	},
}

// codecs know the kinds, and no other of the many that clientsets know.
var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// listWatch returns what lists and watches a resource in a namespace, or in all
// if it is empty, and an example of the objects that come of it.
func (l *link) listWatch(r schema.GroupVersionResource, namespace string) (*cache.ListWatch, any, error) {
	k, ok := kinds[r]
	if !ok {
		client := l.dynamic.Resource(r).Namespace(namespace)
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return client.List(ctx, o)
			},
			WatchFuncWithContext: client.Watch,
		}, new(unstructured.Unstructured), nil
	}
	config := rest.CopyConfig(l.config)
	config.GroupVersion = new(r.GroupVersion())
	config.APIPath = "/apis"
	if r.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = codecs.WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := rest.RESTClientForConfigAndClient(config, l.client)
	if err != nil {
		return nil, nil, err
	}
	request := func(o *metav1.ListOptions) *rest.Request {
		return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(r.Resource).
			SpecificallyVersionedParams(o, metav1.ParameterCodec, metav1.Unversioned)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := k.list()
			return list, request(&o).Do(ctx).Into(list)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return request(&o).Watch(ctx)
		},
	}, k.object, nil
}

// trim drops what nobody reads from an object.
func (k kind) trimmed(o metav1.Object) metav1.Object {
	o.SetManagedFields(nil)
	if a := o.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
		o.SetAnnotations(a)
	}
	if k.trim != nil {
		k.trim(o)
	}
	return o
}

// indexOf returns the index of an object, which may be nil.
func (k kind) indexOf(o metav1.Object) string {
	if o == nil || k.index == nil {
		return all
	}
	return k.index(o)
}
