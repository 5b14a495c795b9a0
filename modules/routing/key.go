package routing

import "encoding/hex"

// A Key says which KV cache a request would hit: requests with equal keys
// share a prompt prefix and belong on the same endpoint. Keys of the same
// request under different sources are unrelated.
type Key struct {
	// Hash is the key itself, 64 bits of xxhash. It has no meaning where
	// Source is SourceNone.
	Hash uint64

	// Source says where the key came from.
	Source KeySource
}

// Usable reports whether k identifies anything.
func (k Key) Usable() bool { return k.Source != SourceNone }

// String returns the key as logs and the admin API show it: 16 hex digits,
// or the empty string for an unusable key.
func (k Key) String() string {
	if !k.Usable() {
		return ""
	}
	var b [8]byte
	for i := range b {
		b[i] = byte(k.Hash >> (56 - 8*i))
	}
	return hex.EncodeToString(b[:])
}

// KeySource says which part of a request gave its key. Metrics, logs,
// matchers and the admin API use the name that String returns.
type KeySource uint8

// The sources of keys, in no particular order.
const (
	// SourceNone: the request has no usable key.
	SourceNone KeySource = iota
	// SourceExplicitHeader: the header X-Flexinfer-Cache-Key.
	SourceExplicitHeader
	// SourceExplicitBody: body cache_key, cacheKey or prompt_cache_key.
	SourceExplicitBody
	// SourcePrefixField: body prefix.
	SourcePrefixField
	// SourceCanonical: model, tools, system messages and document context.
	SourceCanonical
	// SourceSessionFallback: the session key, used as a prefix key.
	SourceSessionFallback
	// SourceSessionHeader: X-Session-ID or a header the operator listed.
	SourceSessionHeader
	// SourceConversationHeader: X-Conversation-ID.
	SourceConversationHeader
	// SourceSessionBody: body session_id or a field the operator listed.
	SourceSessionBody
	// SourceSessionMessages: a hash of the conversation's opening.
	SourceSessionMessages

	// NumKeySources is the number of sources, for tables indexed by them.
	NumKeySources = int(SourceSessionMessages) + 1
)

var sourceNames = [NumKeySources]string{
	SourceNone:               "none",
	SourceExplicitHeader:     "explicit-header",
	SourceExplicitBody:       "explicit-body",
	SourcePrefixField:        "prefix-field",
	SourceCanonical:          "canonical",
	SourceSessionFallback:    "session-fallback",
	SourceSessionHeader:      "session-header",
	SourceConversationHeader: "conversation-header",
	SourceSessionBody:        "session-body",
	SourceSessionMessages:    "session-messages",
}

func (s KeySource) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return sourceNames[SourceNone]
}

// ParseKeySource returns the source that String calls name.
func ParseKeySource(name string) (KeySource, bool) {
	for i, n := range sourceNames {
		if n == name {
			return KeySource(i), true
		}
	}
	return SourceNone, false
}
