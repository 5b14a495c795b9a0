package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// controlRoutes are the switches and windows of the simulation. They are always
// there: a simulated engine has nothing to protect.
func (e *Engine) controlRoutes(mux *http.ServeMux) {
	control := func(pattern string, serve func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if refusal, ok := errors.AsType[*apiError](serve(w, r)); ok {
				w.WriteHeader(refusal.status)
				_, _ = w.Write((&exchange{}).errorBody(refusal))
			}
		})
	}
	show := func(value func() any) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, _ *http.Request) error { return json.NewEncoder(w).Encode(value()) }
	}
	done := func(do func()) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, _ *http.Request) error {
			do()
			w.WriteHeader(http.StatusNoContent)
			return nil
		}
	}
	control("POST /_sim/failures", e.postFaults)
	control("GET /_sim/failures", show(func() any { return e.faults.list() }))
	control("DELETE /_sim/failures", done(func() { e.faults.replace(nil) }))
	control("GET /_sim/requests", show(func() any { return e.history.list() }))
	control("DELETE /_sim/requests", done(e.history.clear))
	control("GET /_sim/state", show(func() any { return e.State() }))
	control("DELETE /_sim/cache", done(e.ClearCache))
}

// A State is what an engine is busy with.
type State struct {
	Name         string   `json:"name"`
	Models       []string `json:"models"`
	Running      int64    `json:"running"`
	Waiting      int      `json:"waiting"`
	KVBlocks     int      `json:"kv_blocks"`
	UsedBlocks   int      `json:"used_blocks"`
	CachedBlocks int      `json:"cached_blocks"`
}

// State returns what e is busy with.
func (e *Engine) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return State{
		Name:         e.cfg.Name,
		Models:       e.cfg.Models,
		Running:      e.running.Load(),
		Waiting:      e.waiting.Len(),
		KVBlocks:     e.cfg.KVBlocks,
		UsedBlocks:   e.cache.used(),
		CachedBlocks: len(e.cache.shared),
	}
}

// ClearCache empties the prefix cache.
func (e *Engine) ClearCache() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cache.clear()
}

// historySize is how many requests an engine remembers.
const historySize = 1000

// A history is the latest requests, for tests to look at.
type history struct {
	mu   sync.Mutex
	ring [historySize]*note
	next int
}

// A note is what is remembered of a request.
type note struct {
	Time         time.Time   `json:"time"`
	Method       string      `json:"method"`
	Path         string      `json:"path"`
	Query        string      `json:"query,omitempty"`
	Host         string      `json:"host"`
	Proto        string      `json:"proto"`
	Headers      http.Header `json:"headers"`
	BodyLength   int         `json:"body_length"`
	BodySHA256   string      `json:"body_sha256"`
	Model        string      `json:"model,omitempty"`
	PromptTokens int         `json:"prompt_tokens"`
	CachedTokens int         `json:"cached_tokens"`

	sum [sha256.Size]byte
}

func (h *history) add(r *http.Request, body []byte) *note {
	n := &note{
		Time:       time.Now(),
		Method:     r.Method,
		Path:       r.URL.Path,
		Query:      r.URL.RawQuery,
		Host:       r.Host,
		Proto:      r.Proto,
		Headers:    r.Header.Clone(),
		BodyLength: len(body),
		sum:        sha256.Sum256(body),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ring[h.next%historySize] = n
	h.next++
	return n
}

// update lets change add to a note what is learnt later.
func (h *history) update(n *note, change func(n *note)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(n)
}

// list returns the requests, the oldest first.
func (h *history) list() []note {
	h.mu.Lock()
	defer h.mu.Unlock()
	notes := make([]note, 0, min(h.next, historySize))
	for i := max(0, h.next-historySize); i < h.next; i++ {
		n := *h.ring[i%historySize]
		n.BodySHA256 = hex.EncodeToString(n.sum[:])
		notes = append(notes, n)
	}
	return notes
}

func (h *history) clear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.ring[:])
	h.next = 0
}

// unmarshalStrict reads one JSON value into v and refuses names v does not have:
// a misspelt switch would silently do nothing.
func unmarshalStrict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
