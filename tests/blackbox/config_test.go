package blackbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// at marks the line of a Caddyfile that is wrong. It is a comment there.
const at = "# here"

// Wrong configuration is refused by caddy validate and caddy adapt, with the
// file, the line and what to write instead.
func TestValidateErrors(t *testing.T) {
	t.Parallel()
	flexinfer := func(text string) string { return "{\n\tflexinfer {\n" + text + "\n\t}\n}\n:8080 {\n\tflexinfer\n}\n" }
	inModel := func(text string) string { return flexinfer("model m {\nto 10.0.0.5:8000\n" + text + "\n}") }
	site := func(text string) string {
		return "{\n\tflexinfer {\n\t\tmodel m {\n\t\t\tto 10.0.0.5:8000\n\t\t}\n\t}\n}\n:8080 {\n" + text + "\n}\n"
	}
	inSite := func(text string) string { return site("flexinfer {\n" + text + "\n}") }
	tests := []struct {
		name, caddyfile string
		want            []string
	}{
		{"unknown strategy", flexinfer("routing nonsense " + at), []string{"nonsense", "default", "least-loaded", "power-of-two", "prefix", "round-robin", "session-affinity", "soft-k-choice"}},
		{"unknown strategy of a model", inModel("routing nonsense " + at), []string{"nonsense", "session-affinity"}},
		{"unknown strategy of lb_policy", site("reverse_proxy 10.0.0.5:8000 {\nlb_policy flexinfer nonsense " + at + "\n}"), []string{"nonsense", "session-affinity"}},
		{"unknown strategy of flexinfer_call", site("route {\nflexinfer_call nonsense " + at + "\n}"), []string{"nonsense", "session-affinity"}},
		{"unknown strategy of the directive", inSite("routing nonsense " + at), []string{"nonsense", "session-affinity"}},
		{"unknown option", flexinfer("rooting prefix " + at), []string{"rooting"}},
		{"unknown option of a model", inModel("nonsense 1 " + at), []string{"nonsense"}},
		{"unknown option of a strategy", inModel("routing prefix {\nload_fraction 2 " + at + "\n}"), []string{"load_fraction", "load_factor"}},
		{"load factor below 1", inModel("routing prefix {\nload_factor 0.5 " + at + "\n}"), []string{"load_factor"}},
		{"k of 0", inModel("routing soft-k-choice {\nk 0 " + at + "\n}"), []string{"k"}},
		{"duplicate model", flexinfer("model m {\nto 10.0.0.5:8000\n}\nmodel m { " + at + "\nto 10.0.0.6:8000\n}"), []string{`"m"`}},
		{"duplicate alias", flexinfer("model a {\nto 10.0.0.5:8000\nalias x\n}\nmodel b {\nto 10.0.0.6:8000\nalias x " + at + "\n}"), []string{`"x"`, `"a"`}},
		{"alias that is a model", flexinfer("model a {\nto 10.0.0.5:8000\n}\nmodel b {\nto 10.0.0.6:8000\nalias a " + at + "\n}"), []string{`"a"`}},
		{"adapter that is an alias", inModel("alias x\nadapter x " + at), []string{`"x"`}},
		{"no port", flexinfer("model m {\nto example.com " + at + "\n}"), []string{"example.com", "port"}},
		{"unknown scheme", flexinfer("model m {\nto ftp://example.com " + at + "\n}"), []string{"ftp", "http", "h2c"}},
		{"credentials in an address", flexinfer("model m {\nto http://u:p@example.com " + at + "\n}"), []string{"header"}},
		{"the same upstream twice", flexinfer("model m {\nto 10.0.0.5:8000 http://10.0.0.5:8000 " + at + "\n}"), []string{"10.0.0.5:8000", "weight"}},
		{"weight of 0", flexinfer("model m {\nto 10.0.0.5:8000 {\nweight 0 " + at + "\n}\n}"), []string{"weight", "1"}},
		{"a broken header", flexinfer("model m {\nto 10.0.0.5:8000 {\nheader \"X Y\" z " + at + "\n}\n}"), []string{"X Y"}},
		{"neither upstreams nor service", flexinfer("model m { " + at + "\nalias x\n}"), []string{`"m"`, "to", "service"}},
		{"max_body 0", flexinfer("max_body 0 " + at), []string{"max_body"}},
		{"max_body below 0", flexinfer("max_body -5MiB " + at), []string{"max_body"}},
		{"retries below 0", flexinfer("retries -1 " + at), []string{"retries"}},
		{"reservation_ttl below 0", flexinfer("reservation_ttl -1s " + at), []string{"reservation_ttl"}},
		{"ledger bucket 0", flexinfer("ledger {\nbucket 0s " + at + "\n}"), []string{"bucket"}},
		{"ledger ttl below 0", flexinfer("ledger {\nttl -1s " + at + "\n}"), []string{"ttl"}},
		{"ledger ttl below its buckets", flexinfer("ledger { " + at + "\nbucket 10s\nttl 10s\n}"), []string{"ttl", "bucket"}},
		{"key length 0", flexinfer("keys {\nexplicit_key_max_length 0 " + at + "\n}"), []string{"explicit_key_max_length"}},
		{"debug_header", flexinfer("debug_header yes " + at), []string{"off", "private", "all"}},
		{"lb_policy in the directive", inSite("lb_policy round_robin " + at), []string{"lb_policy", "routing"}},
		{"to in the directive", inSite("to 10.0.0.5:8000 " + at), []string{"to"}},
		{"dynamic in the directive", inSite("dynamic a " + at), []string{"dynamic"}},
		{"transport in the directive", inSite("transport http " + at), []string{"transport"}},
		{"lb_try_duration in the directive", inSite("lb_try_duration 5s " + at), []string{"retries"}},
		{"lb_retry_match in the directive", inSite("lb_retry_match method POST " + at), []string{"retries"}},
		{"request_buffers in the directive", inSite("request_buffers 1MiB " + at), []string{"max_body"}},
		{"health_uri in the directive", inSite("health_uri /health " + at), []string{"health_uri"}},
		{"max_fails in the directive", inSite("max_fails 3 " + at), []string{"max_fails"}},
		{"fail_duration in the directive", inSite("fail_duration 3s " + at), []string{"fail_duration"}},
		{"a strategy beside dynamic flexinfer", site("reverse_proxy {\ndynamic flexinfer\nlb_policy flexinfer prefix\n}"), []string{"flexinfer_call"}},
		{"the directive without any model", ":8080 {\nflexinfer " + at + "\n}", []string{"flexinfer 10.0.0.5:8000", "model"}},
		{"a directive's upstream without a port", ":8080 {\nflexinfer example " + at + "\n}", []string{"port"}},
		{"a matcher without a pattern", site("@a flexinfer_model " + at + "\nrespond @a x"), []string{"qwen3-*"}},
		{"a matcher of an unknown source", site("@a flexinfer_key explicit " + at + "\nrespond @a x"), []string{"explicit-header", "session-body"}},
		{"two global blocks", "{\nflexinfer {\n}\nflexinfer { " + at + "\n}\n}\n", []string{"two"}},
		{"dynamic flexinfer with options", site("reverse_proxy {\ndynamic flexinfer {\nx " + at + "\n}\n}"), []string{"flexinfer"}},
		{"engine with a bad rate", site("flexinfer_engine {\ntokens_per_second fast " + at + "\n}"), []string{"200"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := harness.Command(t, tt.caddyfile, nil, "validate", "--adapter", "caddyfile", "--config")
			if err == nil {
				t.Fatalf("it is valid:\n%s", tt.caddyfile)
			}
			message := out.Stdout + out.Stderr
			for i, line := range strings.Split(tt.caddyfile, "\n") {
				if where := fmt.Sprintf("Caddyfile:%d", i+1); strings.Contains(line, at) && !hasLine(message, where) {
					t.Errorf("the error does not name %s (%s): %s", where, line, lastLine(message))
				}
			}
			for _, word := range tt.want {
				if !strings.Contains(message, word) && !strings.Contains(message, strings.ReplaceAll(word, `"`, `\"`)) {
					t.Errorf("the error does not say %s: %s", word, lastLine(message))
				}
			}
		})
	}
}

