package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// An endpoint is one that takes a model, with a request that the simulated
// engines answer.
type endpoint struct {
	path string

	// body returns a request for a model; key is text that keys are made of.
	body func(model, key string) string

	// answers is part of a good answer, broken what the body of an error
	// begins with. source is where the key comes from under prefix routing.
	answers, broken, source string
}

const (
	openAIError    = `{"error":{"message":"`
	anthropicError = `{"type":"error","error":{"type":"`
	ollamaError    = `{"error":"`
)

// formType is the Content-Type of the bodies that soundForm returns.
const formType = "multipart/form-data; boundary=seven"

// soundForm returns a form with a file and the model behind it.
func soundForm(model, content string) string {
	parts := []string{"file", "RIFF" + content, "model", model}
	if model == "" {
		parts = parts[:2]
	}
	return form("seven", parts...)
}

// jsonBody returns what makes the body of a request from the members that
// follow the model; a %s in them is the key.
func jsonBody(members string) func(model, key string) string {
	return func(model, key string) string {
		named := ""
		if model != "" {
			named = `"model":` + quote(model) + `,`
		}
		return "{" + named + strings.ReplaceAll(members, "%s", key) + "}"
	}
}

var endpoints = []endpoint{
	{"/v1/chat/completions", jsonBody(`"messages":[{"role":"system","content":"%s"},{"role":"user","content":"u"}]`), `"chat.completion"`, openAIError, "canonical"},
	{"/v1/completions", jsonBody(`"prompt":"%s"`), `"text_completion"`, openAIError, "canonical"},
	{"/v1/completions", jsonBody(`"prompt":["%s","b"],"max_tokens":2`), `"index":1`, openAIError, "canonical"},
	{"/v1/embeddings", jsonBody(`"input":["%s"]`), `"embedding":[`, openAIError, "canonical"},
	{"/v1/responses", jsonBody(`"instructions":"%s","input":"u"`), `"output_text"`, openAIError, "canonical"},
	{"/v1/messages", jsonBody(`"system":"%s","messages":[{"role":"user","content":"u"}],"max_tokens":5`), `"type":"message"`, anthropicError, "canonical"},
	{"/v1/audio/transcriptions", soundForm, `"text":"`, openAIError, "none"},
	{"/v1/audio/speech", jsonBody(`"input":"%s","voice":"any"`), `RIFF`, openAIError, "session-fallback"},
	{"/v1/rerank", jsonBody(`"query":"q","documents":["%s","b"]`), `"relevance_score"`, openAIError, "canonical"},
	{"/tokenize", jsonBody(`"prompt":"%s"`), `"tokens":[`, openAIError, "canonical"},
	{"/detokenize", jsonBody(`"tokens":[353,354],"prefix":"%s"`), `"prompt":"ab"`, openAIError, "prefix-field"},
	{"/api/chat", jsonBody(`"messages":[{"role":"system","content":"%s"},{"role":"user","content":"u"}],"stream":false`), `"done":true`, ollamaError, "canonical"},
	{"/api/chat", jsonBody(`"messages":[{"role":"system","content":"%s"},{"role":"user","content":"u"}]`), `"done":true`, ollamaError, "canonical"},
	{"/api/generate", jsonBody(`"prompt":"%s","stream":false`), `"context":[`, ollamaError, "canonical"},
	{"/api/generate", jsonBody(`"prompt":"%s"`), `"context":[`, ollamaError, "canonical"},
	{"/api/embed", jsonBody(`"input":["%s"]`), `"embeddings":[[`, ollamaError, "canonical"},
	{"/api/embeddings", jsonBody(`"prompt":"%s"`), `"embedding":[`, ollamaError, "canonical"},
	{"/api/show", jsonBody(`"verbose":true,"prefix":"%s"`), `"model_info"`, ollamaError, "prefix-field"},
}

func (e *endpoint) contentType() []string {
	if e.path == "/v1/audio/transcriptions" {
		return []string{"Content-Type", formType}
	}
	return nil
}

