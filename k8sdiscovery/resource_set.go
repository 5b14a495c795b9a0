package k8sdiscovery

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A resourceSet holds what is known of the resources, and turns it into models.
// What has not changed is not translated again. It is not safe for concurrent
// use.
type resourceSet struct {
	groups      []string // API groups, the first one's resources first
	stalledLoad time.Duration
	coldStart   time.Duration
	rank        func(namespace string) int // of two namespaces, the lower one's model wins
	activator   func(Ref) routing.Activator
	endpoints   func(key types.NamespacedName, port, model string) ([]routing.Spec, []string)

	objects   map[Ref]map[string]any // as the API server has them
	adapters  map[Ref]adapter
	gpuGroups map[Ref]string // the active model of each
	services  map[types.NamespacedName]*service
	lastPorts map[types.NamespacedName]int32

	translations map[Ref]*translation
	ordered      []*translation // the same, as compare has them; nil if that is not known
	changed      map[Ref]struct{}
	models       []routing.Model
	warned       map[string]struct{} // what is wrong now
}

// An adapter is what a LoRAAdapter says.
type adapter struct{ name, model string }

func newResourceSet() *resourceSet {
	return &resourceSet{
		objects:      make(map[Ref]map[string]any),
		adapters:     make(map[Ref]adapter),
		gpuGroups:    make(map[Ref]string),
		services:     make(map[types.NamespacedName]*service),
		lastPorts:    make(map[types.NamespacedName]int32),
		translations: make(map[Ref]*translation),
		changed:      make(map[Ref]struct{}),
		warned:       make(map[string]struct{}),
	}
}

// setObject takes over a Model or ModelDeployment; nil if it is gone.
func (s *resourceSet) setObject(ref Ref, obj map[string]any) {
	if t := s.translations[ref]; t != nil && stringOf(s.objects[ref], "metadata", "uid") != stringOf(obj, "metadata", "uid") {
		if h, ok := t.traits.Activator.(*Handle); ok {
			h.woken.Store(nil) // another of the same name was not
		}
	}
	if obj == nil {
		delete(s.objects, ref)
	} else {
		s.objects[ref] = obj
	}
	s.changed[ref] = struct{}{}
}

// setAdapter takes over a LoRAAdapter; nil if it is gone.
func (s *resourceSet) setAdapter(ref Ref, obj map[string]any) {
	if obj == nil {
		delete(s.adapters, ref)
		return
	}
	s.adapters[ref] = adapter{name: strings.TrimSpace(stringOf(obj, "spec", "adapterName")), model: stringOf(obj, "spec", "modelRef")}
}

// setGPUGroup takes over a GPUGroup; nil if it is gone.
func (s *resourceSet) setGPUGroup(ref Ref, obj map[string]any) {
	active, had := s.gpuGroups[ref]
	if obj == nil {
		delete(s.gpuGroups, ref)
	} else {
		s.gpuGroups[ref] = stringOf(obj, "status", "activeModel")
	}
	if now, has := s.gpuGroups[ref]; now == active && has == had {
		return
	}
	for other, obj := range s.objects {
		if other.Kind == KindModelDeployment && other.Namespace == ref.Namespace && stringOf(obj, "spec", "gpuGroupRef") == ref.Name {
			s.changed[other] = struct{}{}
		}
	}
}

// setService takes over a Service; nil if it is gone.
func (s *resourceSet) setService(key types.NamespacedName, found *service) {
	if found == nil {
		delete(s.services, key)
	} else {
		s.services[key] = found
	}
	s.touch(key)
}

// touch has the models behind a Service translated again.
func (s *resourceSet) touch(key types.NamespacedName) {
	for _, group := range s.groups {
		for _, kind := range []string{KindModel, KindModelDeployment} {
			ref := Ref{Group: group, Kind: kind, Namespace: key.Namespace, Name: key.Name}
			if s.objects[ref] != nil {
				s.changed[ref] = struct{}{}
			}
		}
	}
}

// A summary is what became of the resources.
type summary struct {
	models   []routing.Model
	changed  bool
	due      time.Time      // when a state changes by itself; zero if never
	warnings []string       // that are new
	stalled  []*translation // models that got stalled since
}

