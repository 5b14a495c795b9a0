package k8sdiscovery

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// The kinds of resources that stand for a model.
const (
	KindModel           = "Model"
	KindModelDeployment = "ModelDeployment"
)

// Annotations on the resources and their Services.
const (
	annotationRouting        = "flexinfer.ai/routing"
	annotationOptions        = "flexinfer.ai/routing-options"
	annotationServePaths     = "flexinfer.ai/serve-paths"
	annotationPriority       = "flexinfer.ai/route-priority"
	annotationActiveServices = "ai.flexinfer/active-services"
	annotationServiceLabels  = "flexinfer.ai/service-labels"
)

// A Ref names a resource that stands for a model.
type Ref struct {
	// Group is the API group, "" for either of FlexInfer's two.
	Group string

	// Kind is [KindModel] or [KindModelDeployment], "" for either.
	Kind string

	Namespace, Name string
}

// key returns the name that the resource shares with its Service.
func (r Ref) key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

func (r Ref) String() string { return r.Kind + " " + r.Namespace + "/" + r.Name }

// A service is what a model's Service says.
type service struct {
	port     int32  // that calls are sent to, 0 if there is none
	portName string // the name of that port, also in the EndpointSlices
	groups   []string
	warnings []string // about the labels
}

// instead is what to write for a name that cannot be.
var instead = fmt.Sprintf("write at most %d bytes of text without control characters, other than %s", maxName, unknownModel)

// readService reads a Service.
func readService(s *corev1.Service) *service {
	found := new(service)
	for _, p := range s.Spec.Ports {
		if p.Port > 0 && (found.port == 0 || p.Name == "http") {
			found.port, found.portName = p.Port, p.Name
		}
		if found.portName == "http" {
			break
		}
	}
	// Empty means that the controller has the model claim nothing now.
	labels, managed := s.Annotations[annotationActiveServices]
	if !managed {
		labels = s.Annotations[annotationServiceLabels]
	}
	chosen := choose(commas(labels), maxGroups, isName)
	found.groups = chosen.kept
	found.warnings = chosen.problems("service label", "service labels", instead, maxGroups)
	return found
}

// trimService drops from a Service what readService does not read.
func trimService(o metav1.Object) {
	s := o.(*corev1.Service)
	s.OwnerReferences, s.Labels = nil, nil
	s.Spec, s.Status = corev1.ServiceSpec{Ports: s.Spec.Ports}, corev1.ServiceStatus{}
}

// The longest strategy and options that are taken from annotations, in bytes.
const (
	maxStrategy = 64
	maxOptions  = 1024
)

// minColdStart is the shortest time that a Model may give itself to wake.
const minColdStart = time.Second

// backendPorts are the ports that engines listen on unless told otherwise.
var backendPorts = map[string]int32{
	"llamacpp": 8080, "llama.cpp": 8080, "llama-cpp": 8080, "llama_cpp": 8080,
	"comfyui": 8188,
	"ollama":  11434,
}

const defaultPort = 8000

// surroundings are what a resource's translation takes from others.
type surroundings struct {
	now         time.Time
	stalledLoad time.Duration
	coldStart   time.Duration // of models that do not say
	service     *service      // nil if there is none
	lastPort    int32         // that the Service had when it had one
	// endpoints returns those of the resource's Service, which know the model
	// by a name, and what is wrong with its EndpointSlices.
	endpoints func(model string) (found []routing.Spec, warnings []string)
	// activeModel returns the model that a GPUGroup has active, and whether
	// there is such a group.
	activeModel func(group string) (string, bool)
}

// A translation is what one resource says, whatever the others do.
type translation struct {
	ref       Ref
	aliases   []string // that it asks for
	endpoints []routing.Spec
	traits    *routing.Traits
	due       time.Time // when the state changes by itself; zero if never
	ready     time.Time // when it became ready without endpoints; zero if it did not
	warnings  []string
}

