package catalog

import (
	"strings"
)

// A Table is what is known of all models at one moment. It does not change.
type Table struct {
	names   map[string]Resolved
	models  []*Model
	settled bool
}

// Resolved is what a name stands for.
type Resolved struct {
	Model *Model

	// Adapter is the name, if it is that of one of the model's adapters.
	Adapter string
}

// Resolve returns what name stands for. As Ollama's clients write it, a name
// may end in :latest.
func (t *Table) Resolve(name string) (Resolved, bool) {
	r, ok := t.names[name]
	if !ok {
		if name, latest := strings.CutSuffix(name, ":latest"); latest {
			r, ok = t.names[name]
		}
	}
	return r, ok
}

// Models returns all models in the order in which they are listed.
func (t *Table) Models() []*Model { return t.models }

// Settled reports whether every source has had time to find its models. Until
// then a name that does not resolve may still turn out to be one.
func (t *Table) Settled() bool { return t.settled }

// admit lets the metrics of t's models speak of the endpoints in t, until
// retire.
func (t *Table) admit() {
	for _, m := range t.models {
		for i := range m.Snapshot.Len() {
			m.Metrics.Admit(m.Snapshot.At(i).Target())
		}
	}
}

// retire undoes admit. t may be nil.
func (t *Table) retire() {
	if t == nil {
		return
	}
	for _, m := range t.models {
		for i := range m.Snapshot.Len() {
			m.Metrics.Retire(m.Snapshot.At(i).Target())
		}
	}
}

// LongestName splits rest, the part of a path after /model/, into the longest
// known name that it begins with and what follows the name. Names may hold
// slashes.
func (t *Table) LongestName(rest string) (name, remainder string, ok bool) {
	const mostSegments = 32 // bounds the work that a hostile path can ask for
	end := 0
	for range mostSegments {
		i := strings.IndexByte(rest[end:], '/')
		next := len(rest)
		if i >= 0 {
			next = end + i
		}
		if _, known := t.names[rest[:next]]; known {
			name, remainder, ok = rest[:next], rest[next:], true
		}
		if i < 0 {
			break
		}
		end = next + 1
	}
	return name, remainder, ok
}
