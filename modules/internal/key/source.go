package key

import (
	"net/http"
	"strings"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Holds reports whether the request has a usable key in one source, be there
// a preferred one or not. For [routing.SourceNone] it reports whether there
// is no key at all; for [routing.SourceSessionFallback] whether there is a
// session key. The other arguments are those of [Config.Prefix].
func (c *Config) Holds(source routing.KeySource, model, adapter string, h http.Header, d *openai.Doc) bool {
	limit := bound(c.ExplicitMax, defaultExplicitMax)
	switch source {
	case routing.SourceNone:
		return !c.Prefix(model, adapter, h, d).Usable()
	case routing.SourceExplicitHeader:
		_, ok := explicitKey(strings.TrimSpace(h.Get("X-Flexinfer-Cache-Key")), limit)
		return ok
	case routing.SourceSessionFallback:
		return c.Session(h, d).Usable()
	case routing.SourceConversationHeader:
		_, ok := headerKey(h, "X-Conversation-Id", source)
		return ok
	case routing.SourceSessionHeader:
		if _, ok := headerKey(h, "X-Session-Id", source); ok {
			return true
		}
		for _, name := range c.SessionHeaders {
			if _, ok := headerKey(h, name, source); ok {
				return true
			}
		}
		return false
	}
	if d == nil {
		return false
	}
	var ok bool
	switch source {
	case routing.SourceExplicitBody:
		_, ok = explicitField(d, limit)
	case routing.SourcePrefixField:
		_, ok = c.prefixField(d)
	case routing.SourceCanonical:
		_, ok = c.canonical(model, adapter, d)
	case routing.SourceSessionMessages:
		_, ok = openingKey(d)
	case routing.SourceSessionBody:
		if _, ok = fieldKey(d, d.Field(openai.FieldSessionID)); ok {
			break
		}
		for _, path := range c.SessionFields {
			if _, ok = fieldKey(d, d.Lookup(path)); ok {
				break
			}
		}
	}
	return ok
}
