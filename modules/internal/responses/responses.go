// Package responses remembers which endpoint gave which answer of the API
// /v1/responses: what follows one up must reach the process that holds it.
package responses

import (
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A Place is where an answer is held.
type Place struct {
	// Model is the declared name of the model, Endpoint the endpoint's ID.
	Model, Endpoint string
}

const (
	// TTL is for how long an answer is remembered.
	TTL = time.Hour

	// MaxID is the longest id that is remembered, in bytes.
	MaxID = 256

	shards   = 16
	perShard = 1 << 13 // some 131,000 answers in all, the oldest go first
)

// A Store remembers answers for TTL, as many as there is room for. It may be
// used from any goroutine.
type Store struct {
	shards [shards]shard
	now    func() time.Time
}

type shard struct {
	mu    sync.Mutex
	known map[string]entry
	order []string // by age, from next on around
	next  int
}

type entry struct {
	Place
	until time.Time
}

// NewStore returns an empty store.
func NewStore() *Store { return &Store{now: time.Now} }

func (s *Store) shard(id string) *shard { return &s.shards[xxhash.Sum64String(id)%shards] }

// Bind remembers where the answer with this id is.
func (s *Store) Bind(id string, p Place) {
	if id == "" || len(id) > MaxID {
		return
	}
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.known == nil {
		sh.known = make(map[string]entry)
	}
	e := entry{Place: p, until: s.now().Add(TTL)}
	if _, ok := sh.known[id]; ok {
		sh.known[id] = e
		return
	}
	if len(sh.order) < perShard {
		sh.order = append(sh.order, id)
	} else {
		delete(sh.known, sh.order[sh.next])
		sh.order[sh.next] = id
		sh.next = (sh.next + 1) % perShard
	}
	sh.known[id] = e
}

// Find returns where the answer with this id is.
func (s *Store) Find(id string) (Place, bool) {
	if id == "" || len(id) > MaxID {
		return Place{}, false
	}
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, ok := sh.known[id]
	if !ok || s.now().After(e.until) {
		return Place{}, false
	}
	return e.Place, true
}
