package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// With validate_requests a request that an engine would refuse for its shape
// is refused in OpenAI's own words, and reaches none. Without it nothing is
// judged. What vendors add passes either way (B13).
func TestValidateRequests(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	off := harness.Config{Flexinfer: model("m", "alias another", to(up))}
	on := off
	on.Flexinfer += "validate_requests on"
	const chatPath, completions, embeddings = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
	hi := `"messages":[{"role":"user","content":"hi"}]`
	bad := []struct{ path, body, code, param string }{
		{chatPath, `{"model":"m"}`, "missing_required_field", "messages"},
		{chatPath, `{"model":"m","messages":[]}`, "invalid_value", "messages"},
		{chatPath, `{"model":"m","messages":"hi"}`, "invalid_type", "messages"},
		{chatPath, `{"model":"m","messages":[{"content":"hi"}]}`, "missing_required_field", "messages[0].role"},
		{chatPath, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"boss","content":"b"}]}`, "invalid_value", "messages[1].role"},
		{chatPath, `{"model":"m","messages":[{"role":"user","content":[{"text":"a"}]}]}`, "missing_required_field", "messages[0].content[0].type"},
		{chatPath, `{"model":"m","temperature":3,` + hi + `}`, "invalid_value", "temperature"},
		{chatPath, `{"model":"m","stream":"true",` + hi + `}`, "invalid_type", "stream"},
		{chatPath, `{"model":"m","max_tokens":1.5,` + hi + `}`, "invalid_type", "max_tokens"},
		{chatPath, `{"model":"m","n":0,` + hi + `}`, "invalid_value", "n"},
		{completions, `{"model":"m"}`, "missing_required_field", "prompt"},
		{completions, `{"model":"m","prompt":{}}`, "invalid_type", "prompt"},
		{embeddings, `{"model":"m"}`, "missing_required_field", "input"},
		{embeddings, `{"model":"m","input":null}`, "invalid_type", "input"},
		{"/model/another" + chatPath, `{}`, "missing_required_field", "messages"},
	}
	good := []struct{ path, body string }{
		{chatPath, `{"model":"m","max_tokens":null,"temperature":0.5,"chat_template_kwargs":{},"tools":[{"type":"function","function":{"name":"f"}}],` + hi + `}`},
		{chatPath, `{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[]},{"role":"tool","content":"x"}]}`},
		{completions, `{"model":"m","prompt":[[1,2],[3]]}`},
		{embeddings, `{"model":"m","input":["a","b"]}`},
		{"/v1/messages", `{"model":"m"}`}, // not OpenAI's to judge
		{"/v1/rerank", `{"model":"m"}`},
	}
	g := harness.Start(t, off)
	for _, tt := range bad {
		if res := g.Post(t, tt.path, tt.body); res.Status != http.StatusOK {
			t.Errorf("without validation, %s: %s", tt.body, res)
		}
	}
	g.Reload(t, on)
	g.Chat(t, chat("the new configuration is there"))
	up.Forget()
	for _, tt := range bad {
		for coding, body := range map[string]string{"": tt.body, "gzip": encode(t, "gzip", tt.body)} {
			var headers []string
			if coding != "" {
				headers = []string{"Content-Encoding", coding}
			}
			res := g.Post(t, tt.path, body, headers...)
			e := res.Refusal(t).Error
			if res.Status != http.StatusBadRequest || e.Type != "invalid_request_error" || e.Code != tt.code || e.Param != tt.param {
				t.Errorf("%s %s: %s, want the code %s for %s", tt.path, tt.body, res, tt.code, tt.param)
			}
		}
	}
	if n := up.Served(); n != 0 {
		t.Errorf("%d refused requests reached the upstream", n)
	}
	for _, tt := range good {
		res := g.Post(t, tt.path, tt.body)
		if got := string(up.Last(t).Body); res.Status != http.StatusOK || got != tt.body {
			t.Errorf("%s %s: %s, the upstream got %s", tt.path, tt.body, res, got)
		}
	}
	if n := g.Metrics(t).Value("flexinfer_proxy_requests_total", "model", "m", "status", "error"); n != float64(2*len(bad)) {
		t.Errorf("%v refusals are counted, want %d", n, 2*len(bad))
	}
	g.WaitIdle(t)
}

// The variables of FlexInfer's proxy about clamp and validation are defaults,
// which the configuration goes before.
func TestEnvironmentOfEdits(t *testing.T) {
	t.Parallel()
	const clamp, reserve, validation = "PROXY_MAX_TOKENS_CLAMP_ENABLED=", "PROXY_MAX_TOKENS_CLAMP_PROMPT_RESERVE_TOKENS=", "PROXY_VALIDATE_REQUESTS="
	tests := []struct {
		env       []string
		flexinfer string
		sent      string // max_tokens upstream, of 5000
		refuses   bool
	}{
		{nil, "", "512", false},
		{[]string{clamp + "false", validation + "true", reserve + "24"}, "", "5000", true},
		{[]string{clamp + "false", reserve + "24"}, "max_tokens_clamp on", "1000", false},
		{[]string{reserve + "24", validation + "true"}, "max_tokens_clamp {\n\tprompt_reserve 124\n}\nvalidate_requests off", "900", false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.env, tt.flexinfer), func(t *testing.T) {
			t.Parallel()
			up := harness.NewUpstream(t, nil)
			g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up), "context_window 1024") + tt.flexinfer, Env: tt.env})
			g.Chat(t, `{"model":"m","max_tokens":5000,"messages":[{"role":"user","content":"hi"}]}`)
			if got := string(up.Last(t).Body); !strings.Contains(got, `"max_tokens":`+tt.sent+",") {
				t.Errorf("the upstream got %s, want %s tokens", got, tt.sent)
			}
			if res := g.Post(t, "/v1/chat/completions", bare("m")); (res.Status == http.StatusBadRequest) != tt.refuses {
				t.Errorf("a chat without messages: %s", res)
			}
		})
	}
}

// A model's own retries, timeouts and health go before those of all models,
// option by option.
func TestModelsOwnPolicies(t *testing.T) {
	t.Parallel()
	const all = `retries 1 {
	on 429
}
timeouts {
	first_byte 10s
	gap 300ms
}
health {
	eject_after 3
	max_ejected 100%
	unhealthy_status 500
}
`
	hang := func(x *harness.Exchange) { <-x.Gone() }
	ups := make(map[string][]*harness.Upstream)
	add := func(name string, answer func(*harness.Exchange), lines ...string) string {
		ups[name] = harness.NewUpstreams(t, 3, answer)
		return model(name, append([]string{to(ups[name]...), "routing round-robin"}, lines...)...)
	}
	three := func(x *harness.Exchange) {
		x.StartStream("text/event-stream")
		x.Chunk("data: {}\n\n")
		<-x.Gone()
	}
	g := harness.Start(t, harness.Config{Flexinfer: all +
		add("plain", status(429)) +
		add("never", status(429), "retries 0") +
		add("often", status(429), "retries 2") +
		add("others", status(429), "retries {\n\t\ton 404\n\t}") +
		add("hurries", hang, "timeouts {\n\t\tfirst_byte 200ms\n\t}") +
		add("patient", three, "timeouts {\n\t\tgap 800ms\n\t}") +
		add("impatient", three) +
		add("strict", status(418), "health {\n\t\teject_after 1\n\t\tunhealthy_status 418\n\t}") +
		add("lenient", status(500), "health {\n\t\teject_after 9\n\t}") +
		add("as-all", status(500))})
	attempts := func(name string) (n int) {
		for _, u := range ups[name] {
			n += u.Served()
		}
		return n
	}
	for name, want := range map[string]int{"plain": 2, "never": 1, "often": 3, "others": 1} {
		g.Post(t, "/v1/chat/completions", bare(name))
		if n := attempts(name); n != want {
			t.Errorf("%s: a call made %d attempts, want %d", name, n, want)
		}
	}
	for name, within := range map[string][2]time.Duration{
		"hurries": {180 * time.Millisecond, 3 * time.Second}, "impatient": {280 * time.Millisecond, 5 * time.Second}, "patient": {780 * time.Millisecond, 4 * time.Second},
	} {
		begun := time.Now()
		res, err := g.TryFresh(t.Context(), http.MethodPost, "/v1/chat/completions", `{"model":"`+name+`","stream":true}`)
		if took := time.Since(begun); took < within[0] || took > within[1] {
			t.Errorf("%s: the call took %s: %v %v", name, took, res, err)
		}
	}
	for name, want := range map[string]bool{"strict": false, "lenient": true, "as-all": false} {
		for range 12 {
			g.Post(t, "/v1/chat/completions", bare(name))
		}
		for i, u := range ups[name] {
			if got := isHealthy(t, g, name, u); got != want {
				t.Errorf("%s: upstream %d is healthy: %v, after %d failures", name, i, got, u.Served())
			}
		}
	}
	g.WaitIdle(t)
}

// An idle connection is kept for timeouts keepalive, and no longer.
func TestKeepAliveOption(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "timeouts {\n\tkeepalive 400ms\n}"})
	for range 5 {
		g.Chat(t, chat("hi"))
	}
	if n := up.Connections(); n != 1 {
		t.Errorf("five calls in turn took %d connections", n)
	}
	harness.Eventually(t, 5*time.Second, "the gateway closes the idle connection", func() bool { return up.OpenConnections() == 0 })
	g.Chat(t, chat("hi"))
	if n := up.Connections(); n != 2 {
		t.Errorf("after the pause there are %d connections, want a second one", n)
	}
}

// The name that the upstream got, and the time that a call waited for its first
// attempt, are told in placeholders and, the latter, in the access log.
func TestPlaceholdersOfAttempts(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", "alias another", "adapter lora", "to "+up.Addr+" {\n\t\tmodel own/name\n\t}"), AccessLog: true,
		Site: "log_append p-upstream_model {http.flexinfer.upstream_model}\nlog_append p-queue_ms {http.flexinfer.queue_ms}\nflexinfer {\n\theader_down X-Name {http.flexinfer.upstream_model}\n}",
	})
	for i, tt := range []struct{ asked, want string }{{"m", "own/name"}, {"another", "own/name"}, {"lora", "lora"}, {"nobody", ""}} {
		id := fmt.Sprint("request-", i)
		res := g.Post(t, "/v1/chat/completions", bare(tt.asked), "X-Request-Id", id)
		if got := res.Header.Get("X-Name"); got != tt.want {
			t.Errorf("%s: {http.flexinfer.upstream_model} is %q in header_down, want %q", tt.asked, got, tt.want)
		}
		e := g.Logs().Wait(t, "handled request", func(e harness.Entry) bool { return strings.Contains(fmt.Sprint(e["request"]), id) })
		if got := e["p-upstream_model"]; got != tt.want {
			t.Errorf("%s: {http.flexinfer.upstream_model} is %v in the log, want %q", tt.asked, got, tt.want)
		}
		ms, ok := e["queue_ms"].(float64)
		if known := tt.want != ""; ok != known || ms < 0 || ms > 5000 {
			t.Errorf("%s: the access log says that queue_ms is %v", tt.asked, e["queue_ms"])
		}
		if got := fmt.Sprint(e["p-queue_ms"]); (got == "") != (tt.want == "") {
			t.Errorf("%s: {http.flexinfer.queue_ms} is %q", tt.asked, got)
		}
	}
}