// rebuild translates what has changed.
func (s *resourceSet) rebuild(now time.Time) (sum summary) {
	for _, t := range s.ordered {
		if !t.due.IsZero() && !t.due.After(now) {
			s.changed[t.ref] = struct{}{}
		}
	}
	for ref := range s.changed {
		if t := s.translate(ref, now); t != nil {
			sum.stalled = append(sum.stalled, t)
		}
	}
	clear(s.changed)

	if s.ordered == nil {
		s.ordered = slices.SortedFunc(maps.Values(s.translations), func(a, b *translation) int { return s.compare(a.ref, b.ref) })
	}
	var problems []string
	for _, t := range s.ordered {
		if !t.due.IsZero() && (sum.due.IsZero() || t.due.Before(sum.due)) {
			sum.due = t.due
		}
		problems = append(problems, t.warnings...)
	}
	models, more := s.assemble()
	problems = append(problems, more...)
	warned := make(map[string]struct{}, len(problems))
	for _, p := range problems {
		if _, ok := s.warned[p]; !ok {
			sum.warnings = append(sum.warnings, p)
		}
		warned[p] = struct{}{}
	}
	slices.Sort(sum.warnings)
	sum.warnings = slices.Compact(sum.warnings)
	s.warned = warned
	sum.changed = !slices.EqualFunc(models, s.models, sameModel)
	if sum.changed {
		s.models = models
	}
	sum.models = s.models
	return sum
}

// translate translates one resource anew and keeps of the old translation what
// has stayed the same. It returns the new one if the model got stalled.
func (s *resourceSet) translate(ref Ref, now time.Time) *translation {
	obj, key := s.objects[ref], ref.key()
	svc := s.services[key]
	if obj == nil {
		delete(s.translations, ref)
		s.ordered = nil
		if svc == nil {
			delete(s.lastPorts, key)
		}
		return nil
	}
	if svc != nil && svc.port > 0 {
		s.lastPorts[key] = svc.port
	}
	in := surroundings{
		now: now, stalledLoad: s.stalledLoad, coldStart: s.coldStart, service: svc, lastPort: s.lastPorts[key],
		endpoints: func(model string) ([]routing.Spec, []string) {
			port := ""
			if svc != nil {
				port = svc.portName
			}
			return s.endpoints(key, port, model)
		},
		activeModel: func(group string) (string, bool) {
			active, ok := s.gpuGroups[Ref{Group: ref.Group, Namespace: ref.Namespace, Name: group}]
			return active, ok
		},
	}
	t, old := translate(ref, obj, in), s.translations[ref]
	if s.activator != nil {
		t.traits.Activator = s.activator(ref)
	}
	t.awaitEndpoints(old, now)
	s.translations[ref] = t
	if i, ok := slices.BinarySearchFunc(s.ordered, t, func(a, b *translation) int { return s.compare(a.ref, b.ref) }); ok {
		s.ordered[i] = t
	} else {
		s.ordered = nil
	}
	if old != nil {
		if slices.EqualFunc(t.endpoints, old.endpoints, func(a, b routing.Spec) bool { return a.Equal(&b) }) {
			t.endpoints = old.endpoints
		}
		if reflect.DeepEqual(t.traits, old.traits) {
			t.traits = old.traits
		}
	}
	if t.traits.State.Phase == routing.Stalled && (old == nil || old.traits.State.Phase != routing.Stalled) {
		return t
	}
	return nil
}

// endpointsWithin is how soon a model that becomes ready has endpoints: those are
// watched apart from it, so that they may be seen later.
const endpointsWithin = 2 * time.Second

// awaitEndpoints has calls go on waiting for a model that has just become ready
// and has no endpoints yet, rather than go to its Service, which may not have
// any either.
func (t *translation) awaitEndpoints(old *translation, now time.Time) {
	if old == nil || t.traits.State.Phase != routing.Serving || len(t.endpoints) > 0 {
		return
	}
	t.ready = old.ready
	if t.ready.IsZero() && old.traits.State.Phase != routing.Serving {
		t.ready = now
	}
	if until := t.ready.Add(endpointsWithin); !t.ready.IsZero() && now.Before(until) {
		t.traits.State = routing.State{Phase: routing.Asleep, Substage: "endpoints"}
		t.due = until
	}
}

// sameModel reports whether nothing has changed about a model.
func sameModel(a, b routing.Model) bool {
	return a.Name == b.Name && a.Traits == b.Traits && len(a.Endpoints) == len(b.Endpoints) &&
		(len(a.Endpoints) == 0 || &a.Endpoints[0] == &b.Endpoints[0]) &&
		slices.Equal(a.Aliases, b.Aliases) && slices.Equal(a.Adapters, b.Adapters)
}

