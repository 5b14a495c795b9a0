package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

func TestMatchers(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("qwen3-8b", to(up), "alias chat secret", "adapter my-lora") + model("org/other", to(up)) + "max_body 1KiB",
		Site: `@qwen flexinfer_model qwen3-* nobody-has-this
@orgs flexinfer_model org/*
@pinned flexinfer_key explicit-header explicit-body
@keyless flexinfer_key none
@expr expression flexinfer_model('org/*') && flexinfer_key('session-header')
route /key/* {
	respond @pinned pinned
	respond @keyless keyless
	respond other
}
route /expr/* {
	respond @expr yes
	respond no
}
route {
	respond @qwen qwen
	respond @orgs org
	respond none
}
handle_errors {
	respond "error {err.status_code}"
}`,
	})
	tests := []struct {
		path, body string
		headers    []string
		want       string
	}{
		{"/", bare("qwen3-8b"), nil, "qwen"},
		{"/", bare("qwen3-unknown"), nil, "qwen"},
		{"/", bare("nobody-has-this"), nil, "qwen"},
		{"/", bare("chat"), nil, "qwen"}, // an alias opens no back door
		{"/", bare("secret"), nil, "qwen"},
		{"/", bare("my-lora"), nil, "qwen"},
		{"/", bare("org/other"), nil, "org"},
		{"/", bare("org/other"), []string{"X-Model-ID", "qwen3-8b"}, "qwen"}, // what is routed is what is matched
		{"/model/org/other/x", bare("chat"), nil, "org"},
		{"/?model=chat", "", nil, "qwen"},
		{"/", bare("xqwen3-8b"), nil, "none"},
		{"/", `{}`, nil, "none"},
		{"/", `{"model":`, nil, "none"},
		{"/", "", nil, "none"},
		{"/", `{"model":"chat","model":"org/other"}`, nil, "org"},
		{"/", `{"model":"chat","x":"` + strings.Repeat("x", 1024) + `"}`, nil, "error 413"},
		{"/key/", bare("chat"), nil, "keyless"},
		{"/key/", bare("chat"), []string{"X-Flexinfer-Cache-Key", "k"}, "pinned"},
		{"/key/", bare("chat"), []string{"X-Flexinfer-Cache-Key", "not a key"}, "keyless"},
		{"/key/", `{"cacheKey":"k"}`, nil, "pinned"},
		{"/key/", `{"session_id":"s"}`, nil, "other"},
		{"/key/", chat("hi"), nil, "other"},
		{"/expr/", bare("org/other"), []string{"X-Session-ID", "s"}, "yes"},
		{"/expr/", bare("org/other"), nil, "no"},
		{"/expr/", bare("chat"), []string{"X-Session-ID", "s"}, "no"},
	}
	for _, tt := range tests {
		if got := string(g.Post(t, tt.path, tt.body, tt.headers...).Body); got != tt.want {
			t.Errorf("%s %.60s %v: got %q, want %q", tt.path, tt.body, tt.headers, got, tt.want)
		}
	}
}

// The body that a matcher read is whole for what comes after it.
func TestMatcherBeforeTheGateway(t *testing.T) {
	t.Parallel()
	a, b, plain := harness.NewUpstream(t, named("a")), harness.NewUpstream(t, named("b")), harness.NewUpstream(t, named("plain"))
	g := harness.Start(t, harness.Config{
		Flexinfer: model("a", to(a)) + model("b", to(b)),
		Site: `@a flexinfer_model a
@plain flexinfer_model plain
handle @a {
	flexinfer
}
handle @plain {
	reverse_proxy ` + plain.Addr + `
}
handle {
	flexinfer {
		header_down X-Second yes
	}
}`,
	})
	for name, up := range map[string]*harness.Upstream{"a": a, "b": b, "plain": plain} {
		body := chatOf(name, strings.Repeat(name, 100_000))
		res := g.Chat(t, body)
		if got := upstreamOf(t, res); got != name || up.Last(t).Sum != sum(body) {
			t.Errorf("%s went to %s with other bytes: %t", name, got, up.Last(t).Sum != sum(body))
		}
		if got := res.Header.Get("X-Second") == "yes"; got != (name == "b") {
			t.Errorf("%s came through the second directive: %t", name, got)
		}
	}
	g.WaitIdle(t)
}

