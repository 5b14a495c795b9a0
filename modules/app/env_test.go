package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddyserver/caddy/v2"
)

// applied applies an environment to a configuration and returns the latter's
// JSON and what was logged.
func applied(t *testing.T, a *App, environ ...string) (string, []observer.LoggedEntry, error) {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	err := a.applyVariables(environ, zap.New(core))
	b, jsonErr := json.Marshal(a)
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	return string(b), logs.All(), err
}

func TestEnvironmentGivesDefaults(t *testing.T) {
	for _, tt := range []struct {
		environ string
		want    string
		warns   bool
	}{
		{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=64", `{"keys":{"explicit_key_max_length":64}}`, false},
		{"PROXY_ROUTING_SYSTEM_SEGMENT_MAX_LENGTH=1024", `{"keys":{"system_segment_max_length":1024}}`, false},
		{"PROXY_ROUTING_DOCUMENT_SEGMENT_MAX_LENGTH= 2048 ", `{"keys":{"document_segment_max_length":2048}}`, false},
		{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=0", `{}`, true},
		{"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=-5", `{}`, true},
		{"PROXY_ROUTING_SYSTEM_SEGMENT_MAX_LENGTH=long", `{}`, true},
		{"PROXY_ROUTING_DOCUMENT_SEGMENT_MAX_LENGTH=1e3", `{}`, true},
		{"PROXY_ROUTING_DOCUMENT_SEGMENT_MAX_LENGTH=99999999999999999999", `{}`, true},
		{"PROXY_ROUTING_DOCUMENT_SEGMENT_MAX_LENGTH=", `{}`, false},

		{"PROXY_LEAST_LOADED_RESERVATION_TTL=3s", `{"reservation_ttl":3000000000}`, false},
		{"PROXY_LEAST_LOADED_RESERVATION_TTL=0", `{"reservation_ttl":0}`, false},
		{"PROXY_LEAST_LOADED_RESERVATION_TTL=-1s", `{}`, true},
		{"PROXY_LEAST_LOADED_RESERVATION_TTL=abc", `{}`, true},
		{"PROXY_LEAST_LOADED_RESERVATION_TTL=10", `{}`, true},

		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=1", `{"retries":{"max":0}}`, false},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=2", `{"retries":{"max":1}}`, false},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=3", `{"retries":{"max":2}}`, false},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=0", `{"retries":{"max":0}}`, true},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=9", `{"retries":{"max":2}}`, true},
		{"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=two", `{}`, true},

		{"PROXY_MAX_TOKENS_CLAMP_ENABLED=false", `{"max_tokens_clamp":{"enabled":false}}`, false},
		{"PROXY_MAX_TOKENS_CLAMP_ENABLED=true", `{"max_tokens_clamp":{"enabled":true}}`, false},
		{"PROXY_MAX_TOKENS_CLAMP_ENABLED=maybe", `{}`, true},
		{"PROXY_MAX_TOKENS_CLAMP_PROMPT_RESERVE_TOKENS=256", `{"max_tokens_clamp":{"prompt_reserve":256}}`, false},
		{"PROXY_MAX_TOKENS_CLAMP_PROMPT_RESERVE_TOKENS=0", `{}`, true},
		{"PROXY_MAX_TOKENS_CLAMP_PROMPT_RESERVE_TOKENS=auto", `{}`, true},
		{"PROXY_VALIDATE_REQUESTS=true", `{"validate_requests":true}`, false},
		{"PROXY_VALIDATE_REQUESTS=0", `{"validate_requests":false}`, false},
		{"PROXY_VALIDATE_REQUESTS=strict", `{}`, true},

		{"PROXY_ROUTING_ENABLED=true", `{}`, false},
		{"PROXY_ROUTING_ENABLED=maybe", `{}`, true},

		{"PROXY_AUTH_ENABLED=false", `{}`, false},
		{"PROXY_AUTH_ENABLED=off", `{}`, false},
		{"PROXY_AUTH_ENABLED=", `{}`, false},
		{"PROXY_AUTH_TOKEN=secret", `{}`, false},
		{"PROXY_RATE_LIMIT_ENABLED=0", `{}`, false},
		{"PROXY_ADMISSION_ENABLED=FALSE", `{}`, false},
		{"FLEXINFER_KOKORO_UPSTREAM=", `{}`, false},
		{"FLEXINFER_OTEL_ENABLED=false", `{}`, false},
		{"FLEXINFER_OTEL_ENABLED=true", `{}`, true},

		{"PROXY_MAX_QUEUE_SIZE=7", `{"queue":{"max_size":7}}`, false},
		{"PROXY_MAX_QUEUE_SIZE=0", `{}`, true},
		{"PROXY_QUEUE_TIMEOUT=2s", `{"queue":{"timeout":2000000000}}`, false},
		{"PROXY_QUEUE_TIMEOUT=0s", `{}`, true},
		{"PROXY_COLD_START_TIMEOUT=1m", `{"queue":{"cold_start_timeout":60000000000}}`, false},
		{"PROXY_COLD_START_TIMEOUT=60", `{}`, true},
		{"PROXY_BACKOFF_ENABLED=true", `{"queue":{"backoff":{"retries":3}}}`, false},
		{"PROXY_BACKOFF_ENABLED=false", `{}`, false},
		{"PROXY_BACKOFF_MAX_RETRIES=9", `{}`, false}, // it is not turned on
		{"FLEXINFER_PROXY_LABEL_GROUP_ROUTING=least-loaded", `{"label_groups":"least-loaded"}`, false},
		{"FLEXINFER_PROXY_LABEL_GROUP_ROUTING=prefix-session-or-rr", `{"label_groups":"prefix-session-or-rr"}`, false},
		{"FLEXINFER_PROXY_LABEL_GROUP_ROUTING=", `{}`, false},
		{"FLEXINFER_PROXY_LABEL_GROUP_ROUTING=random", `{}`, true},

		{"PROXY_ROUTING_ENABELD=false", `{}`, true}, // unknown
		{"FLEXINFER_NEW=1", `{}`, true},
		{"MY_PROXY_X=1", `{}`, false},
		{"HTTP_PROXY=http://a", `{}`, false},
		{"proxy_auth_enabled=true", `{}`, false},
	} {
		t.Run(tt.environ, func(t *testing.T) {
			got, logs, err := applied(t, new(App), tt.environ)
			if err != nil || got != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
			if warned := len(logs) > 0; warned != tt.warns {
				t.Errorf("logged %v", logs)
			}
			for _, entry := range logs {
				if name, _, _ := strings.Cut(tt.environ, "="); entry.Level != zap.WarnLevel || !strings.Contains(fmt.Sprint(entry), name) {
					t.Errorf("logged %v", entry)
				}
			}
		})
	}
}

