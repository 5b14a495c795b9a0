// Package sim is a simulated inference engine: the APIs of OpenAI, Anthropic
// and Ollama in front of words drawn from a fixed vocabulary, with the parts of
// a real engine that a gateway can feel. Prompts are cut into tokens and blocks,
// the blocks are kept in a prefix cache of bounded size, prompts are computed
// one at a time, and sequences wait when the engine is full. It needs no GPU and
// no model.
//
// Every answer is a function of the prompt alone, so that two engines give the
// same one; X-Engine-Id and system_fingerprint tell them apart.
//
// An Engine starts no goroutine: each request is worked on by the goroutine
// that serves it, and what requests share is guarded by one mutex.
package sim

import (
	"container/list"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// A Config says what an engine serves and how fast it is.
type Config struct {
	// Name tells this engine from others in X-Engine-Id and
	// system_fingerprint.
	Name string

	// Models are the names served. The first one answers requests that name
	// none. Caches are shared between models, blocks are not.
	Models []string

	// TTFT is the time to the first token that no cache saves.
	TTFT time.Duration

	// PrefillRate is how many prompt tokens are computed per second, one
	// prompt at a time. 0 is no delay.
	PrefillRate float64

	// DecodeRate is how many tokens per second one sequence gets when it runs
	// alone. 0 is no delay.
	DecodeRate float64

	// KVBlocks is how many blocks of BlockSize tokens the cache holds.
	KVBlocks, BlockSize int

	// MaxNumSeqs is how many sequences run at once; further ones wait.
	MaxNumSeqs int

	// MaxModelLen is the context window in tokens, prompt and answer together.
	// 0 is all that the cache holds.
	MaxModelLen int
}

// DefaultConfig returns an engine of about the speed of a small model on one
// GPU, with a context window of 65,536 tokens.
func DefaultConfig() Config {
	return Config{
		Name:        "engine",
		Models:      []string{"sim"},
		TTFT:        20 * time.Millisecond,
		PrefillRate: 10_000,
		DecodeRate:  200,
		KVBlocks:    4096,
		BlockSize:   16,
		MaxNumSeqs:  64,
	}
}

// Validate reports what is wrong with c, and what to write instead.
func (c *Config) Validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(len(c.Models) == 0, "no model to serve: name at least one")
	seen := make(map[string]bool, len(c.Models))
	for _, m := range c.Models {
		bad(m == "", "a model's name must not be empty")
		bad(seen[m], "model %q is named twice", m)
		seen[m] = true
	}
	bad(c.TTFT < 0, "ttft %v must not be negative: write a duration such as 20ms, or 0 for none", c.TTFT)
	bad(c.PrefillRate < 0, "prefill_tokens_per_second %v must not be negative: write a rate, or 0 for no delay", c.PrefillRate)
	bad(c.DecodeRate < 0, "tokens_per_second %v must not be negative: write a rate, or 0 for no delay", c.DecodeRate)
	bad(c.KVBlocks < 1, "kv_blocks %d must be at least 1", c.KVBlocks)
	bad(c.BlockSize < 1, "block_size %d must be at least 1", c.BlockSize)
	bad(c.MaxNumSeqs < 1, "max_num_seqs %d must be at least 1", c.MaxNumSeqs)
	bad(c.MaxModelLen < 0 || c.MaxModelLen > c.KVBlocks*c.BlockSize,
		"max_model_len %d must be at most kv_blocks × block_size = %d, or 0 for all of it", c.MaxModelLen, c.KVBlocks*c.BlockSize)
	return errors.Join(errs...)
}

// An Engine serves the API of one simulated engine. Its cache and its metrics
// live as long as it does.
type Engine struct {
	cfg       Config
	models    map[string]*model
	started   time.Time
	mux       *http.ServeMux
	registry  *prometheus.Registry
	faults    faults
	history   history
	responses responses

	// running mirrors what mu guards below, for the pace of decoding, which
	// asks for it at each token.
	running atomic.Int64

	mu         sync.Mutex
	cache      *cache
	waiting    list.List // of *sequence, first come first served
	prefilling bool
}

// A model is one name that an engine serves, with what it counts for it.
type model struct {
	name string
	seed uint64

	queries, hits     atomic.Uint64 // of the prefix cache, in tokens
	prompt, generated atomic.Uint64 // tokens
	running, waiting  atomic.Int64  // sequences
}

// New returns an engine that serves cfg.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxModelLen == 0 {
		cfg.MaxModelLen = cfg.KVBlocks * cfg.BlockSize
	}
	e := &Engine{
		cfg:     cfg,
		models:  make(map[string]*model, len(cfg.Models)),
		started: time.Now(),
		cache:   newCache(cfg.KVBlocks),
	}
	for _, name := range cfg.Models {
		e.models[name] = &model{name: name, seed: xxhash.Sum64String(name)}
	}
	registry, err := e.newRegistry()
	if err != nil {
		return nil, err
	}
	e.registry = registry
	e.mux = e.routes()
	return e, nil
}

// Name returns the name the engine goes by.
func (e *Engine) Name() string { return e.cfg.Name }

// ServeHTTP answers one request.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Engine-Id", e.cfg.Name)
	e.mux.ServeHTTP(w, r)
}