// The pieces of the gateway work each alone.
func TestPiecesAlone(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, nil)
	static := addrs(ups...)
	tests := []struct {
		name, flexinfer, site string
		sticks                bool // by X-Session-ID
	}{
		{"lb_policy", "", "reverse_proxy " + static + " {\n\tlb_policy flexinfer session-affinity\n}", true},
		{"lb_policy with options", "", "reverse_proxy " + static + " {\n\tlb_policy flexinfer session-affinity {\n\t\tload_factor 3\n\t}\n}", true},
		{"lb_policy prefix", "", "reverse_proxy " + static + " {\n\tlb_policy flexinfer prefix\n}", true},
		{"lb_policy round-robin", "", "reverse_proxy " + static + " {\n\tlb_policy flexinfer round-robin\n}", false},
		{"lb_policy of the app", "routing session-affinity", "reverse_proxy " + static + " {\n\tlb_policy flexinfer\n}", true},
		{"transport", "", "reverse_proxy " + static + " {\n\tlb_policy header X-Session-ID\n\ttransport flexinfer\n}", true},
		{"lb_policy and transport", "", "reverse_proxy " + static + " {\n\tlb_policy flexinfer session-affinity\n\ttransport flexinfer\n}", true},
		{"dynamic without a handler", model("m", to(ups...), "routing session-affinity"), "reverse_proxy {\n\tdynamic flexinfer\n\tlb_policy flexinfer\n\ttransport flexinfer\n}", true},
		{"call and strategy", model("m", to(ups...)), "route {\n\tflexinfer_call session-affinity\n\treverse_proxy {\n\t\tdynamic flexinfer\n\t\tlb_policy flexinfer\n\t\ttransport flexinfer\n\t}\n}", true},
		{"call without a strategy", model("m", to(ups...), "routing prefix"), "route {\n\tflexinfer_call\n\treverse_proxy {\n\t\tdynamic flexinfer\n\t\tlb_policy flexinfer\n\t\ttransport flexinfer\n\t}\n}", true},
		{"call and strategy before a static pool", model("m", to(ups...)), "route {\n\tflexinfer_call session-affinity\n\treverse_proxy " + static + " {\n\t\tlb_policy flexinfer\n\t}\n}", true},
		{"call before a static pool", model("m", to(ups...), "routing session-affinity"), "route {\n\tflexinfer_call\n\treverse_proxy " + static + " {\n\t\tlb_policy flexinfer\n\t}\n}", true},
		{"dynamic with Caddy's transport", model("m", to(ups...), "routing session-affinity"), "route {\n\tflexinfer_call\n\treverse_proxy {\n\t\tdynamic flexinfer\n\t\tlb_policy flexinfer\n\t}\n}", true},
		{"directive with a strategy", model("m", to(ups...)), "flexinfer {\n\trouting session-affinity\n}", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, harness.Config{Flexinfer: tt.flexinfer, Site: tt.site})
			where := make(map[string]map[string]bool)
			all := make(map[string]bool)
			for i := range 186 {
				session := fmt.Sprint("s", i%31)
				body := chat(strings.Repeat("x", 60*i))
				res := g.Chat(t, body, "X-Session-ID", session)
				if where[session] == nil {
					where[session] = make(map[string]bool)
				}
				where[session][upstreamOf(t, res)] = true
				all[upstreamOf(t, res)] = true
			}
			if len(all) != len(ups) {
				t.Errorf("31 sessions went to %d of %d upstreams", len(all), len(ups))
			}
			for session, on := range where {
				if tt.sticks && len(on) != 1 {
					t.Errorf("session %s went to %d upstreams", session, len(on))
				}
			}
			if !tt.sticks && len(where["s0"]) == 1 && len(where["s1"]) == 1 {
				t.Error("sessions stick, though nothing asks for it")
			}
		})
	}
}

