package app

import (
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/queue"
)

func statusSet(list ...int) (set catalog.Statuses) {
	for _, status := range list {
		set.Add(status)
	}
	return set
}

func all5xx() (set catalog.Statuses) {
	for status := http.StatusInternalServerError; status < 600; status++ {
		set.Add(status)
	}
	return set
}

// standard is the policy where nothing is configured.
func standard() *catalog.Policy {
	return &catalog.Policy{
		Retries: 2, RetryOn: statusSet(429, 503), RetryShare: .2, RetryFloor: 10,
		FirstByte: 10 * time.Minute, Gap: 5 * time.Minute,
		Health: health.Config{
			EjectAfter: 3, EjectFor: 10 * time.Second, EjectForMax: 5 * time.Minute, MaxEjected: .5,
			Probe: health.Probe{Interval: 10 * time.Second, Timeout: 2 * time.Second, Passes: 2, Fails: 3},
		},
		Unhealthy: statusSet(500, 502, 504),
		QueueMax:  100, QueueTimeout: time.Minute, ColdStart: time.Minute,
	}
}

func TestPolicy(t *testing.T) {
	const general = `"retries": {"max": 1, "on": ["5xx", "reset"], "budget": {"percent": 5, "floor": 1}},
		"timeouts": {"first_byte": "1m", "gap": 0, "dial": "1s"},
		"health": {"eject_after": 1, "eject_for": "1s", "eject_for_max": "2s", "max_ejected": 100, "unhealthy_status": ["500"],
			"uri": "/health", "interval": "3s", "timeout": "4s", "passes": 5, "fails": 6},
		"queue": {"max_size": 5, "timeout": "1s", "cold_start_timeout": "2s", "backoff": {"retries": 3, "max": "7s"}}`
	configured := &catalog.Policy{
		Retries: 1, RetryOn: all5xx(), RetryReset: true, RetryShare: .05, RetryFloor: 1,
		FirstByte: time.Minute,
		Health: health.Config{
			EjectAfter: 1, EjectFor: time.Second, EjectForMax: 2 * time.Second, MaxEjected: 1,
			Probe: health.Probe{Path: "/health", Interval: 3 * time.Second, Timeout: 4 * time.Second, Passes: 5, Fails: 6},
		},
		Unhealthy: statusSet(500),
		QueueMax:  5, QueueTimeout: time.Second, ColdStart: 2 * time.Second,
		Backoff: queue.Backoff{Retries: 3, Initial: 5 * time.Second, Max: 7 * time.Second},
	}
	for _, tt := range []struct {
		name, general, model string
		want                 *catalog.Policy
		change               func(*catalog.Policy)
	}{
		{name: "defaults", want: standard()},
		{name: "general", general: general, want: configured},
		{
			name: "the model's over the defaults", want: standard(),
			model: `"context_window": 4096, "retries": {"on": ["429"]}, "timeouts": {"gap": "1s"}, "health": {"max_ejected": 0, "uri": "/"}`,
			change: func(p *catalog.Policy) {
				p.ContextWindow, p.RetryOn, p.Gap = 4096, statusSet(429), time.Second
				p.Health.MaxEjected, p.Health.Probe.Path = -1, "/" // none
			},
		},
		{
			name: "the model's over the general", general: general, want: configured,
			model: `"retries": {"max": 0, "budget": {"floor": 0}}, "timeouts": {"first_byte": 0}, "health": {"unhealthy_status": ["404"], "fails": 1}, "cold_start_timeout": "9s"`,
			change: func(p *catalog.Policy) {
				p.Retries, p.RetryFloor, p.FirstByte = 0, 0, 0
				p.Unhealthy, p.Health.Probe.Fails, p.ColdStart = statusSet(404), 1, 9*time.Second
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := decode(t, "{"+tt.general+"}")
			m := &decode(t, `{"models": [{`+tt.model+`}]}`).Models[0]
			want := *tt.want
			if tt.change != nil {
				tt.change(&want)
			}
			if got := a.policyOf(*m); !reflect.DeepEqual(got, &want) {
				t.Errorf("got  %+v\nwant %+v", got, &want)
			}
			if got := a.policyOf(nil); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("of no model: got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestMaxRetries(t *testing.T) {
	for _, tt := range []struct {
		config string
		want   int
	}{
		{`{}`, 2},
		{`{"retries": {"max": 0}}`, 0},
		{`{"retries": {"max": 0}, "models": [{"retries": {"max": 4}}, {}]}`, 4},
		{`{"models": [{"retries": {"max": 1}}]}`, 2}, // for models that a source lists
	} {
		if got := decode(t, tt.config).MaxRetries(); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.config, got, tt.want)
		}
	}
}

func TestTimeouts(t *testing.T) {
	for _, tt := range []struct {
		config          string
		dial, keepAlive time.Duration
	}{
		{`{}`, 3 * time.Second, 0},
		{`{"timeouts": {"gap": "1s"}}`, 3 * time.Second, 0},
		{`{"timeouts": {"dial": "1s", "keepalive": "1m"}}`, time.Second, time.Minute},
	} {
		a := decode(t, tt.config)
		if a.DialTimeout() != tt.dial || a.KeepAlive() != tt.keepAlive {
			t.Errorf("%s: got %s, %s", tt.config, a.DialTimeout(), a.KeepAlive())
		}
	}
}

func TestCallSettings(t *testing.T) {
	for _, tt := range []struct {
		config                        string
		clamp                         bool
		reserve                       int
		mapModel, askUsage, validates bool
	}{
		{`{}`, true, 512, true, false, false},
		{`{"max_tokens_clamp": {"enabled": false}, "response_model": "upstream"}`, false, 512, false, false, false},
		{`{"max_tokens_clamp": {"prompt_reserve": 1}, "response_model": "asked", "usage_metrics": "client"}`, true, 1, true, false, false},
		{`{"max_tokens_clamp": {"enabled": true, "prompt_reserve_auto": true}, "usage_metrics": "always", "validate_requests": true}`, true, 0, true, true, true},
	} {
		s := decode(t, tt.config).callSettings()
		if s.MaxBody != 32<<20 || s.Clamp != tt.clamp || s.PromptReserve != tt.reserve ||
			s.MapModel != tt.mapModel || s.AskUsage != tt.askUsage || s.Validate != tt.validates {
			t.Errorf("%s: got %+v", tt.config, s)
		}
	}
}
