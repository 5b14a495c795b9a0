package blackbox

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// threeModels starts a gateway with the models a, b and c on an upstream each,
// which answers with the model's name.
func threeModels(t *testing.T) (*harness.Gateway, map[string]*harness.Upstream) {
	t.Helper()
	ups := make(map[string]*harness.Upstream)
	var models string
	for _, name := range []string{"a", "b", "c"} {
		ups[name] = harness.NewUpstream(t, named(name))
		models += model(name, to(ups[name]), "alias "+name+"-alias")
	}
	return harness.Start(t, harness.Config{Flexinfer: models}), ups
}

// The header comes before the path, the path before the body, and the query
// counts only where there is no body: the same on every endpoint.
func TestP3_OnePrecedenceOfModelSources(t *testing.T) {
	t.Parallel()
	g, ups := threeModels(t)
	for i, path := range []string{"/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/v1/unheard-of"} {
		tests := []struct {
			name, path, body string
			headers          []string
			want             string // a model, or a status
			forwarded        string
		}{
			{"header, path and body", "/model/b" + path, bare("c"), []string{"X-Model-ID", "a"}, "a", "/model/b" + path},
			{"header and path", "/model/b" + path, "", []string{"X-Model-ID", "a"}, "a", "/model/b" + path},
			{"header and body", path, bare("c"), []string{"X-Model-ID", "a"}, "a", path},
			{"path and body", "/model/b" + path, bare("c"), nil, "b", path},
			{"body alone", path, bare("c"), nil, "c", path},
			{"body and query", path + "?model=a", bare("c"), nil, "c", path + "?model=a"},
			{"query alone", path + "?model=a", "", nil, "a", path + "?model=a"},
			{"alias in the header", path, bare("c"), []string{"X-Model-ID", "a-alias"}, "a", path},
			{"alias in the path", "/model/b-alias" + path, bare("c"), nil, "b", path},
			{"alias in the body", path, bare("c-alias"), nil, "c", path},
			{"unknown header, known body", path, bare("c"), []string{"X-Model-ID", "z"}, "404", ""},
			{"unknown path, known body", "/model/z" + path, bare("c"), nil, "404", ""},
			{"two headers that differ", path, bare("c"), []string{"X-Model-ID", "a", "X-Model-ID", "b"}, "400", ""},
			{"two headers that agree", path, bare("c"), []string{"X-Model-ID", "a", "x-model-id", "a"}, "a", path},
			{"a list in one header", path, bare("c"), []string{"X-Model-ID", "a, b"}, "404", ""},
			{"an empty header", path, bare("c"), []string{"X-Model-ID", ""}, "c", path},
			{"a blank header", path, bare("c"), []string{"X-Model-ID", "  "}, "c", path},
			{"spaces around a header", path, bare("c"), []string{"X-Model-ID", "  a  "}, "a", path},
			{"nothing", path, "", nil, "400", ""},
		}
		for _, tt := range tests {
			t.Run(path+" "+tt.name, func(t *testing.T) {
				var before harness.Metrics
				if i == 0 {
					before = g.Metrics(t)
				}
				res := g.Post(t, tt.path, tt.body, tt.headers...)
				if len(tt.want) == 3 {
					if fmt.Sprint(res.Status) != tt.want {
						t.Fatalf("the answer is %s, want %s", res, tt.want)
					}
					return
				}
				if got := upstreamOf(t, res); got != tt.want {
					t.Fatalf("it went to %q, want %q", got, tt.want)
				}
				if got := ups[tt.want].Last(t); got.Target != tt.forwarded {
					t.Errorf("the upstream got the target %q, want %q", got.Target, tt.forwarded)
				}
				if i > 0 {
					return
				}
				// The model that is routed is the one that is counted.
				after := g.Metrics(t)
				for _, name := range []string{"a", "b", "c"} {
					grew := after.Value("flexinfer_proxy_requests_total", "model", name) > before.Value("flexinfer_proxy_requests_total", "model", name)
					if grew != (name == tt.want) {
						t.Errorf("requests_total of %q grew: %t", name, grew)
					}
				}
			})
		}
	}
}

