package blackbox

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

func TestAdminModels(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	ups := harness.NewUpstreams(t, 2, gate.Then(harness.Answer))
	g := harness.Start(t, harness.Config{
		Flexinfer: "routing session-affinity\n" + model("m", "to "+ups[0].Addr+" http://"+ups[1].Addr+"/base", "alias x y") + model("n", to(ups[0]), "routing least-loaded"),
	})
	done := make(chan error, 3)
	for range cap(done) {
		go func() {
			_, err := g.Try(t.Context(), http.MethodPost, "/v1/completions", bare("n"))
			done <- err
		}()
	}
	harness.Eventually(t, harness.Patience, "the calls are held", func() bool { return gate.Held() == cap(done) })

	models := g.Models(t)
	if len(models) != 2 || models[0].Name != "m" || models[1].Name != "n" {
		t.Fatalf("the models are %+v", models)
	}
	if m := models[0]; !slices.Equal(m.Aliases, []string{"x", "y"}) || m.Strategy != "session-affinity" || len(m.Endpoints) != 2 {
		t.Errorf("the model m is %+v", m)
	}
	if n := models[1]; n.Aliases == nil || n.Strategy != "least-loaded" || len(n.Endpoints) != 1 || n.Endpoints[0].Address != ups[0].Addr || n.Endpoints[0].Inflight != 3 {
		t.Errorf("the model n is %+v", n)
	}
	gate.Open()
	for range cap(done) {
		if err := harness.Receive(t, done, "an answer"); err != nil {
			t.Error(err)
		}
	}
	g.WaitIdle(t)
}

// Explain says where the real request goes then, and why.
func TestExplainForetellsTheDecision(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 6, nil)
	g := serve(t, "prefix", ups...)
	for i := range 50 {
		headers := []string{"X-Flexinfer-Cache-Key", fmt.Sprint("key-", i), "X-Flexinfer-Debug", "1"}
		e := g.Explain(t, "/v1/chat/completions", chat("hi"), headers...)
		route := g.Chat(t, chat("hi"), headers...).Route()
		if e.Target == "" || e.Target != route["target"] || e.Outcome != "pod" || e.KeySource != route["key_source"] || e.Strategy != "prefix" {
			t.Errorf("explain says %+v, the request went %v", e, route)
		}
		if len(e.Candidates) != len(ups) {
			t.Errorf("explain tells of %d candidates", len(e.Candidates))
		}
	}
	// A path that names the model, as the request would.
	if e := g.Explain(t, "/model/m/v1/embeddings", `{"input":"x"}`); e.Model != "m" {
		t.Errorf("explain says %+v", e)
	}
	for name, tt := range map[string]struct {
		path, body string
		status     int
	}{
		"unknown model": {"/v1/chat/completions", bare("nobody"), 404},
		"no model":      {"/v1/chat/completions", `{}`, 400},
		"bad JSON":      {"/v1/chat/completions", `{`, 400},
		"no path":       {"::", bare("m"), 400},
	} {
		if res := g.TryExplain(t, tt.path, tt.body); res.Status != tt.status {
			t.Errorf("%s: %s, want %d", name, res, tt.status)
		}
	}
	if res := g.AdminGet(t, "/flexinfer/explain"); res.Status != http.StatusMethodNotAllowed {
		t.Errorf("GET /flexinfer/explain: %s", res)
	}
	g.WaitIdle(t)
}

// Gateway and engines in one Caddyfile, each engine with a cache of its own
// that a reload leaves alone.
func TestEngineDirective(t *testing.T) {
	t.Parallel()
	ports := []int{harness.FreePort(t), harness.FreePort(t), harness.FreePort(t)}
	line := "to"
	var engines strings.Builder
	for i, port := range ports {
		line += fmt.Sprintf(" 127.0.0.1:%d", port)
		fmt.Fprintf(&engines, ":%d {\n\tbind 127.0.0.1\n\tflexinfer_engine {\n\t\tname e%d\n\t\tttft 0\n\t\ttokens_per_second 0\n\t\tprefill_tokens_per_second 0\n\t}\n}\n", port, i)
	}
	cfg := harness.Config{Flexinfer: model("sim", line, "routing prefix"), Extra: engines.String()}
	g := harness.Start(t, cfg)
	var c conversation
	c.say("system", strings.Repeat("All in one. ", 60))
	_, first := c.turn(t, g, "sim", "One?")
	_, second := c.turn(t, g, "sim", "Two?")
	g.Reload(t, cfg)
	_, third := c.turn(t, g, "sim", "Three?")
	if first.Fingerprint != second.Fingerprint || second.Fingerprint != third.Fingerprint {
		t.Errorf("the turns went to %s, %s and %s", first.Fingerprint, second.Fingerprint, third.Fingerprint)
	}
	if first.Usage.Details.Cached != 0 || second.Usage.Details.Cached == 0 || third.Usage.Details.Cached <= second.Usage.Details.Cached {
		t.Errorf("the turns found %d, %d and %d tokens in the cache", first.Usage.Details.Cached, second.Usage.Details.Cached, third.Usage.Details.Cached)
	}
}
