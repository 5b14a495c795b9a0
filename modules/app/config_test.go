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
		`{"max_body": 1, "retries": {"max": 0}, "reservation_ttl": 0, "debug_header": "off"}`,
		`{"keys": {"session_headers": ["X-Chat-ID"], "session_fields": ["metadata.user_id", "user"]}}`,
		`{"ledger": {"bucket": "5s", "ttl": "20s"}}`,
		`{"ledger": {"bucket": "150s"}}`,
		`{"ledger": {"ttl": "20s"}}`,
		`{"retries": {"max": 9, "on": ["429", "5xx", "reset"], "budget": {"percent": 100, "floor": 0}}}`,
		`{"retries": {"budget": {}}, "timeouts": {}, "health": {}, "max_tokens_clamp": {}}`,
		`{"timeouts": {"dial": "1s", "first_byte": 0, "gap": "0s", "keepalive": "1m"}}`,
		`{"health": {"eject_after": 1, "eject_for": "5m", "max_ejected": 100, "unhealthy_status": ["5xx", "404"], "uri": "/health?a=b", "passes": 1, "fails": 1}}`,
		`{"max_tokens_clamp": {"enabled": false, "prompt_reserve": 1}, "response_model": "upstream", "usage_metrics": "always", "validate_requests": true}`,
		`{"max_tokens_clamp": {"prompt_reserve_auto": true}, "response_model": "asked", "usage_metrics": "client", "validate_requests": false}`,
		`{"models": [{"name": "m", "service": "m:80", "context_window": 4096, "retries": {"max": 0}, "timeouts": {"gap": 0}, "health": {"eject_for": "6m"}},
			{"name": "n", "service": "n:80", "context_window_auto": true}], "health": {"eject_for_max": "6m"}}`,
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
		{"retries", `{"retries": {"max": -1}}`, "retries: max is negative"},
		{"retries on", `{"retries": {"on": ["429", "200"]}}`, `retries: on: "200" is nothing to retry on`},
		{"retries on twice", `{"retries": {"on": ["429", "429"]}}`, "429 is there twice"},
		{"budget", `{"retries": {"budget": {"percent": 101}}}`, "percent is not a number from 0 to 100"},
		{"budget below 0", `{"retries": {"budget": {"percent": -1}}}`, "percent is not a number from 0 to 100"},
		{"budget floor", `{"retries": {"budget": {"floor": -1}}}`, "floor is negative"},
		{"dial", `{"timeouts": {"dial": "-1s"}}`, "timeouts: dial is negative"},
		{"first byte", `{"timeouts": {"first_byte": "-1s"}}`, "timeouts: first_byte is negative"},
		{"gap", `{"timeouts": {"gap": "-1s"}}`, "timeouts: gap is negative"},
		{"keepalive", `{"timeouts": {"keepalive": "-1s"}}`, "timeouts: keepalive is negative"},
		{"eject after", `{"health": {"eject_after": -1}}`, "health: eject_after is negative"},
		{"eject for", `{"health": {"eject_for": "-1s"}}`, "health: eject_for is negative"},
		{"eject for max", `{"health": {"eject_for_max": "-1s"}}`, "health: eject_for_max is negative"},
		{"eject for above the default max", `{"health": {"eject_for": "301s"}}`, "raise eject_for_max"},
		{"max ejected", `{"health": {"max_ejected": 101}}`, "max_ejected is not a number from 0 to 100"},
		{"unhealthy status", `{"health": {"unhealthy_status": ["50"]}}`, "write numbers from 400 to 599, or 5xx"},
		{"uri", `{"health": {"uri": "health"}}`, "write a path, such as /health"},
		{"uri of a host", `{"health": {"uri": "//other/health"}}`, "write a path, such as /health"},
		{"interval", `{"health": {"interval": "-1s"}}`, "interval is negative"},
		{"timeout", `{"health": {"timeout": "-1s"}}`, "timeout is negative"},
		{"passes", `{"health": {"passes": -1}}`, "passes is negative"},
		{"fails", `{"health": {"fails": -1}}`, "fails is negative"},
		{"model's retries", `{"models": [{"name": "m", ` + src + `, "retries": {"max": -1}}]}`, `model "m": retries: max is negative`},
		{"model's dial", `{"models": [{"name": "m", ` + src + `, "timeouts": {"dial": "1s"}}]}`, `model "m": timeouts: dial and keepalive hold for all models`},
		{"model's keepalive", `{"models": [{"name": "m", ` + src + `, "timeouts": {"keepalive": "1s"}}]}`, "dial and keepalive hold for all models"},
		{"model's eject for", `{"health": {"eject_for_max": "1m"}, "models": [{"name": "m", ` + src + `, "health": {"eject_for": "2m"}}]}`,
			`model "m": health: eject_for is 2m0s, above eject_for_max, which is 1m0s`},
		{"context window", `{"models": [{"name": "m", ` + src + `, "context_window": -1}]}`, "context_window is negative"},
		{"context window twice", `{"models": [{"name": "m", ` + src + `, "context_window": 1, "context_window_auto": true}]}`, "a number or auto, not both"},
		{"prompt reserve", `{"max_tokens_clamp": {"prompt_reserve": -1}}`, "max_tokens_clamp: prompt_reserve is negative"},
		{"prompt reserve twice", `{"max_tokens_clamp": {"prompt_reserve": 1, "prompt_reserve_auto": true}}`, "a number or auto, not both"},
		{"response_model", `{"response_model": "alias"}`, "write one of: asked, upstream"},
		{"usage_metrics", `{"usage_metrics": "never"}`, "write one of: client, always"},
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
