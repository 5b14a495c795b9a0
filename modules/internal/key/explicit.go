package key

import (
	"bytes"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// explicitFields are the fields that hold an explicit key, the preferred
// first.
var explicitFields = [...]openai.Field{
	openai.FieldCacheKey, openai.FieldCacheKeyCamel, openai.FieldPromptCacheKey,
}

// explicitField returns the key that the first field with a usable one gives.
func explicitField(d *openai.Doc, limit int) (hash uint64, ok bool) {
	for _, f := range explicitFields {
		raw, ok := d.Text(d.Field(f))
		if !ok {
			continue
		}
		if bytes.IndexByte(raw, '\\') >= 0 {
			// White space to be trimmed may take twice the key's length.
			var buf [2 * defaultExplicitMax]byte
			if raw, ok = d.AppendString(buf[:0], d.Field(f), 2*limit); !ok {
				continue
			}
		}
		if hash, ok := explicitKey(bytes.TrimSpace(raw), limit); ok {
			return hash, true
		}
	}
	return 0, false
}

// explicitKey returns the key that a trimmed value gives, unless it is empty,
// longer than limit, or holds other characters than keys may.
func explicitKey[T string | []byte](value T, limit int) (hash uint64, ok bool) {
	if len(value) == 0 || len(value) > limit {
		return 0, false
	}
	h := newHasher(domainExplicit)
	for i := range len(value) {
		c := value[i]
		switch {
		case 'a' <= c && c <= 'z', '-' <= c && c <= ':', c == '_', c == '=': // -./0-9:
		case 'A' <= c && c <= 'Z':
			c |= 0x20
		default:
			return 0, false
		}
		h.byte(c)
	}
	return h.sum(), true
}

// prefixField returns the key that the field prefix gives, unless it is blank
// or no string.
func (c *Config) prefixField(d *openai.Doc) (hash uint64, ok bool) {
	raw, ok := d.Text(d.Field(openai.FieldPrefix))
	if !ok {
		return 0, false
	}
	h := newHasher(domainPrefix)
	h.normalise(bound(c.SystemMax, defaultSystemMax))
	h.text(raw)
	return h.sum(), h.length > 0
}