// Each endpoint is routed by the model that its body names, or its header or
// path, and is accounted for.
func TestP2_EveryEndpointIsRouted(t *testing.T) {
	t.Parallel()
	one := harness.StartEngines(t, 1, append(harness.Instant, "--model", "one")...)
	two := harness.StartEngines(t, 1, append(harness.Instant, "--model", "two")...)
	g := harness.Start(t, harness.Config{Flexinfer: model("one", "to "+harness.Addrs(one), "alias first") + model("two", "to "+harness.Addrs(two))})
	for _, e := range endpoints {
		for _, tt := range []struct {
			model, prefix string
			headers       []string
			want          *harness.Engine
			counted       string
		}{
			{"one", "", nil, one[0], "one"},
			{"two", "", nil, two[0], "two"},
			{"", "", []string{"X-Model-ID", "two"}, two[0], "two"},
			{"", "/model/first", nil, one[0], "one"},
		} {
			before := g.Metrics(t)
			res := g.Post(t, tt.prefix+e.path, e.body(tt.model, "key"), append(tt.headers, e.contentType()...)...)
			name := fmt.Sprintf("%s for %s%s%v", e.path, tt.model, tt.prefix, tt.headers)
			if res.Status != http.StatusOK || !strings.Contains(string(res.Body), e.answers) {
				t.Errorf("%s: %s", name, res)
				continue
			}
			if got := res.Header.Get("X-Engine-Id"); got != tt.want.Addr {
				t.Errorf("%s: the engine %s answered, want %s", name, got, tt.want.Addr)
			}
			seen := tt.want.Seen(t, e.path)
			if got := seen[len(seen)-1].Model; got != tt.counted {
				t.Errorf("%s: the engine was asked for the model %q", name, got)
			}
			after := g.Metrics(t)
			const total = "flexinfer_proxy_requests_total"
			for _, m := range []string{"one", "two"} {
				labels := []string{"model", m, "status", "success"}
				want := 0.0
				if m == tt.counted {
					want = 1
				}
				if n := after.Value(total, labels...) - before.Value(total, labels...); n != want {
					t.Errorf("%s: %s%v grew by %v", name, total, labels, n)
				}
			}
		}
	}
	g.WaitIdle(t)
}

// What the gateway refuses is refused in the caller's own shape, and so is
// what no upstream answers.
func TestP2_ErrorsInTheCallersShape(t *testing.T) {
	t.Parallel()
	engines := harness.StartEngines(t, 1, append(harness.Instant, "--model", "one")...)
	g := harness.Start(t, harness.Config{Flexinfer: model("one", "to "+harness.Addrs(engines)) + model("dead", "to "+harness.FreeAddr(t))})
	for _, e := range endpoints {
		whole := e.body("one", "key")
		for body, want := range map[string]int{
			e.body("nobody", "key"): http.StatusNotFound,
			e.body("", "key"):       http.StatusBadRequest,
			whole[:len(whole)-9]:    http.StatusBadRequest, // it breaks off
			e.body("dead", "key"):   http.StatusBadGateway,
		} {
			res := g.Post(t, e.path, body, e.contentType()...)
			if res.Status != want || !strings.HasPrefix(string(res.Body), e.broken) || !json.Valid(res.Body) {
				t.Errorf("%s %.60q: %s, want %d in the shape %s", e.path, body, res, want, e.broken)
			}
			if ct := res.Header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("%s %.60q: the type of the error is %q", e.path, body, ct)
			}
		}
	}
	if n := len(engines[0].Seen(t, "/v1/chat/completions")); n != 0 {
		t.Errorf("%d refused requests reached the engine", n)
	}
	g.WaitIdle(t)
}

// Equal prompts go to one engine, and unlike ones do not all go there.
func TestB8_EqualPromptsStayOnEveryEndpoint(t *testing.T) {
	t.Parallel()
	g, _ := overEngines(t)
	for _, e := range endpoints {
		res := g.Post(t, e.path, e.body("sim", "key"), append(e.contentType(), harness.Debug...)...)
		if got := res.Route()["key_source"]; got != e.source {
			t.Errorf("%s: the key is from %q, want %q", e.path, got, e.source)
		}
		if e.source == "none" {
			continue
		}
		used := make(map[string]bool)
		for prompt := range 12 {
			var first string
			for range 3 {
				res := g.Post(t, e.path, e.body("sim", fmt.Sprintf("prompt %d", prompt)))
				if res.Status != http.StatusOK {
					t.Fatalf("%s: %s", e.path, res)
				}
				id := res.Header.Get("X-Engine-Id")
				if first == "" {
					first = id
				}
				if id != first {
					t.Errorf("%s: the same prompt went to %s and to %s", e.path, first, id)
				}
			}
			used[first] = true
		}
		if len(used) < 2 {
			t.Errorf("%s: 12 prompts all went to one of three engines", e.path)
		}
	}
	g.WaitIdle(t)
}