func TestConfigurationWinsOverEnvironment(t *testing.T) {
	got, logs, err := applied(t, &App{
		Keys:             &Keys{ExplicitKeyMaxLength: 7},
		Retries:          &Retries{Max: new(0)},
		ReservationTTL:   new(caddy.Duration(time.Second)),
		MaxTokensClamp:   &MaxTokensClamp{Enabled: new(true), PromptReserveAuto: true},
		ValidateRequests: new(false),
	},
		"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH=64", "PROXY_ROUTING_SYSTEM_SEGMENT_MAX_LENGTH=65",
		"PROXY_LEAST_LOADED_RESERVATION_TTL=3s", "FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS=3",
		"PROXY_MAX_TOKENS_CLAMP_ENABLED=false", "PROXY_MAX_TOKENS_CLAMP_PROMPT_RESERVE_TOKENS=7", "PROXY_VALIDATE_REQUESTS=true")
	const want = `{"keys":{"explicit_key_max_length":7,"system_segment_max_length":65},"retries":{"max":0},"reservation_ttl":1000000000,` +
		`"max_tokens_clamp":{"enabled":true,"prompt_reserve_auto":true},"validate_requests":false}`
	if err != nil || got != want || len(logs) > 0 {
		t.Errorf("got %s, %v, want %s; logged %v", got, err, want, logs)
	}
}

func TestRoutingOff(t *testing.T) {
	configure := func() *App {
		return &App{
			RoutingRaw: json.RawMessage(`{"strategy":"prefix"}`),
			Models:     []*Model{{Name: "m", RoutingRaw: json.RawMessage(`{"strategy":"prefix"}`)}, nil},
		}
	}
	a := configure()
	got, logs, err := applied(t, a, "PROXY_ROUTING_ENABLED=false")
	if err != nil || got != `{"models":[{"name":"m"},null]}` || !a.RoutingOff() {
		t.Errorf("got %s, %v", got, err)
	}
	if len(logs) != 1 {
		t.Errorf("logged %v", logs)
	}
	a = configure()
	if got, _, _ = applied(t, a, "PROXY_ROUTING_ENABLED=true"); !strings.Contains(got, "prefix") || a.RoutingOff() {
		t.Errorf("turned on: got %s", got)
	}
}