func TestP1_NamesWithSlashesAndColons(t *testing.T) {
	t.Parallel()
	names := []string{"org/name:tag-q4", "org", "org/name", "plain", "with space", "größe", "50%off", "a+b", "q?x#y"}
	ups := make(map[string]*harness.Upstream)
	var models string
	for _, name := range names {
		ups[name] = harness.NewUpstream(t, named(name))
		models += model(quote(name), to(ups[name]))
	}
	g := harness.Start(t, harness.Config{Flexinfer: models})

	const rest = "/v1/chat/completions?x=1%202&y=%2F"
	tests := []struct{ path, want string }{
		{"/model/org%2Fname%3Atag-q4" + rest, "org/name:tag-q4"},
		{"/model/org/name:tag-q4" + rest, "org/name:tag-q4"},
		{"/model/org/name%3atag-q4" + rest, "org/name:tag-q4"},
		{"/model/org%2fname:tag-q4" + rest, "org/name:tag-q4"},
		{"/model/org/name" + rest, "org/name"},
		{"/model/org%2Fname" + rest, "org/name"},
		{"/model/org" + rest, "org"},
		{"/model/plain" + rest, "plain"},
		{"/model/with%20space" + rest, "with space"},
		{"/model/gr%C3%B6%C3%9Fe" + rest, "größe"},
		{"/model/50%25off" + rest, "50%off"},
		{"/model/a+b" + rest, "a+b"},
		{"/model/q%3Fx%23y" + rest, "q?x#y"},
	}
	for _, tt := range tests {
		res := g.Post(t, tt.path, bare("ignored"))
		if res.Status != http.StatusOK {
			t.Errorf("%s: %s", tt.path, res)
			continue
		}
		if got := upstreamOf(t, res); got != tt.want {
			t.Errorf("%s went to %q, want %q", tt.path, got, tt.want)
			continue
		}
		if got := ups[tt.want].Last(t).Target; got != rest {
			t.Errorf("%s was forwarded as %q, want %q", tt.path, got, rest)
		}
	}
	// Other forms are nobody's, whatever the body says.
	for _, path := range []string{"/model/org%252Fname" + rest, "/model/ORG/name" + rest, "/model//name" + rest, "/model/plain2" + rest, "/model/", "/model/nobody"} {
		res := g.Post(t, path, bare("plain"))
		if res.Status != http.StatusNotFound {
			t.Errorf("%s: %s", path, res)
			continue
		}
		res.Refusal(t)
	}

	// Every id that is listed can be fetched, addressed by path, and asked for
	// in the header and in the body.
	list := harness.Decode[modelList](t, g.Get(t, "/v1/models").Body)
	if got := list.ids(); !slices.Equal(got, names) {
		t.Errorf("/v1/models lists %q, want %q", got, names)
	}
	for _, id := range names {
		one := harness.Decode[modelCard](t, g.Get(t, "/v1/models/"+escape(id)).Body)
		if one.ID != id || one.Object != "model" {
			t.Errorf("/v1/models/%s answers %+v", escape(id), one)
		}
		if got := upstreamOf(t, g.Post(t, "/v1/completions", bare(id))); got != id {
			t.Errorf("a body with %q went to %q", id, got)
		}
		if !strings.ContainsFunc(id, func(r rune) bool { return r > 126 }) {
			if got := upstreamOf(t, g.Post(t, "/v1/completions", bare("ignored"), "X-Model-ID", id)); got != id {
				t.Errorf("a header with %q went to %q", id, got)
			}
		}
	}
}

// escape writes every byte that is not a letter or a digit as %XX.
func escape(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

type modelCard struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelCard `json:"data"`
}

func (l modelList) ids() []string {
	ids := []string{}
	for _, m := range l.Data {
		ids = append(ids, m.ID)
	}
	return ids
}

// P2: the list comes from the gateway's own knowledge: upstreams that are dead or
// hang do not matter, and none is asked.
func TestP4_ListingAsksNoUpstream(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	hung := harness.NewUpstream(t, gate.Then(harness.Answer))
	g := harness.Start(t, harness.Config{Flexinfer: model("dead", "to "+harness.FreeAddr(t)) +
		model("hung", to(hung), "alias hung-alias", "adapter lora-1 lora-2") + model("far", "service "+harness.FreeAddr(t))})
	for range 20 {
		res := g.Get(t, "/v1/models")
		list := harness.Decode[modelList](t, res.Body)
		if got, want := list.ids(), []string{"dead", "hung", "lora-1", "lora-2", "far"}; !slices.Equal(got, want) || list.Object != "list" {
			t.Fatalf("/v1/models lists %q, want %q", got, want)
		}
		for _, m := range list.Data {
			if m.Object != "model" || m.OwnedBy == "" || m.Created == 0 {
				t.Errorf("an entry of /v1/models is %+v", m)
			}
		}
	}
	if hung.Connections() != 0 {
		t.Error("an upstream was asked")
	}
	for path, want := range map[string]int{
		"/v1/models/dead": 200, "/v1/models/hung-alias": 200, "/v1/models/lora-2": 200, "/v1/models/nobody": 404, "/v1/models/": 404,
	} {
		if res := g.Get(t, path); res.Status != want {
			t.Errorf("%s: %s, want %d", path, res, want)
		}
	}
	if res := g.Post(t, "/v1/models", `{}`); res.Status != http.StatusMethodNotAllowed || res.Refusal(t).Error.Code != "method_not_allowed" {
		t.Errorf("POST /v1/models: %s", res)
	}
}