// A conversation over Ollama's own API stays where its cache is.
func TestOllamaConversationStays(t *testing.T) {
	t.Parallel()
	g, engines := overEngines(t)
	engineOf := func(res *harness.Response) *harness.Engine {
		t.Helper()
		i := slices.IndexFunc(engines, func(e *harness.Engine) bool { return e.Addr == res.Header.Get("X-Engine-Id") })
		if res.Status != http.StatusOK || i < 0 {
			t.Fatalf("no engine answered: %s", res)
		}
		return engines[i]
	}
	const path = "/api/chat"
	messages := `{"role":"system","content":"You answer in as few words as you can."},{"role":"user","content":"Tell me of the tallest mountain."}`
	var home *harness.Engine
	for turn := range 4 {
		res := g.Post(t, path, `{"model":"sim","stream":false,"messages":[`+messages+`]}`)
		at := engineOf(res)
		if home == nil {
			home = at
		}
		if at != home {
			t.Fatalf("turn %d went to %s, the first one to %s", turn, at.Addr, home.Addr)
		}
		seen := at.Seen(t, path)
		if turn > 0 && seen[len(seen)-1].CachedTokens < seen[len(seen)-2].PromptTokens {
			t.Errorf("turn %d found %d tokens, the turn before had %d", turn, seen[len(seen)-1].CachedTokens, seen[len(seen)-2].PromptTokens)
		}
		said := harness.Decode[struct {
			Message struct{ Content string }
		}](t, res.Body).Message.Content
		messages += `,{"role":"assistant","content":` + quote(said) + `},{"role":"user","content":"And then, what came after that?"}`
	}

	// Of /api/generate the turns are known by what they go on with.
	res := g.Post(t, "/api/generate", `{"model":"sim","stream":false,"prompt":`+quote(strings.Repeat("a long beginning ", 100))+`}`)
	home = nil
	for turn := range 3 {
		state := harness.Decode[struct{ Context json.RawMessage }](t, res.Body).Context
		res = g.Post(t, "/api/generate", `{"model":"sim","stream":false,"prompt":"and `+fmt.Sprint(turn)+`?","context":`+string(state)+`}`)
		at := engineOf(res)
		if home == nil {
			home = at
		}
		if at != home {
			t.Errorf("turn %d of generate went to %s, the one before to %s", turn, at.Addr, home.Addr)
		}
	}
}