// translate reads the resource that ref names.
func translate(ref Ref, obj map[string]any, in surroundings) *translation {
	t := &translation{ref: ref, traits: new(routing.Traits)}
	if ref.Kind == KindModel {
		t.readModel(obj, in)
	} else {
		t.readModelDeployment(obj, in)
	}
	annotations, _ := fieldOf[map[string]any](obj, "metadata", "annotations")
	t.readAnnotations(annotations)
	if in.service != nil {
		t.traits.Groups = in.service.groups
		for _, w := range in.service.warnings {
			t.warnf("%s", w)
		}
	}
	if created := timeOf(obj, "metadata", "creationTimestamp"); !created.IsZero() {
		t.traits.Created = created.Unix()
	}
	return t
}

func (t *translation) warnf(format string, args ...any) {
	t.warnings = append(t.warnings, t.ref.String()+": "+fmt.Sprintf(format, args...))
}

func (t *translation) readAnnotations(annotations map[string]any) {
	text := func(key string) string {
		s, _ := annotations[key].(string)
		return strings.TrimSpace(s)
	}
	// What is cut is as good as unknown: no strategy and no option ends so.
	bounded := func(key string, most int) string {
		s := text(key)
		if len(s) > most {
			t.warnf("annotation %s has %d bytes; write at most %d; calls go to the Service", key, len(s), most)
		}
		return cut(strings.ToValidUTF8(s, ""), most)
	}
	t.traits.Strategy = bounded(annotationRouting, maxStrategy)
	t.traits.Options = bounded(annotationOptions, maxOptions)
	paths := choose(commas(text(annotationServePaths)), maxServePaths, isServePath)
	t.traits.ServePaths = paths.kept
	for _, w := range paths.problems("serve path", "serve paths", fmt.Sprintf("write at most %d bytes without control characters", maxServePath), maxServePaths) {
		t.warnf("%s", w)
	}
	if s := text(annotationPriority); s != "" {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil {
			t.warnf("annotation %s is %.32q; write a whole number; it counts as 0", annotationPriority, s)
			n = 0
		}
		t.traits.Priority = int(n)
	}
}

// place fills in where the model is served.
func (t *translation) place(upstream, backend string, in surroundings) {
	if !isText(upstream) {
		upstream = ""
	}
	port := in.lastPort
	if in.service != nil && in.service.port > 0 {
		port = in.service.port
	}
	if port == 0 {
		port = backendPorts[strings.ToLower(backend)]
	}
	if port == 0 {
		port = defaultPort
	}
	host := t.ref.Name + "." + t.ref.Namespace + ".svc.cluster.local"
	t.traits.Service = &routing.Spec{
		Scheme: "http", Address: net.JoinHostPort(host, strconv.Itoa(int(port))), Model: upstream,
	}
	var warnings []string
	t.endpoints, warnings = in.endpoints(upstream)
	t.warnings = append(t.warnings, warnings...)
}

// readModel reads a Model, v1alpha2.
func (t *translation) readModel(obj map[string]any, in surroundings) {
	backend, source := stringOf(obj, "spec", "backend"), stringOf(obj, "spec", "source")
	upstream := stringOf(obj, "spec", "config", "servedModelName")
	if upstream == "" {
		upstream = modelOfSource(source)
	}
	t.place(upstream, backend, in)
	for _, field := range []string{"maxModelLen", "maxTotalSeqLength", "contextWindowSize", "contextSize"} {
		if n, ok := numberOf(obj, "spec", "config", field); ok && n > 0 {
			t.traits.ContextWindow = n
			break
		}
	}
	if d, err := time.ParseDuration(stringOf(obj, "spec", "serverless", "coldStartTimeout")); err == nil && d > 0 {
		if d < minColdStart {
			t.warnf("spec.serverless.coldStartTimeout is %s; write a time from %s on; it counts as that", d, minColdStart)
		}
		t.traits.ColdStart = max(d, minColdStart)
	}
	if !isParked(obj) {
		t.readAliases(obj)
	}
	t.traits.State, t.due = modelState(t.ref.Name, obj, in.now, in.stalledLoad)

	phase := stringOf(obj, "status", "phase")
	m := metadataOf(obj, "v1alpha2")
	m["ready"] = phase == phaseReady
	put(m, "source", source)
	put(m, "gpu_shared", stringOf(obj, "spec", "gpu", "shared"))
	if n, ok := numberOf(obj, "spec", "gpu", "priority"); ok {
		m["gpu_priority"] = n
	}
	t.traits.Metadata = m
}