func TestP2_EndpointsBeyondChat(t *testing.T) {
	t.Parallel()
	g, ups := threeModels(t)
	for _, path := range []string{"/v1/messages", "/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/score", "/tokenize", "/api/generate", "/v2/new"} {
		if got := upstreamOf(t, g.Post(t, path, bare("b"))); got != "b" {
			t.Errorf("%s went to %q", path, got)
		}
		if got := ups["b"].Last(t).Target; got != path {
			t.Errorf("%s was forwarded as %q", path, got)
		}
	}
	for _, method := range []string{"GET", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH"} {
		res := g.Do(t, method, "/model/a/health", "")
		if res.Status != http.StatusOK {
			t.Errorf("%s /model/a/health: %s", method, res)
		}
		if got := ups["a"].Last(t); got.Method != method || got.Target != "/health" {
			t.Errorf("%s /model/a/health was forwarded as %s %s", method, got.Method, got.Target)
		}
	}
	if got := upstreamOf(t, g.Do(t, "PUT", "/v1/x", bare("c"))); got != "c" {
		t.Errorf("a PUT went to %q", got)
	}
	for _, path := range []string{"/model/a", "/model/a/"} {
		if res := g.Get(t, path); res.Status != http.StatusOK || ups["a"].Last(t).Target != "/" {
			t.Errorf("%s was forwarded as %q: %s", path, ups["a"].Last(t).Target, res)
		}
	}
	// An empty POST.
	for _, tt := range []struct {
		path    string
		headers []string
		want    int
	}{
		{"/v1/chat/completions", nil, 400},
		{"/v1/chat/completions", []string{"X-Model-ID", "a"}, 200},
		{"/model/a/v1/chat/completions", nil, 200},
		{"/v1/chat/completions", []string{"Content-Type", "application/json"}, 400},
	} {
		if res := g.Post(t, tt.path, "", tt.headers...); res.Status != tt.want {
			t.Errorf("an empty POST %s %v: %s, want %d", tt.path, tt.headers, res, tt.want)
		}
	}
}

func TestP5_AdapterGoesToItsModel(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("base", to(up), "adapter my-lora other-lora", "alias base-alias", "routing prefix")})
	system := func(name string) string {
		return `{"model":"` + name + `","messages":[{"role":"system","content":"You help."},{"role":"user","content":"hi"}]}`
	}
	g.Chat(t, system("my-lora"))
	if got := string(up.Last(t).Body); got != system("my-lora") {
		t.Errorf("the upstream got %s", got)
	}
	if res := g.Post(t, "/v1/chat/completions", system("their-lora")); res.Status != http.StatusNotFound {
		t.Errorf("an adapter that nobody declared: %s", res)
	}
	// An adapter's KV cache is its own, so its name is part of the key.
	hashes := make(map[string]string)
	for _, name := range []string{"base", "my-lora", "other-lora", "base-alias"} {
		e := g.Explain(t, "/v1/chat/completions", system(name))
		if e.Model != "base" || e.KeySource != "canonical" {
			t.Errorf("%s: %+v", name, e)
		}
		hashes[name] = e.KeyHash
	}
	if hashes["base"] != hashes["base-alias"] {
		t.Errorf("an alias has a key of its own: %v", hashes)
	}
	if hashes["base"] == hashes["my-lora"] || hashes["my-lora"] == hashes["other-lora"] {
		t.Errorf("adapters share a key: %v", hashes)
	}
	ids := harness.Decode[modelList](t, g.Get(t, "/v1/models").Body).ids()
	if want := []string{"base", "my-lora", "other-lora"}; !slices.Equal(ids, want) {
		t.Errorf("/v1/models lists %q, want %q", ids, want)
	}
}