// compare orders the resources by name. Of several with the same one the first
// has it: a Model before a ModelDeployment, then the namespace that is configured
// first, then the API group that apiGroups has first.
func (s *resourceSet) compare(a, b Ref) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return cmp.Or(
		strings.Compare(a.Kind, b.Kind), // Model comes first by itself
		cmp.Compare(s.rank(a.Namespace), s.rank(b.Namespace)),
		strings.Compare(a.Namespace, b.Namespace),
		cmp.Compare(slices.Index(s.groups, a.Group), slices.Index(s.groups, b.Group)))
}

// compareClaims orders what asks for aliases and for the names of adapters: the
// namespace that is configured first, so that the others can take nothing from
// it, then by name.
func (s *resourceSet) compareClaims(a, b Ref) int {
	return cmp.Or(
		cmp.Compare(s.rank(a.Namespace), s.rank(b.Namespace)),
		strings.Compare(a.Namespace, b.Namespace),
		s.compare(a, b))
}

// assemble gives out the names.
func (s *resourceSet) assemble() (models []routing.Model, warnings []string) {
	models = make([]routing.Model, 0, len(s.ordered))
	owners := make([]*translation, 0, len(s.ordered))
	for _, t := range s.ordered {
		if n := len(owners); n > 0 && owners[n-1].ref.Name == t.ref.Name {
			first := owners[n-1].ref
			if first.key() != t.ref.key() || first.Kind == t.ref.Kind { // else it is on its way from one kind to the other
				warnings = append(warnings, fmt.Sprintf("%s of %s is left out: the name is taken by %s of %s",
					t.ref, t.ref.Group, first, first.Group))
			}
			continue
		}
		owners = append(owners, t)
		models = append(models, routing.Model{Name: t.ref.Name, Endpoints: t.endpoints, Traits: t.traits})
	}

	// Whoever comes first has a name that several ask for.
	claims := make([]int, 0, len(owners))
	for i, t := range owners {
		if len(t.aliases) > 0 {
			claims = append(claims, i)
		}
	}
	slices.SortFunc(claims, func(a, b int) int { return s.compareClaims(owners[a].ref, owners[b].ref) })
	taken := make(map[string]string)
	for _, i := range claims {
		t := owners[i]
		for _, alias := range t.aliases {
			if owner, ok := taken[alias]; ok {
				warnings = append(warnings, fmt.Sprintf("alias %q of model %s is left out: model %s has it", alias, t.ref.Name, owner))
				continue
			}
			taken[alias] = t.ref.Name
			models[i].Aliases = append(models[i].Aliases, alias)
		}
	}

	place := func(name string) (int, bool) {
		return slices.BinarySearchFunc(models, name, func(m routing.Model, name string) int { return strings.Compare(m.Name, name) })
	}
	refs := slices.SortedFunc(maps.Keys(s.adapters), s.compareClaims)
	adapted := make(map[string]string)
	over := make(map[int]int)
	for _, ref := range refs {
		a := s.adapters[ref]
		i, ok := place(a.model)
		if !ok || owners[i].ref.Namespace != ref.Namespace {
			continue // its model may come
		}
		_, isModel := place(a.name)
		owner, isAdapter := adapted[a.name]
		switch {
		case a.name != "" && !isName(a.name):
			warnings = append(warnings, fmt.Sprintf("LoRAAdapter %s is left out: its adapterName is %.32q; %s", ref.key(), a.name, instead))
		case a.name == "":
			warnings = append(warnings, fmt.Sprintf("LoRAAdapter %s is left out: write its adapterName", ref.key()))
		case isModel:
			warnings = append(warnings, fmt.Sprintf("LoRAAdapter %s is left out: %s is the name of a model", ref.key(), a.name))
		case isAdapter && owner == a.model: // the same thing said twice
		case isAdapter:
			warnings = append(warnings, fmt.Sprintf("LoRAAdapter %s is left out: model %s has an adapter %s", ref.key(), owner, a.name))
		case len(models[i].Adapters) == maxAdapters:
			over[i]++
		default:
			adapted[a.name] = a.model
			models[i].Adapters = append(models[i].Adapters, a.name)
		}
	}
	for i, n := range over {
		warnings = append(warnings, fmt.Sprintf("of the %d LoRAAdapters of model %s those after the first %d are left out; a model has at most so many",
			maxAdapters+n, models[i].Name, maxAdapters))
	}
	return models, warnings
}