// readModelDeployment reads a ModelDeployment, v1alpha1. Its aliases are shown
// but cannot be asked for, as ever.
func (t *translation) readModelDeployment(obj map[string]any, in surroundings) {
	t.place(stringOf(obj, "spec", "model"), stringOf(obj, "spec", "backend"), in)
	if n, ok := numberOf(obj, "spec", "coldStartTimeoutSeconds"); ok && n > 0 {
		t.traits.ColdStart = time.Duration(n) * time.Second
	}
	ready := deploymentReady(obj)
	t.traits.State = deploymentState(t.ref.Name, obj, ready)
	group := stringOf(obj, "spec", "gpuGroupRef")
	if active, ok := in.activeModel(group); ok {
		// A swap takes the time to drain one model and to load another.
		t.traits.ColdStart = max(2*t.traits.ColdStart, 2*in.coldStart, minSwapTime)
		if active != t.ref.Name {
			t.traits.State = routing.State{
				Phase:   routing.Asleep,
				Message: oneLine(fmt.Sprintf("model %s waits for GPUGroup %s to make it the active one", t.ref.Name, group)),
			}
		}
	}

	m := metadataOf(obj, "v1alpha1")
	m["ready"] = ready
	m["scaled"] = replicasOf(obj) > 0
	m["deprecated"] = true
	put(m, "gpu_group", group)
	t.traits.Metadata = m
}

// minSwapTime is the least time that a model may take to become its
// GPUGroup's active one.
const minSwapTime = 120 * time.Second

func (t *translation) readAliases(obj map[string]any) {
	wanted := append([]string{stringOf(obj, "spec", "litellm", "servedModelName")}, stringsOf(obj, "spec", "litellm", "aliases")...)
	others := func(yield func(string) bool) {
		for _, alias := range wanted {
			if strings.TrimSpace(alias) != t.ref.Name && !yield(alias) {
				return
			}
		}
	}
	chosen := choose(others, maxAliases, isName)
	t.aliases = chosen.kept
	for _, w := range chosen.problems("alias", "aliases", instead, maxAliases) {
		t.warnf("%s", w)
	}
}

// modelOfSource returns what engines call the model that comes from a source.
func modelOfSource(source string) string {
	scheme, rest, ok := strings.Cut(source, "://")
	if !ok {
		return source
	}
	switch strings.ToLower(scheme) {
	case "hf", "ollama", "file":
		return rest
	case "pvc":
		_, path, _ := strings.Cut(rest, "/")
		return path
	}
	return source
}

// metadataOf returns what both kinds say of themselves in /v1/models.
func metadataOf(obj map[string]any, version string) map[string]any {
	m := map[string]any{"version": version}
	put(m, "backend", stringOf(obj, "spec", "backend"))
	put(m, "phase", stringOf(obj, "status", "phase"))
	put(m, "served_model_name", stringOf(obj, "spec", "litellm", "servedModelName"))
	if l := namesOf(stringsOf(obj, "spec", "litellm", "aliases"), maxAliases); len(l) > 0 {
		m["aliases"] = l
	}
	if l := namesOf(stringsOf(obj, "spec", "serviceLabels"), maxGroups); len(l) > 0 {
		m["service_labels"] = l
	}
	return m
}

func put(m map[string]any, key, value string) {
	if value != "" {
		m[key] = cut(value, maxMessage)
	}
}
