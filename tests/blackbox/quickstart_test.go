package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A completion is as much of an engine's answer as the tests look at.
type completion struct {
	Fingerprint string `json:"system_fingerprint"`
	Choices     []struct {
		Message json.RawMessage `json:"message"`
	} `json:"choices"`
	Usage struct {
		Prompt  int `json:"prompt_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// A conversation grows with each turn.
type conversation struct{ messages []string }

func (c *conversation) say(role, content string) {
	c.messages = append(c.messages, fmt.Sprintf(`{"role":%q,"content":%s}`, role, quote(content)))
}

// turn sends the conversation, and adds the answer to it.
func (c *conversation) turn(t *testing.T, g *harness.Gateway, model, question string) (*harness.Response, completion) {
	t.Helper()
	c.say("user", question)
	res, err := g.TryTwice(t.Context(), http.MethodPost, "/v1/chat/completions",
		`{"model":"`+model+`","messages":[`+strings.Join(c.messages, ",")+`]}`, harness.Debug...)
	if err != nil {
		t.Fatal(err)
	}
	answer := harness.Decode[completion](t, res.Body)
	if len(answer.Choices) != 1 {
		t.Fatalf("a chat has no answer: %s", res)
	}
	c.messages = append(c.messages, string(answer.Choices[0].Message))
	return res, answer
}

// The quickstart: of two turns of a chat the second finds the first one's KV
// cache under prefix routing, and misses it under round robin.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	engines := harness.StartEngines(t, 3, harness.Instant...)
	system := strings.Repeat("You know all there is to know about reverse proxies. ", 20)

	tests := []struct {
		routing string
		stays   bool
	}{
		{"prefix", true},
		{"session-affinity", true},
		{"round-robin", false},
	}
	for _, tt := range tests {
		t.Run(tt.routing, func(t *testing.T) {
			g := harness.Start(t, harness.Config{
				Flexinfer: model("sim", "to "+harness.Addrs(engines), "routing "+tt.routing),
			})
			// Each kind of routing talks of something else, so that no cache of
			// another one helps.
			var c conversation
			c.say("system", tt.routing+" "+system)
			res1, turn1 := c.turn(t, g, "sim", "What is a proxy?")
			res2, turn2 := c.turn(t, g, "sim", "And a reverse one?")

			if turn1.Usage.Details.Cached != 0 {
				t.Errorf("the first turn found %d tokens in a cache", turn1.Usage.Details.Cached)
			}
			route1, route2 := res1.Route(), res2.Route()
			if got := turn1.Fingerprint; got != "fp_"+route1["target"] {
				t.Errorf("the engine says it is %q, X-Flexinfer-Route says %q", got, res1.Header.Get("X-Flexinfer-Route"))
			}
			if route1["strategy"] != tt.routing || route1["outcome"] != "pod" || route1["attempt"] != "1" {
				t.Errorf("X-Flexinfer-Route is %q", res1.Header.Get("X-Flexinfer-Route"))
			}
			if stays := turn1.Fingerprint == turn2.Fingerprint && route1["target"] == route2["target"]; stays != tt.stays {
				t.Errorf("turn 1 went to %s, turn 2 to %s", turn1.Fingerprint, turn2.Fingerprint)
			}
			cached := turn2.Usage.Details.Cached
			if tt.stays && cached <= turn1.Usage.Prompt/2 || !tt.stays && cached != 0 {
				t.Errorf("turn 2 found %d of %d tokens in the cache", cached, turn2.Usage.Prompt)
			}
		})
	}
}

// X-Flexinfer-Route is for those who ask, and only where the operator allows.
func TestDebugHeader(t *testing.T) {
	t.Parallel()
	tests := []struct {
		option  string
		headers []string
		want    bool
	}{
		{"", harness.Debug, true}, // private: the client is on the loopback
		{"", nil, false},
		{"", []string{"X-Flexinfer-Debug", "0"}, false},
		{"debug_header all", harness.Debug, true},
		{"debug_header off", harness.Debug, false},
	}
	up := harness.NewUpstream(t, nil)
	for _, tt := range tests {
		t.Run(tt.option+strings.Join(tt.headers, "="), func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + tt.option})
			res := g.Chat(t, chat("hi"), tt.headers...)
			if got := res.Header.Get("X-Flexinfer-Route"); (got != "") != tt.want {
				t.Errorf("X-Flexinfer-Route is %q", got)
			}
		})
	}
}