// Ollama's native API streams unless told otherwise; each line passes at once.
func TestS6_OllamaStreamIsNotHeldBack(t *testing.T) {
	t.Parallel()
	acknowledged := make(chan struct{})
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.StartStream("application/x-ndjson")
		for i := range 5 {
			x.Chunk(fmt.Sprintf("{\"message\":{\"content\":\"%d\"},\"done\":false}\n", i))
			select {
			case <-acknowledged:
			case <-x.Gone():
				return
			}
		}
		x.Chunk(`{"done":true,"prompt_eval_count":7,"eval_count":5}` + "\n")
		x.EndStream()
	})
	g := serve(t, "prefix", up)
	res, err := g.Open(t.Context(), http.MethodPost, "/api/chat", chat("hi"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if ct := res.Header.Get("Content-Type"); ct != "application/x-ndjson" {
		t.Errorf("the type is %q", ct)
	}
	lines := json.NewDecoder(res.Body)
	for i := range 6 {
		var line struct{ Done bool }
		if err := lines.Decode(&line); err != nil || line.Done != (i == 5) {
			t.Fatalf("line %d: %+v, %v", i, line, err)
		}
		if i < 5 {
			acknowledged <- struct{}{}
		}
	}
	g.WaitIdle(t)
}

type ollamaModel struct {
	Name, Model, Digest string
	Size                int64
	ModifiedAt          time.Time `json:"modified_at"`
	ExpiresAt           time.Time `json:"expires_at"`
	Details             struct {
		ParentModel string `json:"parent_model"`
		Families    []string
	}
}

type ollamaList struct{ Models []ollamaModel }

func (l ollamaList) names() []string {
	names := []string{}
	for _, m := range l.Models {
		names = append(names, m.Name)
	}
	return names
}

// Ollama's listing and version come from the gateway's own knowledge, too.
func TestP4_OllamaListingAsksNoUpstream(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	hung := harness.NewUpstream(t, gate.Then(harness.Answer))
	g := harness.Start(t, harness.Config{Flexinfer: model("dead", "to "+harness.FreeAddr(t)) +
		model("hung:8b", to(hung), "alias hung-alias", "adapter lora-1")})
	tags := harness.Decode[ollamaList](t, g.Get(t, "/api/tags").Body)
	if got, want := tags.names(), []string{"dead", "hung:8b", "lora-1"}; !slices.Equal(got, want) {
		t.Errorf("/api/tags lists %q, want %q", got, want)
	}
	for _, m := range tags.Models {
		if m.Model != m.Name || len(m.Digest) != 64 || m.Size != 0 || m.ModifiedAt.Year() < 2020 || m.Details.Families == nil {
			t.Errorf("/api/tags has %+v", m)
		}
	}
	if parent := tags.Models[2].Details.ParentModel; parent != "hung:8b" {
		t.Errorf("the adapter's parent is %q", parent)
	}
	running := harness.Decode[ollamaList](t, g.Get(t, "/api/ps").Body)
	if got, want := running.names(), []string{"dead", "hung:8b"}; !slices.Equal(got, want) || running.Models[0].ExpiresAt.Before(time.Now()) {
		t.Errorf("/api/ps lists %+v, want %q", running, want)
	}
	version := harness.Decode[struct{ Version string }](t, g.Get(t, "/api/version").Body).Version
	var major, minor, patch int
	if n, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n != 3 {
		t.Errorf("the version is %q: %v", version, err)
	}

	for _, path := range []string{"/api/tags", "/api/ps", "/api/version"} {
		if res := g.Do(t, http.MethodHead, path, ""); res.Status != http.StatusOK || len(res.Body) != 0 {
			t.Errorf("HEAD %s: %s", path, res)
		}
		res := g.Post(t, path, bare("hung:8b"))
		if res.Status != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "GET, HEAD" || !strings.HasPrefix(string(res.Body), ollamaError) {
			t.Errorf("POST %s: %s %v", path, res, res.Header)
		}
	}
	// The ollama command asks this first.
	if res := g.Do(t, http.MethodHead, "/", ""); res.Status != http.StatusOK {
		t.Errorf("HEAD /: %s", res)
	}
	if res := g.Do(t, http.MethodHead, "/", "", "X-Model-ID", "dead"); res.Status != http.StatusBadGateway {
		t.Errorf("HEAD / of a model: %s", res)
	}
	if hung.Connections() != 0 {
		t.Error("an upstream was asked")
	}
	if res := g.Get(t, "/api/blobs"); res.Status != http.StatusBadRequest || !strings.HasPrefix(string(res.Body), ollamaError) {
		t.Errorf("/api/blobs: %s", res)
	}
}

// Models that sites list themselves are in Ollama's listing of the site.
func TestOllamaListingOfListedUpstreams(t *testing.T) {
	t.Parallel()
	engines := harness.StartEngines(t, 2, append(harness.Instant, "--model", "a:1b", "--model", "b")...)
	g := harness.Start(t, harness.Config{Site: "flexinfer " + harness.Addrs(engines)})
	harness.Eventually(t, harness.Patience, "the models are known", func() bool { return g.Get(t, "/readyz").Status == http.StatusOK })
	if got, want := harness.Decode[ollamaList](t, g.Get(t, "/api/tags").Body).names(), []string{"a:1b", "b"}; !slices.Equal(got, want) {
		t.Errorf("/api/tags lists %q, want %q", got, want)
	}
	if res := g.Post(t, "/api/show", bare("a:1b")); res.Status != http.StatusOK || !strings.Contains(string(res.Body), "model_info") {
		t.Errorf("/api/show: %s", res)
	}
}
