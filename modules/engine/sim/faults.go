package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Moments at which a fault resets the connection.
const (
	ResetBeforeHeaders = "before_headers"
	ResetAfterHeaders  = "after_headers"
	ResetMidStream     = "mid_stream"
)

// A Fault is what befalls requests while it is set.
type Fault struct {
	// Path is the one path it befalls. Without one, it befalls every path
	// that takes prompts or inputs.
	Path string `json:"path,omitempty"`

	// Count is how many more requests it befalls. 0 is all, until cleared.
	Count int `json:"count,omitempty"`

	// Status, if not 0, is answered instead of what was asked for, with Body;
	// without one, with an error in the usual shape.
	Status int    `json:"status,omitempty"`
	Body   string `json:"body,omitempty"`

	// Headers are set on the answer.
	Headers map[string]string `json:"headers,omitempty"`

	// DelayHeaders holds back everything. Delay holds back the first byte of
	// the body: on a stream, status and headers go before it.
	DelayHeaders Duration `json:"delay_headers,omitempty"`
	Delay        Duration `json:"delay,omitempty"`

	// Reset says when the connection is reset, if at all. In the middle of a
	// stream is after AfterTokens tokens, at least 1; in the middle of
	// another answer, after half its body.
	Reset       string `json:"reset,omitempty"`
	AfterTokens int    `json:"after_tokens,omitempty"`
}

func (f *Fault) validate() error {
	switch {
	case f.Status != 0 && (f.Status < 200 || f.Status > 599):
		return badRequest("status", "status must be from 200 to 599, or 0 for none")
	case f.Count < 0:
		return badRequest("count", "count must not be negative: write how many requests to fail, or 0 for all until cleared")
	case f.AfterTokens < 0:
		return badRequest("after_tokens", "after_tokens must not be negative")
	case f.Delay < 0, f.DelayHeaders < 0:
		return badRequest("delay", "a delay must not be negative")
	case !slices.Contains([]string{"", ResetBeforeHeaders, ResetAfterHeaders, ResetMidStream}, f.Reset):
		return badRequest("reset", "reset must be %s, %s or %s", ResetBeforeHeaders, ResetAfterHeaders, ResetMidStream)
	}
	return nil
}

// A Duration is written as in Go, such as 1.5s.
type Duration time.Duration

// MarshalText writes d as Go does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration: write one such as 2s or 150ms", text)
	}
	*d = Duration(parsed)
	return nil
}

// faults are those that are set, in the order in which they are tried.
type faults struct {
	mu  sync.Mutex
	set []Fault
}

// strike returns the fault that befalls the next request of a path, if any,
// and counts it.
func (f *faults) strike(path string, inference bool) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.set {
		hit := f.set[i]
		if hit.Path != path && (hit.Path != "" || !inference) {
			continue
		}
		if hit.Count > 0 {
			if f.set[i].Count--; f.set[i].Count == 0 {
				f.set = slices.Delete(f.set, i, i+1)
			}
		}
		return hit
	}
	return Fault{}
}

// put sets one fault in place of the one with its path.
func (f *faults) put(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set = slices.DeleteFunc(f.set, func(old Fault) bool { return old.Path == fault.Path })
	f.set = append(f.set, fault)
}

func (f *faults) replace(all []Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set = all
}

func (f *faults) list() []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Fault{}, f.set...)
}

// postFaults sets the fault in the body, or the series of faults.
func (e *Engine) postFaults(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	var all []Fault
	series := len(body) > 0 && body[0] == '['
	if series {
		err = unmarshalStrict(body, &all)
	} else {
		all = make([]Fault, 1)
		err = unmarshalStrict(body, &all[0])
	}
	if err != nil {
		return badRequest("", "reading the fault: %v", err)
	}
	for i := range all {
		if err := all[i].validate(); err != nil {
			return err
		}
	}
	if series {
		e.faults.replace(all)
	} else {
		e.faults.put(all[0])
	}
	return json.NewEncoder(w).Encode(e.faults.list())
}