func TestEnvironmentThatNeedsOtherDirectives(t *testing.T) {
	for _, tt := range []struct{ environ, remedy string }{
		{"PROXY_AUTH_ENABLED=true", `!= "Bearer " + {env.PROXY_AUTH_TOKEN}`},
		{"PROXY_AUTH_ENABLED=yes", "respond @denied 401"},
		{"PROXY_RATE_LIMIT_ENABLED=1", "rate_limit {"},
		{"PROXY_ADMISSION_ENABLED=TRUE", "request_body {"},
		{"FLEXINFER_PYANNOTE_UPSTREAM=http://me:s3cret@pyannote:8890", "handle /diarize {\n\t\treverse_proxy {$FLEXINFER_PYANNOTE_UPSTREAM}"},
		{"FLEXINFER_KOKORO_UPSTREAM=http://kokoro", "handle /v1/audio/speech {"},
		{"FLEXINFER_CODEBASE_ANSWER_UPSTREAM=http://rag", "handle /v1/rag {"},
	} {
		t.Run(tt.environ, func(t *testing.T) {
			name, _, _ := strings.Cut(tt.environ, "=")
			_, _, err := applied(t, new(App), tt.environ)
			if err == nil || !strings.Contains(err.Error(), tt.remedy) || !strings.Contains(err.Error(), "env_ignore "+name) {
				t.Errorf("got %v, want it to contain %q", err, tt.remedy)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error tells a secret: %v", err)
			}
			if _, logs, err := applied(t, &App{EnvIgnore: []string{"X", name}}, tt.environ); err != nil || len(logs) > 0 {
				t.Errorf("ignored: got %v, logged %v", err, logs)
			}
		})
	}

	_, _, err := applied(t, new(App), "PROXY_RATE_LIMIT_ENABLED=true", "PROXY_AUTH_ENABLED=true")
	if err == nil || !strings.Contains(err.Error(), "env_ignore PROXY_AUTH_ENABLED") || !strings.Contains(err.Error(), "env_ignore PROXY_RATE_LIMIT_ENABLED") {
		t.Errorf("two at once: got %v", err)
	}
}

func TestUnknownVariablesAreToldOnce(t *testing.T) {
	_, logs, err := applied(t, &App{EnvIgnore: []string{"PROXY_C"}}, "PROXY_B=1", "FLEXINFER_A=1", "PROXY_C=1")
	if err != nil || len(logs) != 1 || fmt.Sprint(logs[0].ContextMap()["variables"]) != "[FLEXINFER_A PROXY_B]" {
		t.Errorf("got %v, logged %v", err, logs)
	}
}

// TestKubernetesServiceVariables: in a cluster with FlexInfer's own Services,
// each pod has these in its environment.
func TestKubernetesServiceVariables(t *testing.T) {
	_, logs, err := applied(t, new(App),
		"FLEXINFER_PROXY_SERVICE_HOST=10.96.0.7", "FLEXINFER_PROXY_SERVICE_PORT=80", "FLEXINFER_PROXY_SERVICE_PORT_HTTP=80",
		"FLEXINFER_PROXY_PORT=tcp://10.96.0.7:80", "FLEXINFER_PROXY_PORT_80_TCP=tcp://10.96.0.7:80",
		"FLEXINFER_PROXY_PORT_80_TCP_PROTO=tcp", "FLEXINFER_PROXY_PORT_80_TCP_PORT=80", "FLEXINFER_PROXY_PORT_80_TCP_ADDR=10.96.0.7")
	if err != nil || len(logs) > 0 {
		t.Errorf("got %v, logged %v", err, logs)
	}
	if _, logs, _ = applied(t, new(App), "FLEXINFER_PROXY_PORT=8080"); len(logs) != 1 {
		t.Errorf("one that belongs to no Service: logged %v", logs)
	}
}

func TestEnvironmentBackoff(t *testing.T) {
	const on = "PROXY_BACKOFF_ENABLED=1"
	for _, tt := range []struct {
		environ []string
		want    string
		warns   bool
	}{
		{[]string{on, "PROXY_BACKOFF_MAX_RETRIES=5", "PROXY_BACKOFF_INITIAL_WAIT=1s", "PROXY_BACKOFF_MAX_WAIT=2s"},
			`{"queue":{"backoff":{"retries":5,"initial":1000000000,"max":2000000000}}}`, false},
		{[]string{on, "PROXY_BACKOFF_MAX_RETRIES=0"}, `{}`, true},
		{[]string{on, "PROXY_BACKOFF_MAX_RETRIES=many"}, `{}`, true},
		{[]string{on, "PROXY_BACKOFF_INITIAL_WAIT=40s"}, `{}`, true}, // above the longest
		{[]string{on, "PROXY_BACKOFF_MAX_WAIT=-1s"}, `{}`, true},
	} {
		got, logs, err := applied(t, new(App), tt.environ...)
		if err != nil || got != tt.want || len(logs) > 0 != tt.warns {
			t.Errorf("%v: got %s, %v, want %s; logged %v", tt.environ, got, err, tt.want, logs)
		}
	}
	a := &App{Queue: &Queue{Backoff: &Backoff{Retries: 1}}}
	if got, _, _ := applied(t, a, on); got != `{"queue":{"backoff":{"retries":1}}}` {
		t.Errorf("the environment wins over the configuration: %s", got)
	}
}
