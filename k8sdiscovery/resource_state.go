package k8sdiscovery

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const (
	phaseReady   = "Ready"
	phaseLoading = "Loading"
	phaseFailed  = "Failed"

	// Only this stage of loading reports progress.
	substageWeights = "LoadingWeights"
)

// stalledRetry is when to ask again for a model whose loading gets nowhere.
const stalledRetry = 30 * time.Second

// modelState returns whether a Model serves calls, and when that changes by
// itself, zero if it does not.
func modelState(name string, obj map[string]any, now time.Time, stalledLoad time.Duration) (s routing.State, due time.Time) {
	phase := stringOf(obj, "status", "phase")
	if phase == phaseReady {
		return s, due // even if it is parked
	}
	if isParked(obj) {
		return routing.State{Phase: routing.Parked, Message: oneLine(fmt.Sprintf("model %s is parked", name))}, due
	}
	if by := stringOf(obj, "status", "sharedGroup", "preemptedBy"); strings.HasPrefix(by, "primary/") {
		return routing.State{Phase: routing.Preempted, Message: oneLine(fmt.Sprintf("model %s is parked behind %s", name, by))}, due
	}
	message, substage := stringOf(obj, "status", "message"), oneLine(stringOf(obj, "status", "loadingSubstage"))
	switch phase {
	case phaseFailed:
		return routing.State{Phase: routing.Failed, Message: failure(name, obj)}, due
	case phaseLoading:
		since := timeOf(obj, "status", "loadingProgressAt")
		if substage != substageWeights || since.IsZero() {
			break
		}
		age := now.Sub(since)
		if age < stalledLoad {
			due = since.Add(stalledLoad)
			break
		}
		text := fmt.Sprintf("model %s gets nowhere: no progress in %s for %s", name, substage, age.Round(time.Second))
		if message != "" {
			text += ": " + message
		}
		return routing.State{Phase: routing.Stalled, Message: oneLine(text), Substage: substage, RetryAfter: stalledRetry}, due
	}
	return routing.State{Phase: routing.Asleep, Message: oneLine(message), Substage: substage}, due
}

// isParked reports whether a Model is explicitly not to be served.
func isParked(obj map[string]any) bool {
	enabled, ok := fieldOf[bool](obj, "spec", "litellm", "enabled")
	return ok && !enabled
}

// deploymentState returns whether a ModelDeployment serves calls.
func deploymentState(name string, obj map[string]any, ready bool) routing.State {
	switch {
	case ready:
		return routing.State{}
	case stringOf(obj, "status", "phase") == phaseFailed && replicasOf(obj) > 0:
		return routing.State{Phase: routing.Failed, Message: failure(name, obj)}
	}
	return routing.State{Phase: routing.Asleep, Message: oneLine(stringOf(obj, "status", "message"))}
}

func deploymentReady(obj map[string]any) bool {
	if replicasOf(obj) == 0 {
		return false
	}
	for c := range conditionsOf(obj) {
		if stringOf(c, "type") == "Ready" {
			return stringOf(c, "status") == "True"
		}
	}
	return false
}

// replicasOf returns how many replicas a ModelDeployment is to have.
func replicasOf(obj map[string]any) int {
	if n, ok := numberOf(obj, "spec", "replicas"); ok {
		return n
	}
	return 1
}

func conditionsOf(obj map[string]any) func(yield func(map[string]any) bool) {
	list, _ := fieldOf[[]any](obj, "status", "conditions")
	return func(yield func(map[string]any) bool) {
		for _, v := range list {
			if c, ok := v.(map[string]any); ok && !yield(c) {
				return
			}
		}
	}
}

// failure says why a resource is in the phase Failed.
func failure(name string, obj map[string]any) string {
	why := stringOf(obj, "status", "message")
	for c := range conditionsOf(obj) {
		if why != "" {
			break
		}
		if stringOf(c, "status") != "True" {
			why = cmp.Or(stringOf(c, "message"), stringOf(c, "reason"))
		}
	}
	return oneLine(fmt.Sprintf("model %s failed: %s", name, cmp.Or(why, "its resource does not say why")))
}