// hasLine reports whether text has where, not followed by a digit.
func hasLine(text, where string) bool {
	for {
		_, rest, found := strings.Cut(text, where)
		if !found {
			return false
		}
		if rest == "" || rest[0] < '0' || rest[0] > '9' {
			return true
		}
		text = rest
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// A variable that turns on what the gateway has no option for fails the start,
// with the directives to write; env_ignore accepts it. Others warn.
func TestEnvironmentThatAsksForMore(t *testing.T) {
	t.Parallel()
	g := func(extra string) string {
		return "{\n\tadmin off\n\tflexinfer {\n\t\tmodel m {\n\t\t\tto 10.0.0.5:8000\n\t\t}\n" + extra + "\n\t}\n}\n:8080 {\n\tflexinfer\n}\n"
	}
	tests := []struct {
		env, extra string
		ok         bool
		want       []string
	}{
		{"PROXY_AUTH_ENABLED=true", "", false, []string{"PROXY_AUTH_ENABLED", "Bearer", "respond", "env_ignore PROXY_AUTH_ENABLED"}},
		{"PROXY_AUTH_ENABLED=true", "env_ignore PROXY_AUTH_ENABLED", true, nil},
		{"PROXY_AUTH_ENABLED=false", "", true, nil},
		{"PROXY_AUTH_ENABLED=", "", true, nil},
		{"PROXY_RATE_LIMIT_ENABLED=1", "", false, []string{"PROXY_RATE_LIMIT_ENABLED", "rate_limit"}},
		{"PROXY_ADMISSION_ENABLED=yes", "", false, []string{"PROXY_ADMISSION_ENABLED"}},
		{"FLEXINFER_KOKORO_UPSTREAM=http://x:1", "", false, []string{"FLEXINFER_KOKORO_UPSTREAM", "reverse_proxy"}},
		{"PROXY_NO_SUCH_THING=1", "", true, []string{"PROXY_NO_SUCH_THING"}},
		{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=-1", "", true, []string{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH"}},
		{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=64", "", true, nil},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=9", "", true, []string{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS"}},
	}
	for _, tt := range tests {
		t.Run(tt.env+" "+tt.extra, func(t *testing.T) {
			t.Parallel()
			out, err := harness.Command(t, g(tt.extra), []string{tt.env}, "validate", "--adapter", "caddyfile", "--config")
			message := out.Stdout + out.Stderr
			if (err == nil) != tt.ok {
				t.Fatalf("validate: %v: %s", err, lastLine(message))
			}
			for _, word := range tt.want {
				if !strings.Contains(message, word) {
					t.Errorf("nothing says %q:\n%s", word, message)
				}
			}
		})
	}
}

// The environment's defaults are those of the options it names.
func TestEnvironmentDefaults(t *testing.T) {
	t.Parallel()
	dead := model("m", "to "+harness.FreeAddr(t)+" "+harness.FreeAddr(t)+" "+harness.FreeAddr(t), "routing round-robin")
	tests := []struct {
		env, flexinfer string
		attempts       float64
	}{
		{"PROXY_ROUTING_ENABLED=true", dead, 3},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=1", dead, 1},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=2", dead, 2},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=1", dead + "retries 2", 3},
	}
	for _, tt := range tests {
		t.Run(tt.env, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, harness.Config{Flexinfer: tt.flexinfer, Env: []string{tt.env}})
			g.Post(t, "/v1/chat/completions", chat("hi"))
			if n := g.Metrics(t).Value("flexinfer_proxy_routing_target_hits_total"); n != tt.attempts {
				t.Errorf("there were %v attempts, want %v", n, tt.attempts)
			}
		})
	}
}

