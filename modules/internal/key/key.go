// Package key works out which KV cache a request would hit: its session key,
// which stays the same on every turn of a conversation, and its prefix key,
// which requests share that begin with the same system prompt, tools or
// document.
//
// Keys come from headers and from the [openai.Doc] of the body. None of the
// functions fails or allocates; each takes time linear in what it reads, and
// reads the body only as far as it must. Keys have no meaning outside of this
// process and may change from one release to the next.
package key

import (
	"net/http"
	"strings"
	"unicode"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Config bounds keys and lists where else sessions are named. It may be used
// by many goroutines at once, as long as nobody changes it. Bounds that are
// not positive stand for the defaults.
type Config struct {
	// ExplicitMax is the length of the longest explicit key that is taken,
	// in characters. Default 128.
	ExplicitMax int

	// SystemMax is how much of each system message, of the field prefix and
	// of a prompt counts, in bytes after normalisation. Default 512.
	SystemMax int

	// DocumentMax is how much of the document context counts, in bytes after
	// normalisation. Default 256.
	DocumentMax int

	// SessionHeaders are headers that name a session, in order of
	// preference, behind X-Session-ID, X-Conversation-ID and the body's
	// session_id. Names in Go's canonical form (X-Session-Id) save time.
	SessionHeaders []string

	// SessionFields are fields of the body that do, behind SessionHeaders.
	// Dots lead into nested objects.
	SessionFields []string
}

// The default bounds.
const (
	defaultExplicitMax = 128
	defaultSystemMax   = 512
	defaultDocumentMax = 256
)

// Default returns the shipped configuration. It knows the session headers of
// the common coding agents and chat front ends. (Headers with underscores,
// like the session_id of older Codex versions, never arrive: Caddy drops
// them.)
func Default() Config {
	return Config{
		ExplicitMax: defaultExplicitMax,
		SystemMax:   defaultSystemMax,
		DocumentMax: defaultDocumentMax,
		SessionHeaders: []string{
			"X-Claude-Code-Session-Id", // Claude Code
			"X-Opencode-Session",       // OpenCode, Hermes
			"X-Session-Affinity",       // OpenCode, Pi, Kilo Code
			"Session-Id",               // Codex CLI
			"Thread-Id",                // Codex CLI
			"X-Amp-Thread-Id",          // Amp
			"X-Kilocode-Taskid",        // Kilo Code
			"X-Client-Session-Id",      // GitHub Copilot CLI
			"X-Openwebui-Chat-Id",      // Open WebUI
			"X-Litellm-Session-Id",     // clients of LiteLLM
		},
		SessionFields: []string{
			"metadata.user_id", // Claude Code puts the session into it
		},
	}
}

// bound returns n, or the default if n is not positive.
func bound(n, byDefault int) int {
	if n <= 0 {
		return byDefault
	}
	return n
}

// Session returns the key of the conversation, from the first of these that
// is there and not blank:
//
//   - the header X-Session-ID,
//   - the header X-Conversation-ID,
//   - the body's session_id,
//   - the headers, then the fields that c lists,
//   - the opening of the conversation: everything up to and including the
//     first message of the user.
//
// Values count verbatim and at any length, and give the same key whichever
// of the named sources they come from. Of a header that is sent more than
// once only the first value counts. A field that is not a string is not
// there. d may be nil, for a request without a JSON body.
func (c *Config) Session(h http.Header, d *openai.Doc) routing.Key {
	if k, ok := headerKey(h, "X-Session-Id", routing.SourceSessionHeader); ok {
		return k
	}
	if k, ok := headerKey(h, "X-Conversation-Id", routing.SourceConversationHeader); ok {
		return k
	}
	if d != nil {
		if k, ok := fieldKey(d, d.Field(openai.FieldSessionID)); ok {
			return k
		}
	}
	for _, name := range c.SessionHeaders {
		if k, ok := headerKey(h, name, routing.SourceSessionHeader); ok {
			return k
		}
	}
	if d == nil {
		return routing.Key{}
	}
	for _, path := range c.SessionFields {
		if k, ok := fieldKey(d, d.Lookup(path)); ok {
			return k
		}
	}
	if hash, ok := openingKey(d); ok {
		return routing.Key{Hash: hash, Source: routing.SourceSessionMessages}
	}
	return routing.Key{}
}

// headerKey returns the session key that the first value of a header gives.
func headerKey(header http.Header, name string, source routing.KeySource) (routing.Key, bool) {
	value := header.Get(name)
	if strings.TrimSpace(value) == "" {
		return routing.Key{}, false
	}
	h := newHasher(domainSession)
	h.string(value)
	return routing.Key{Hash: h.sum(), Source: source}, true
}

// fieldKey returns the session key that a string of the body gives.
func fieldKey(d *openai.Doc, s openai.Span) (routing.Key, bool) {
	raw, ok := d.Text(s)
	if !ok || isBlank(raw) {
		return routing.Key{}, false
	}
	h := newHasher(domainSession)
	h.unquoted(raw)
	return routing.Key{Hash: h.sum(), Source: routing.SourceSessionBody}, true
}

// isBlank reports whether the inside of a JSON string is white space only.
func isBlank(raw []byte) bool {
	for len(raw) > 0 {
		r, size := openai.NextRune(raw)
		if !unicode.IsSpace(r) {
			return false
		}
		raw = raw[size:]
	}
	return true
}

// Prefix returns the key of the head of the prompt: that of [Config.Head], or
// the session key, under the source session-fallback.
func (c *Config) Prefix(model, adapter string, h http.Header, d *openai.Doc) routing.Key {
	if k := c.Head(model, adapter, h, d); k.Usable() {
		return k
	}
	return Fallback(c.Session(h, d))
}

// Fallback returns a session key as the prefix key of a request without one
// of its own.
func Fallback(session routing.Key) routing.Key {
	if session.Usable() {
		session.Source = routing.SourceSessionFallback
	}
	return session
}

// Head returns the prefix key proper, from the first of these that is there
// and usable:
//
//   - the header X-Flexinfer-Cache-Key,
//   - the body's cache_key, cacheKey, prompt_cache_key,
//   - the body's prefix, normalised,
//   - the canonical context: the model, the adapter and cache_salt with the
//     tools, the system messages and the document, if there is any of these,
//     or with the head of a plain prompt. A prompt of Ollama's that goes on
//     with a context of tokens begins with that.
//
// An explicit key is trimmed and lower-cased, and is usable if it then
// consists of 1 to ExplicitMax of the characters A-Za-z0-9._:/=- only. It
// means the same under every model.
//
// model is the name that the request resolved to; if it is empty, the body's
// takes its place. adapter is the LoRA adapter, if any. d may be nil.
func (c *Config) Head(model, adapter string, h http.Header, d *openai.Doc) routing.Key {
	limit := bound(c.ExplicitMax, defaultExplicitMax)
	if hash, ok := explicitKey(strings.TrimSpace(h.Get("X-Flexinfer-Cache-Key")), limit); ok {
		return routing.Key{Hash: hash, Source: routing.SourceExplicitHeader}
	}
	if d == nil {
		return routing.Key{}
	}
	if hash, ok := explicitField(d, limit); ok {
		return routing.Key{Hash: hash, Source: routing.SourceExplicitBody}
	}
	if hash, ok := c.prefixField(d); ok {
		return routing.Key{Hash: hash, Source: routing.SourcePrefixField}
	}
	if hash, ok := c.canonical(model, adapter, d); ok {
		return routing.Key{Hash: hash, Source: routing.SourceCanonical}
	}
	return routing.Key{}
}

// Continues reports whether the request is a later turn of a conversation. d
// may be nil.
func Continues(d *openai.Doc) bool {
	return d != nil && (d.Continues() || soFar(d).Present())
}
