package app

import (
	"encoding/json"
	"strings"
	"testing"
)

func decode(t *testing.T, config string) *App {
	t.Helper()
	a := new(App)
	if err := json.Unmarshal([]byte(config), a); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestValidate(t *testing.T) {
	for _, config := range []string{
		`{}`,
		`{"models": [{"name": "m", "service": "m.models.svc:8000"}]}`,
		`{"models": [{"name": "m", "aliases": ["a", "b"], "adapters": ["c"], "sources": [{"source": "static"}]},
			{"name": "n", "sources": [{"source": "static"}]}]}`,
		`{"max_body": 1, "retries": 0, "reservation_ttl": 0, "debug_header": "off"}`,
		`{"keys": {"session_headers": ["X-Chat-ID"], "session_fields": ["metadata.user_id", "user"]}}`,
		`{"ledger": {"bucket": "5s", "ttl": "20s"}}`,
		`{"ledger": {"bucket": "150s"}}`,
		`{"ledger": {"ttl": "20s"}}`,
	} {
		if err := decode(t, config).validate(); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
}

func TestValidateErrors(t *testing.T) {
	const src = `"sources": [{"source": "static"}]`
	for _, tt := range []struct{ name, config, remedy string }{
		{"null model", `{"models": [null]}`, "model 0 is null"},
		{"no name", `{"models": [{` + src + `}]}`, "model: the name is empty"},
		{"control character", `{"models": [{"name": "a\nb", ` + src + `}]}`, "control character"},
		{"long", `{"models": [{"name": "` + strings.Repeat("x", 257) + `", ` + src + `}]}`, "the longest has 256"},
		{"model twice", `{"models": [{"name": "m", ` + src + `}, {"name": "m", ` + src + `}]}`, `model "m" is there twice`},
		{"alias of a model's name", `{"models": [{"name": "m", ` + src + `}, {"name": "n", "aliases": ["m"], ` + src + `}]}`,
			`alias "m" of model "n": the name is taken by model "m"`},
		{"alias of its own name", `{"models": [{"name": "m", "aliases": ["m"], ` + src + `}]}`, `taken by model "m"`},
		{"alias twice", `{"models": [{"name": "m", "aliases": ["a", "a"], ` + src + `}]}`, `alias "a" of model "m" is there twice`},
		{"empty alias", `{"models": [{"name": "m", "aliases": [""], ` + src + `}]}`, `alias of model "m": the name is empty`},
		{"adapter of an alias", `{"models": [{"name": "m", "aliases": ["a"], "adapters": ["a"], ` + src + `}]}`,
			`adapter "a" of model "m": the name is taken by alias "a" of model "m"`},
		{"adapter of two models", `{"models": [{"name": "m", "adapters": ["a"], ` + src + `}, {"name": "n", "adapters": ["a"], ` + src + `}]}`,
			`adapter "a" of model "n": the name is taken by adapter "a" of model "m"`},
		{"nowhere", `{"models": [{"name": "m"}]}`, "neither sources nor a service"},
		{"service", `{"models": [{"name": "m", "service": "m.models.svc"}]}`, "such as m.models.svc:8000"},
		{"max_body", `{"max_body": -1}`, "max_body is negative"},
		{"retries", `{"retries": -1}`, "retries is negative"},
		{"reservation_ttl", `{"reservation_ttl": "-1s"}`, "reservation_ttl is negative"},
		{"explicit key", `{"keys": {"explicit_key_max_length": -1}}`, "keys: explicit_key_max_length is negative"},
		{"system segment", `{"keys": {"system_segment_max_length": -1}}`, "keys: system_segment_max_length is negative"},
		{"document segment", `{"keys": {"document_segment_max_length": -1}}`, "keys: document_segment_max_length is negative"},
		{"session header", `{"keys": {"session_headers": ["X:"]}}`, "not the name of a header field"},
		{"session field", `{"keys": {"session_fields": ["a..b"]}}`, "not a dotted path"},
		{"empty session field", `{"keys": {"session_fields": [""]}}`, "not a dotted path"},
		{"bucket", `{"ledger": {"bucket": "-1s"}}`, "times above 0"},
		{"ttl", `{"ledger": {"ttl": "-1s"}}`, "times above 0"},
		{"short ttl", `{"ledger": {"bucket": "5s", "ttl": "19s"}}`, "raise ttl to 20s or more"},
		{"short ttl for the default bucket", `{"ledger": {"ttl": "19s"}}`, "raise ttl to 20s or more"},
		{"wide bucket for the default ttl", `{"ledger": {"bucket": "151s"}}`, "raise ttl to 10m4s or more"},
		{"wide bucket", `{"ledger": {"bucket": 9000000000000000000, "ttl": 9000000000000000000}}`, "four times"},
		{"debug_header", `{"debug_header": "public"}`, "write one of: off, private, all"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := decode(t, tt.config).validate()
			if err == nil || !strings.Contains(err.Error(), tt.remedy) {
				t.Errorf("got %v, want it to contain %q", err, tt.remedy)
			}
		})
	}
}