// What is right is found right, without any upstream being there.
func TestValidateNeedsNoUpstreams(t *testing.T) {
	t.Parallel()
	caddyfile := `{
	flexinfer {
		routing prefix
		model qwen3-8b {
			alias qwen qwen-latest
			adapter my-lora
			routing session-affinity {
				load_factor 2
				load_floor 4
			}
			to 10.0.0.5:8000 10.0.0.6:8000
			to https://eu.example.com/base {
				weight 2
				label region eu
				header Authorization "Bearer {env.EU_KEY}"
			}
			to [::1]:8000 h2c://10.0.0.7
			service qwen3-8b.models.svc:8000
		}
		keys {
			explicit_key_max_length 128
			system_segment_max_length 512
			document_segment_max_length 256
			session_header X-Chat
			session_field metadata.user_id
		}
		max_body 32MiB
		retries 2
		reservation_ttl 10s
		ledger {
			bucket 5s
			ttl 600s
		}
		debug_header private
	}
}
:8080 {
	flexinfer
}
:8081 {
	flexinfer 10.0.0.5:11434 10.0.0.6:11434
}
:8082 {
	@qwen flexinfer_model qwen3-* chat
	@pinned flexinfer_key explicit-header explicit-body
	route @qwen {
		flexinfer_call prefix
		reverse_proxy {
			dynamic flexinfer
			lb_policy flexinfer
			transport flexinfer
		}
	}
	respond @pinned pinned
}
:8083 {
	reverse_proxy 10.0.0.5:8000 10.0.0.6:8000 {
		lb_policy flexinfer session-affinity
	}
}
:9001 {
	flexinfer_engine
}
`
	if out, err := harness.Command(t, caddyfile, []string{"EU_KEY=x"}, "validate", "--adapter", "caddyfile", "--config"); err != nil {
		t.Errorf("validate: %v: %s", err, lastLine(out.Stderr))
	}
}