// Alone, a policy refuses nothing: what it cannot read, or is not meant to,
// streams on.
func TestLonePolicyRefusesNothing(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 2, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: "max_body 1KiB",
		Site:      "reverse_proxy " + addrs(ups...) + " {\n\tlb_policy flexinfer prefix\n}",
	})
	for _, body := range []string{
		"", "{", "not JSON", `{"model":7}`, chat("hi"),
		chat(strings.Repeat("x", 1000)), chat(strings.Repeat("x", 5000)), chat(strings.Repeat("x", 3<<20)),
	} {
		for _, chunked := range []bool{false, true} {
			for _, u := range ups {
				u.Forget()
			}
			req, err := g.NewRequest(t.Context(), http.MethodPost, "/any/path", body)
			if err != nil {
				t.Fatal(err)
			}
			if chunked && body != "" {
				req.ContentLength = -1
			}
			res, err := g.Client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("a body of %d bytes, chunked %t: status %d", len(body), chunked, res.StatusCode)
				continue
			}
			if got := append(ups[0].Requests(), ups[1].Requests()...); len(got) != 1 || got[0].Sum != sum(body) {
				t.Errorf("a body of %d bytes, chunked %t, did not arrive as it was", len(body), chunked)
			}
		}
	}
}

// Over a static pool the policy counts what is under way, and respects the
// proxy's own health checks.
func TestLonePolicyCountsAndRespectsHealth(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	ups := harness.NewUpstreams(t, 2, gate.Then(harness.Answer))
	g := harness.Start(t, harness.Config{Site: "reverse_proxy " + addrs(ups...) + " " + harness.FreeAddr(t) +
		" {\n\tlb_policy flexinfer least-loaded\n\tlb_retries 2\n\tfail_duration 60s\n}"})
	done := make(chan error, 20)
	for range cap(done) {
		go func() {
			res, err := g.Try(context.WithoutCancel(t.Context()), http.MethodGet, "/", "")
			if err == nil && res.Status != http.StatusOK {
				err = fmt.Errorf("the answer is %s", res)
			}
			done <- err
		}()
	}
	harness.Eventually(t, harness.Patience, "all requests are held", func() bool { return gate.Held() == cap(done) })
	if a, b := ups[0].Inflight(), ups[1].Inflight(); a < 9 || b < 9 {
		t.Errorf("of 20 requests the upstreams have %d and %d", a, b)
	}
	gate.Open()
	for range cap(done) {
		if err := harness.Receive(t, done, "an answer"); err != nil {
			t.Error(err)
		}
	}
}

// The same in JSON, as the adapter writes it and as somebody might by hand.
func TestJSONConfiguration(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 2, nil)
	g := harness.StartJSON(t, func(site, admin string) string {
		return `{"admin":{"listen":"` + admin + `","config":{"persist":false}},"apps":{
			"flexinfer":{"routing":{"strategy":"session_affinity"},"max_body":1000,"models":[{"name":"m","aliases":["x"],
				"sources":[{"source":"static","upstreams":[{"address":"` + ups[0].Addr + `","weight":1},{"address":"http://` + ups[1].Addr + `"}]}]}]},
			"http":{"grace_period":"2s","servers":{"s":{"listen":["` + site + `"],"automatic_https":{"disable":true},"routes":[
				{"match":[{"path":["/metrics"]}],"handle":[{"handler":"metrics"}]},
				{"handle":[{"handler":"flexinfer","operations":true},{"handler":"reverse_proxy","dynamic_upstreams":{"source":"flexinfer"},
					"load_balancing":{"selection_policy":{"policy":"flexinfer"}},"transport":{"protocol":"flexinfer"}}]}]}}}}}`
	})
	seen := make(map[string]string)
	for i := range 60 {
		session := fmt.Sprint(i % 20)
		up := upstreamOf(t, g.Chat(t, chatOf("x", "hi"), "X-Session-ID", session))
		if seen[session] != "" && seen[session] != up {
			t.Errorf("session %s went to %s and %s", session, seen[session], up)
		}
		seen[session] = up
	}
	if res := g.Chat(t, chat("hi"), harness.Debug...); res.Route()["strategy"] != "session-affinity" {
		t.Errorf("X-Flexinfer-Route is %v", res.Route())
	}
	if res := g.Post(t, "/v1/chat/completions", chat(strings.Repeat("x", 1000))); res.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: %s", res)
	}
	if res := g.Get(t, "/v1/models"); !strings.Contains(string(res.Body), `"id":"m"`) {
		t.Errorf("/v1/models: %s", res)
	}

	// What adapt writes is a configuration.
	cfg := harness.Config{Flexinfer: model("m", to(ups...), "routing prefix {\n\t\tload_factor 2\n\t}")}
	if res := harness.Start(t, cfg).Load(t, "application/json", string(g.Adapt(t, cfg))); res.Status != http.StatusOK {
		t.Errorf("loading what adapt wrote: %s", res)
	}
}
