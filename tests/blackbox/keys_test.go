package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// keyTests are requests and the sources of their keys under prefix and
// session-affinity routing.
var keyTests = []struct {
	name, path, body string
	headers          []string
	prefix, session  string
}{
	{
		"header before all else", "/v1/chat/completions",
		`{"model":"m","cache_key":"b","prefix":"p","session_id":"s","messages":[{"role":"system","content":"x"},{"role":"user","content":"y"}]}`,
		[]string{"X-Flexinfer-Cache-Key", "tenant/doc-1", "X-Session-ID", "s1"}, "explicit-header", "session-header",
	},
	{"cache_key", "/v1/completions", `{"model":"m","cache_key":"k"}`, nil, "explicit-body", "none"},
	{"cacheKey", "/v1/completions", `{"model":"m","cacheKey":"k"}`, nil, "explicit-body", "none"},
	{"prompt_cache_key", "/v1/responses", `{"model":"m","prompt_cache_key":"k"}`, nil, "explicit-body", "none"},
	{"body before prefix", "/v1/completions", `{"model":"m","prefix":"p","cache_key":"k"}`, nil, "explicit-body", "none"},
	{"a header with spaces is no key", "/v1/completions", `{"model":"m","cache_key":"k"}`, []string{"X-Flexinfer-Cache-Key", "a b"}, "explicit-body", "none"},
	{"a header of 129 characters is no key", "/v1/completions", `{"model":"m","prefix":"p"}`, []string{"X-Flexinfer-Cache-Key", strings.Repeat("k", 129)}, "prefix-field", "none"},
	{"a header of 128 characters is", "/v1/completions", `{"model":"m"}`, []string{"X-Flexinfer-Cache-Key", strings.Repeat("k", 128)}, "explicit-header", "none"},
	{"all characters of a key", "/v1/completions", `{"model":"m","cache_key":" aZ09._:/=- "}`, nil, "explicit-body", "none"},
	{"a key with umlauts is none", "/v1/completions", `{"model":"m","cache_key":"schlüssel"}`, nil, "none", "none"},
	{"a number is no key", "/v1/completions", `{"model":"m","cache_key":7,"prefix":8,"session_id":9}`, nil, "none", "none"},
	{"prefix", "/v1/completions", `{"model":"m","prefix":"You are"}`, nil, "prefix-field", "none"},
	{"prefix before canonical", "/v1/chat/completions", `{"model":"m","prefix":"x","messages":[{"role":"system","content":"s"}]}`, nil, "prefix-field", ""},
	{"system message", "/v1/chat/completions", `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"developer message in parts", "/v1/chat/completions", `{"model":"m","messages":[{"role":"developer","content":[{"type":"text","text":"s"}]},{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"tools", "/v1/chat/completions", `{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"document_context", "/v1/chat/completions", `{"model":"m","document_context":"d","messages":[{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"documentContext", "/v1/chat/completions", `{"model":"m","documentContext":"d","messages":[{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"context", "/v1/chat/completions", `{"model":"m","context":"d","messages":[{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"documents", "/v1/chat/completions", `{"model":"m","documents":[{"text":"d"}],"messages":[{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"responses with instructions", "/v1/responses", `{"model":"m","instructions":"s","input":"u"}`, nil, "canonical", "session-messages"},
	{"messages with a system string", "/v1/messages", `{"model":"m","system":"s","messages":[{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"messages with system blocks", "/v1/messages", `{"model":"m","system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"u"}]}`, nil, "canonical", "session-messages"},
	{"user message only", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"u"}]}`, nil, "session-fallback", "session-messages"},
	{"X-Session-ID", "/v1/chat/completions", `{"model":"m","session_id":"b","messages":[{"role":"user","content":"u"}]}`, []string{"X-Session-ID", "a", "X-Conversation-ID", "c"}, "session-fallback", "session-header"},
	{"X-Conversation-ID", "/v1/completions", `{"model":"m","session_id":"b"}`, []string{"X-Conversation-ID", "c"}, "session-fallback", "conversation-header"},
	{"session_id", "/v1/completions", `{"model":"m","session_id":"b"}`, nil, "session-fallback", "session-body"},
	{"metadata.user_id", "/v1/messages", `{"model":"m","metadata":{"user_id":"b"}}`, nil, "session-fallback", "session-body"},
	{"prompt", "/v1/completions", `{"model":"m","prompt":"p"}`, nil, "canonical", "session-messages"},
	{"prompt of token ids", "/v1/completions", `{"model":"m","prompt":[1,2]}`, nil, "canonical", "session-messages"},
	{"input", "/v1/embeddings", `{"model":"m","input":["a"]}`, nil, "canonical", "session-messages"},
	{"input of responses", "/v1/responses", `{"model":"m","input":"u"}`, nil, "session-fallback", "session-messages"},
	{"nothing", "/v1/completions", `{"model":"m"}`, nil, "none", "none"},
	{"GET", "/health", ``, []string{"X-Model-ID", "m"}, "none", "none"},
}

// Each source of a key is seen through explain, by which nothing is sent or
// counted, and through the metrics of the request itself.
func TestKeySources(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"prefix", "session-affinity"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			up := harness.NewUpstream(t, nil)
			g := serve(t, routing, up)
			for _, tt := range keyTests {
				want := tt.prefix
				if routing == "session-affinity" {
					want = tt.session
				}
				if want == "" {
					continue
				}
				e := g.Explain(t, tt.path, tt.body, tt.headers...)
				if e.KeySource != want || e.Strategy != routing || e.Model != "m" {
					t.Errorf("%s: explain says %+v, want the source %s", tt.name, e, want)
				}
				if (e.KeyHash == "") != (want == "none") {
					t.Errorf("%s: the source is %s and the hash %q", tt.name, e.KeySource, e.KeyHash)
				}
				if up.Served() != 0 || g.Metrics(t).Value("flexinfer_proxy_routing_decisions_total") != 0 {
					t.Fatalf("%s: explain sent or counted something", tt.name)
				}
			}
			for _, tt := range keyTests {
				want := tt.prefix
				if routing == "session-affinity" {
					want = tt.session
				}
				if want == "" {
					continue
				}
				before := g.Metrics(t)
				headers := append([]string{"X-Flexinfer-Debug", "1"}, tt.headers...)
				method := http.MethodPost
				if tt.body == "" {
					method = http.MethodGet
				}
				res := g.Do(t, method, tt.path, tt.body, headers...)
				if got := res.Route()["key_source"]; got != want {
					t.Errorf("%s: X-Flexinfer-Route says %q, want %s", tt.name, res.Header.Get("X-Flexinfer-Route"), want)
				}
				labels := []string{"model", "m", "strategy", routing, "key_source", want, "outcome", "pod"}
				const name = "flexinfer_proxy_routing_decisions_total"
				if n := g.Metrics(t).Value(name, labels...) - before.Value(name, labels...); n != 1 {
					t.Errorf("%s: %s%v grew by %v", tt.name, name, labels, n)
				}
			}
		})
	}
}

// Keys that differ in what does not matter are equal, and others are not.
func TestKeyNormalisation(t *testing.T) {
	t.Parallel()
	g := serve(t, "prefix", harness.NewUpstream(t, nil))
	sys := func(text string) string {
		return `{"model":"m","messages":[{"role":"system","content":` + quote(text) + `},{"role":"user","content":"u"}]}`
	}
	long := strings.Repeat("x", 600)
	tests := []struct {
		name, a, b string
		same       bool
	}{
		{"case and space", sys("You  HELP\n me. "), sys("you help me."), true},
		{"string and parts", sys("you help"), `{"model":"m","messages":[{"role":"system","content":[{"type":"text","text":"you help"}]}]}`, true},
		{"beyond 512 bytes", sys(long + "a"), sys(long + "b"), true},
		{"other words", sys("you help"), sys("you hurt"), false},
		{"explicit keys in another case", `{"model":"m","cache_key":"Tenant-A"}`, `{"model":"m","cacheKey":" tenant-a "}`, true},
		{"other tools", `{"model":"m","tools":[{"n":1}]}`, `{"model":"m","tools":[{"n":2}]}`, false},
		{"other salt", `{"model":"m","cache_salt":"a","messages":[{"role":"system","content":"s"}]}`, `{"model":"m","cache_salt":"b","messages":[{"role":"system","content":"s"}]}`, false},
		{"later turns", sys("s"), strings.TrimSuffix(sys("s"), "]}") + `,{"role":"assistant","content":"a"},{"role":"user","content":"more"}]}`, true},
	}
	for _, tt := range tests {
		a, b := g.Explain(t, "/v1/chat/completions", tt.a), g.Explain(t, "/v1/chat/completions", tt.b)
		if a.KeyHash == "" || b.KeyHash == "" || (a.KeyHash == b.KeyHash) != tt.same {
			t.Errorf("%s: the keys are %s %q and %s %q", tt.name, a.KeySource, a.KeyHash, b.KeySource, b.KeyHash)
		}
	}
}

// The implicit session key is the same on every turn of a chat.
func TestSessionKeyStaysOverTurns(t *testing.T) {
	t.Parallel()
	g := serve(t, "session-affinity", harness.NewUpstreams(t, 5, nil)...)
	for chatNo := range 20 {
		var c conversation
		c.say("system", "You help.")
		want := ""
		for turn := range 8 {
			c.say("user", fmt.Sprintf("chat %d, turn %d", chatNo, turn))
			res := g.Chat(t, `{"model":"m","messages":[`+strings.Join(c.messages, ",")+`]}`)
			if up := upstreamOf(t, res); want == "" {
				want = up
			} else if up != want {
				t.Fatalf("chat %d moved from %s to %s at turn %d", chatNo, want, up, turn)
			}
			c.say("assistant", fmt.Sprintf("answer %d", turn))
		}
	}
}

// The operator's bounds and names, from the Caddyfile and from the environment.
func TestKeyOptions(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	models := model("m", to(up), "routing prefix")
	tests := []struct {
		name    string
		cfg     harness.Config
		body    string
		headers []string
		want    string
	}{
		{"longer keys", harness.Config{Flexinfer: models + "keys {\n\texplicit_key_max_length 200\n}"}, bare("m"), []string{"X-Flexinfer-Cache-Key", strings.Repeat("k", 200)}, "explicit-header"},
		{"shorter keys, by environment", harness.Config{Flexinfer: models, Env: []string{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=10"}}, bare("m"), []string{"X-Flexinfer-Cache-Key", strings.Repeat("k", 11)}, "none"},
		{"the Caddyfile wins", harness.Config{Flexinfer: models + "keys {\n\texplicit_key_max_length 20\n}", Env: []string{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=10"}}, bare("m"), []string{"X-Flexinfer-Cache-Key", strings.Repeat("k", 11)}, "explicit-header"},
		{"a bound that is none", harness.Config{Flexinfer: models, Env: []string{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=-5"}}, bare("m"), []string{"X-Flexinfer-Cache-Key", strings.Repeat("k", 128)}, "explicit-header"},
		{"a header of the operator's", harness.Config{Flexinfer: models + "keys {\n\tsession_header X-Chat\n}"}, bare("m"), []string{"X-Chat", "1"}, "session-fallback"},
		{"a field of the operator's", harness.Config{Flexinfer: models + "keys {\n\tsession_field user.chat.id\n}"}, `{"model":"m","user":{"chat":{"id":"1"}}}`, nil, "session-fallback"},
		{"routing off, by environment", harness.Config{Flexinfer: models, Env: []string{"PROXY_ROUTING_ENABLED=false"}}, bare("m"), []string{"X-Flexinfer-Cache-Key", "k"}, "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, tt.cfg)
			if e := g.Explain(t, "/v1/completions", tt.body, tt.headers...); e.KeySource != tt.want {
				t.Errorf("explain says %+v, want the source %s", e, tt.want)
			}
		})
	}
}
