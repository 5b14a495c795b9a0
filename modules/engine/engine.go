// Package engine holds the HTTP handler that is a simulated inference engine.
package engine

import (
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/flexinfer/caddy-flexinfer/modules/engine/sim"
)

func init() {
	caddy.RegisterModule(Handler{})
	httpcaddyfile.RegisterHandlerDirective("flexinfer_engine", parseCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder("flexinfer_engine", httpcaddyfile.Before, "reverse_proxy")
}

// Handler is a simulated inference engine, for demonstrations, tests and
// gateways without a GPU behind them. It answers every request itself.
//
// It speaks OpenAI's API (`/v1/chat/completions`, `/v1/completions`,
// `/v1/embeddings`, `/v1/responses`, `/v1/audio/transcriptions`,
// `/v1/audio/speech`, `/v1/models`), Anthropic's `/v1/messages`, Ollama's
// (`/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`, `/api/show`,
// `/api/tags`, `/api/ps`, `/api/version`), and has vLLM's `/v1/rerank`,
// `/tokenize`, `/detokenize`, `/version`, `/health` and `/metrics`. The words of
// an answer are drawn from a small vocabulary and depend on the prompt alone;
// their number is the client's limit, or 16. Speech is a tone in WAV. The header
// `X-Engine-Id` names the engine that gave an answer, and so does the field
// `system_fingerprint` in OpenAI's API.
//
// The latest 1000 responses, 64 MiB at most, are kept in memory, unless `store`
// is false: `previous_response_id` goes on with one, and `/v1/responses/<id>`
// shows or deletes it. Other engines do not know them.
//
// What a gateway can feel is like that of a real engine. Prompts are cut into
// tokens of about four bytes and these into blocks; blocks are kept in a prefix
// cache and the least recently used go first. Prompts are computed one at a
// time, without the tokens found in the cache. On a stream, status and headers
// are sent before the prompt is computed. A token takes up to half as long
// again when the engine is full. Sequences for which there is no place or no
// room in the cache wait, first come first served. A client that leaves frees
// its place at once.
//
// Under `/_sim/` are switches:
//
// Request | Effect
// --------|-------
// `POST /_sim/failures` | sets a fault, in place of the one with the same `path`; an array of faults replaces all
// `GET /_sim/failures` | shows the faults that are set
// `DELETE /_sim/failures` | clears them
// `GET /_sim/requests` | shows the latest 1000 requests, with the tokens of their prompts and the hash of their bodies
// `DELETE /_sim/requests` | forgets them
// `GET /_sim/state` | shows what runs and waits, and how full the cache is
// `DELETE /_sim/cache` | empties the prefix cache
//
// A fault has these members, all of them optional:
//
// Member | Meaning
// -------|--------
// `path` | the one path that fails; without it, every path that takes prompts or inputs
// `count` | how many requests fail; 0 is all, until cleared
// `status`, `body`, `headers` | what is answered instead; without a status, `headers` are added to the true answer
// `delay_headers` | how long everything is held back, such as `2s`
// `delay` | how long the first byte of the body is held back; the headers of a stream go before it
// `reset` | when the connection is reset: `before_headers`, `after_headers` or `mid_stream`
// `after_tokens` | the tokens before a reset `mid_stream`; without a stream, half the body goes before it
//
// The switches are open to whoever reaches the engine: do not put one where
// strangers do.
//
// An engine keeps its cache and its metrics across reloads for as long as its
// settings stay the same.
type Handler struct {
	// What the engine is called. Handlers with the same name and settings
	// are one engine. Default: the server's first listen address.
	Name string `json:"name,omitempty"`

	// The models that the engine serves. The first one answers requests that
	// name none. Default: `sim`.
	Models []string `json:"model,omitempty"`

	// The time to the first token that no cache saves. Default: `20ms`.
	TTFT *caddy.Duration `json:"ttft,omitempty"`

	// How many tokens of prompts are computed per second. 0 is no delay.
	// Default: `10000`.
	PrefillTokensPerSecond *float64 `json:"prefill_tokens_per_second,omitempty"`

	// How many tokens per second one answer gets when it is alone. 0 is no
	// delay. Default: `200`.
	TokensPerSecond *float64 `json:"tokens_per_second,omitempty"`

	// How many blocks the cache holds. Default: `4096`.
	KVBlocks int `json:"kv_blocks,omitempty"`

	// How many tokens a block holds. Default: `16`.
	BlockSize int `json:"block_size,omitempty"`

	// How many sequences run at once; further ones wait. Default: `64`.
	MaxNumSeqs int `json:"max_num_seqs,omitempty"`

	// The context window in tokens, prompt and answer together. Default: as
	// many as the cache holds.
	MaxModelLen int `json:"max_model_len,omitempty"`

	engine *sim.Engine
	key    string
}

// engines are kept for the process, so that a reload does not empty the caches
// of engines it does not concern.
var engines = caddy.NewUsagePool()

// pooled makes an engine fit for a usage pool. There is nothing to destruct:
// requests of the old configuration may still be running, and memory is all
// that an engine has.
type pooled struct{ *sim.Engine }

func (pooled) Destruct() error { return nil }

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.flexinfer_engine",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up the engine.
func (h *Handler) Provision(ctx caddy.Context) error {
	cfg := h.config(ctx)
	key := fmt.Sprintf("%+v", cfg)
	value, known, err := engines.LoadOrNew(key, func() (caddy.Destructor, error) {
		e, err := sim.New(cfg)
		return pooled{e}, err
	})
	if err != nil {
		return fmt.Errorf("setting up the engine: %w", err)
	}
	h.key = key
	h.engine = value.(pooled).Engine
	ctx.Logger().Debug("simulated engine",
		zap.String("name", cfg.Name), zap.Strings("models", cfg.Models), zap.Bool("kept", known))
	return nil
}

// config returns the engine's settings, with defaults for those not given.
func (h *Handler) config(ctx caddy.Context) sim.Config {
	cfg := sim.DefaultConfig()
	if srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && len(srv.Listen) > 0 {
		cfg.Name = srv.Listen[0]
	}
	if h.Name != "" {
		cfg.Name = h.Name
	}
	if len(h.Models) > 0 {
		cfg.Models = h.Models
	}
	if h.TTFT != nil {
		cfg.TTFT = time.Duration(*h.TTFT)
	}
	if h.PrefillTokensPerSecond != nil {
		cfg.PrefillRate = *h.PrefillTokensPerSecond
	}
	if h.TokensPerSecond != nil {
		cfg.DecodeRate = *h.TokensPerSecond
	}
	if h.KVBlocks != 0 {
		cfg.KVBlocks = h.KVBlocks
	}
	if h.BlockSize != 0 {
		cfg.BlockSize = h.BlockSize
	}
	if h.MaxNumSeqs != 0 {
		cfg.MaxNumSeqs = h.MaxNumSeqs
	}
	cfg.MaxModelLen = h.MaxModelLen
	return cfg
}

// Cleanup gives the engine back.
func (h *Handler) Cleanup() error {
	if h.key == "" {
		return nil
	}
	key := h.key
	h.key = ""
	_, err := engines.Delete(key)
	return err
}

// ServeHTTP answers the request. The next handler is not called.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	h.engine.ServeHTTP(w, r)
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
