package blackbox

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

type response struct {
	ID    string
	Usage struct {
		InputTokens int `json:"input_tokens"`
		Details     struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
}

// What follows on a response reaches the engine that holds it, whatever picks:
// the others answer 404.
func TestResponsesReachTheirEngine(t *testing.T) {
	t.Parallel()
	engines := harness.StartEngines(t, 4, append(harness.Instant, "--model", "sim")...)
	for _, routing := range []string{"round-robin", "prefix", "least-loaded", "session-affinity"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, harness.Config{Flexinfer: model("sim", "to "+harness.Addrs(engines), "routing "+routing)})
			const path = "/v1/responses"
			for i := range 8 {
				res := g.Post(t, path, fmt.Sprintf(`{"model":"sim","input":"question %d of %s"}`, i, routing))
				if res.Status != http.StatusOK {
					t.Fatalf("the first turn: %s", res)
				}
				home, id := res.Header.Get("X-Engine-Id"), harness.Decode[response](t, res.Body).ID
				same := func(what string, res *harness.Response) {
					t.Helper()
					if at := res.Header.Get("X-Engine-Id"); res.Status != http.StatusOK || at != home {
						t.Errorf("%s: %s answered, the response is at %s: %s", what, at, home, res)
					}
				}
				for turn := range 3 {
					res = g.Post(t, path, `{"model":"sim","input":"and then?","previous_response_id":"`+id+`"}`)
					same(fmt.Sprint("turn ", turn), res)
					if res.Status == http.StatusOK {
						id = harness.Decode[response](t, res.Body).ID
					}
				}
				same("GET", g.Get(t, path+"/"+id))
				same("input items", g.Get(t, path+"/"+id+"/input_items"))
				// The engine refuses to cancel what is complete, but knows it.
				if res := g.Post(t, path+"/"+id+"/cancel", ""); res.Status != http.StatusBadRequest || res.Header.Get("X-Engine-Id") != home {
					t.Errorf("cancel: %s", res)
				}
				same("DELETE", g.Do(t, http.MethodDelete, path+"/"+id, ""))
			}
			if res := g.Get(t, path+"/resp_nobody"); res.Status != http.StatusNotFound && res.Status != http.StatusBadRequest {
				t.Errorf("a response that nobody has: %s", res)
			} else if !strings.HasPrefix(string(res.Body), openAIError) {
				t.Errorf("a response that nobody has is refused with %s", res)
			}
			g.WaitIdle(t)
		})
	}
}

// The ID of a stream is known from its first event on.
func TestStreamedResponsesReachTheirEngine(t *testing.T) {
	t.Parallel()
	engines := harness.StartEngines(t, 4, append(harness.Instant, "--model", "sim")...)
	g := harness.Start(t, harness.Config{Flexinfer: model("sim", "to "+harness.Addrs(engines), "routing round-robin")})
	for i := range 8 {
		res := g.Post(t, "/v1/responses", fmt.Sprintf(`{"model":"sim","input":"question %d","stream":true}`, i))
		home := res.Header.Get("X-Engine-Id")
		id := createdID(t, string(res.Body))
		res = g.Post(t, "/v1/responses", `{"model":"sim","input":"and then?","previous_response_id":"`+id+`"}`)
		if at := res.Header.Get("X-Engine-Id"); res.Status != http.StatusOK || at != home {
			t.Errorf("%s answered, the response is at %s: %s", at, home, res)
		}
	}
}

// createdID returns the response's ID in the first event of a stream.
func createdID(t *testing.T, stream string) string {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(stream))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			first := harness.Decode[struct {
				Type     string
				Response response
			}](t, []byte(data))
			if first.Type != "response.created" || first.Response.ID == "" {
				t.Fatalf("the first event is %s", data)
			}
			return first.Response.ID
		}
	}
	t.Fatalf("no event in %q", stream)
	return ""
}

// Ollama's calls stream unless told otherwise, and count what they took: the
// TTFT of streams and the tokens are in the metrics.
func TestOllamaStreamsAreAccounted(t *testing.T) {
	t.Parallel()
	engines := harness.StartEngines(t, 1, append(harness.Instant, "--model", "sim")...)
	g := harness.Start(t, harness.Config{Flexinfer: model("sim", "to "+harness.Addrs(engines))})
	for _, tt := range []struct {
		path, members string
		stream        bool
	}{
		{"/api/chat", `"messages":[{"role":"user","content":"hi"}]`, true},
		{"/api/chat", `"messages":[{"role":"user","content":"hi"}],"stream":true`, true},
		{"/api/chat", `"messages":[{"role":"user","content":"hi"}],"stream":false`, false},
		{"/api/generate", `"prompt":"hi"`, true},
		{"/api/generate", `"prompt":"hi","stream":false`, false},
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}]`, false},
	} {
		before := g.Metrics(t)
		if res := g.Post(t, tt.path, `{"model":"sim",`+tt.members+`}`); res.Status != http.StatusOK {
			t.Fatalf("%s: %s", tt.path, res)
		}
		g.WaitIdle(t)
		after := g.Metrics(t)
		grew := func(name string) float64 {
			return after.Value(name, "model", "sim") - before.Value(name, "model", "sim")
		}
		want := 0.0
		if tt.stream {
			want = 1
		}
		if n := grew("flexinfer_proxy_time_to_first_token_seconds"); n != want {
			t.Errorf("%s %s: %v times to a first token were counted, want %v", tt.path, tt.members, n, want)
		}
		if n := grew("flexinfer_proxy_request_completion_tokens"); n != 1 {
			t.Errorf("%s %s: the tokens of %v answers were counted", tt.path, tt.members, n)
		}
	}
}
