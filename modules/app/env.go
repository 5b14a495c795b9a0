package app

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
)

// A variable is an environment variable that FlexInfer's proxy reads.
type variable struct {
	// set makes value the default of an option. Its error says why it cannot
	// be; the option keeps its own default then. Nil if there is no option.
	set func(a *App, value string) error

	// refuse says what to write instead, of a variable that turns on what
	// the gateway has no option for. warn does, where going on without is
	// harmless.
	refuse, warn string

	// on reports whether value turns it on. Nil: a switch.
	on func(value string) bool
}

// variables are those of FlexInfer's proxy. The zero variable is one that
// asks for nothing: it belongs to another one, or to the shipped Caddyfile.
var variables = map[string]variable{
	"PROXY_ROUTING_ENABLED":                     {set: setRouting},
	"PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH":     {set: setKeyBound(func(k *Keys) *int { return &k.ExplicitKeyMaxLength })},
	"PROXY_ROUTING_SYSTEM_SEGMENT_MAX_LENGTH":   {set: setKeyBound(func(k *Keys) *int { return &k.SystemSegmentMaxLength })},
	"PROXY_ROUTING_DOCUMENT_SEGMENT_MAX_LENGTH": {set: setKeyBound(func(k *Keys) *int { return &k.DocumentSegmentMaxLength })},
	"PROXY_LEAST_LOADED_RESERVATION_TTL":        {set: setReservationTTL},
	"FLEXINFER_PROXY_UPSTREAM_MAX_ATTEMPTS":     {set: setAttempts},
	"PROXY_MAX_TOKENS_CLAMP_ENABLED": {set: setSwitch(func(a *App) **bool {
		a.MaxTokensClamp = orZero(a.MaxTokensClamp)
		return &a.MaxTokensClamp.Enabled
	})},
	"PROXY_MAX_TOKENS_CLAMP_PROMPT_RESERVE_TOKENS": {set: setPromptReserve},
	"PROXY_MAX_QUEUE_SIZE":                         {set: setQueueSize},
	"PROXY_QUEUE_TIMEOUT":                          {set: setQueueTime(func(q *Queue) *caddy.Duration { return &q.Timeout })},
	"PROXY_COLD_START_TIMEOUT":                     {set: setQueueTime(func(q *Queue) *caddy.Duration { return &q.ColdStartTimeout })},
	"FLEXINFER_PROXY_LABEL_GROUP_ROUTING":          {set: setLabelGroups},
	"PROXY_VALIDATE_REQUESTS":                      {set: setSwitch(func(a *App) **bool { return &a.ValidateRequests })},

	"PROXY_AUTH_ENABLED":                 {refuse: insteadOfAuth},
	"PROXY_RATE_LIMIT_ENABLED":           {refuse: insteadOfRateLimit},
	"PROXY_ADMISSION_ENABLED":            {refuse: insteadOfAdmission},
	"FLEXINFER_PYANNOTE_UPSTREAM":        {refuse: insteadOfSibling("/diarize", "FLEXINFER_PYANNOTE_UPSTREAM"), on: isSet},
	"FLEXINFER_KOKORO_UPSTREAM":          {refuse: insteadOfSibling("/v1/audio/speech", "FLEXINFER_KOKORO_UPSTREAM"), on: isSet},
	"FLEXINFER_CODEBASE_ANSWER_UPSTREAM": {refuse: insteadOfSibling("/v1/rag", "FLEXINFER_CODEBASE_ANSWER_UPSTREAM"), on: isSet},
	"FLEXINFER_OTEL_ENABLED":             {warn: `requests are traced by Caddy's directive "tracing"`},

	"PROXY_ADMISSION_DEFAULT_MAX_TOKENS":    {},
	"PROXY_ADMISSION_SAFETY_MARGIN_PERCENT": {},
	"PROXY_AUTH_TOKEN":                      {},
	"PROXY_BACKOFF_ENABLED":                 {}, // see setBackoff
	"PROXY_BACKOFF_INITIAL_WAIT":            {},
	"PROXY_BACKOFF_MAX_RETRIES":             {},
	"PROXY_BACKOFF_MAX_WAIT":                {},
	"PROXY_DIRECT_RUNTIME_ENABLED":          {},
	"PROXY_GRACEFUL_SHUTDOWN_TIMEOUT":       {},
	"PROXY_RATE_LIMIT_BURST":                {},
	"PROXY_RATE_LIMIT_GLOBAL":               {},
	"PROXY_RATE_LIMIT_GLOBAL_BURST":         {},
	"PROXY_RATE_LIMIT_PER_MODEL":            {},
	"PROXY_SHUTDOWN_DRAIN_DELAY":            {},
	"FLEXINFER_OTEL_SERVICE_NAMESPACE":      {},
	"FLEXINFER_WORKLOAD_CLASS":              {},
}

// What to write in a site instead of what FlexInfer's proxy does itself.
const (
	insteadOfAuth = `
	@denied {
		expression ` + "`" + `{env.PROXY_AUTH_TOKEN} == "" || {http.request.header.Authorization} != "Bearer " + {env.PROXY_AUTH_TOKEN}` + "`" + `
		not path /healthz /readyz /metrics
	}
	respond @denied 401`

	insteadOfRateLimit = `
	# needs: xcaddy build --with github.com/mholt/caddy-ratelimit
	rate_limit {
		zone flexinfer {
			key    static
			events 1000
			window 1s
		}
	}`

	insteadOfAdmission = `
	request_body {
		max_size 256KiB
	}`
)

// insteadOfSibling says how to pass a path on to another service.
func insteadOfSibling(path, name string) string {
	return fmt.Sprintf("\n\thandle %s {\n\t\treverse_proxy {$%s}\n\t}", path, name)
}

// applyEnvironment makes the values of FlexInfer's environment variables the
// defaults of the options that the configuration leaves out.
func (a *App) applyEnvironment(logger *zap.Logger) error {
	return a.applyVariables(os.Environ(), logger)
}

// applyVariables is applyEnvironment for an environment in the form of
// [os.Environ].
func (a *App) applyVariables(environ []string, logger *zap.Logger) error {
	values := make(map[string]string)
	var services []string // prefixes of variables that Kubernetes sets for its Services
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		value = strings.TrimSpace(value)
		if !strings.HasPrefix(name, "PROXY_") && !strings.HasPrefix(name, "FLEXINFER_") ||
			value == "" || slices.Contains(a.EnvIgnore, name) {
			continue
		}
		values[name] = value
		if service, ok := strings.CutSuffix(name, "_SERVICE_HOST"); ok {
			services = append(services, service+"_SERVICE_", service+"_PORT")
		}
	}
	var refused []error
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		v, ok := variables[name]
		if !ok {
			if !slices.ContainsFunc(services, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				unknown = append(unknown, name)
			}
			continue
		}
		if err := v.apply(a, name, values[name], logger); err != nil {
			refused = append(refused, err)
		}
	}
	if err := a.setBackoff(values); err != nil {
		logger.Warn("the environment's PROXY_BACKOFF_* cannot be used", zap.Error(err))
	}
	if a.routingOff {
		logger.Warn("PROXY_ROUTING_ENABLED is off: every model is routed by the strategy default, whatever is configured")
	}
	if len(unknown) > 0 {
		logger.Warn("the environment has variables of FlexInfer's proxy that nothing here reads; env_ignore silences this",
			zap.Strings("variables", unknown))
	}
	return errors.Join(refused...)
}

// apply does what the variable asks for, or returns an error if nothing here
// can.
func (v variable) apply(a *App, name, value string, logger *zap.Logger) error {
	on := v.on
	if on == nil {
		on = isOn
	}
	switch {
	case v.refuse != "" && on(value):
		return fmt.Errorf("%s in the environment asks for what the flexinfer app leaves to other directives; write in the site:%s\n"+
			"and in the flexinfer block: env_ignore %s", name, v.refuse, name)
	case v.warn != "" && on(value):
		logger.Warn("environment variable has no effect: "+v.warn, zap.String("variable", name))
	case v.set != nil:
		if err := v.set(a, value); err != nil {
			logger.Warn("environment variable has a value that cannot be used", zap.String("variable", name),
				zap.String("value", value), zap.Error(err))
		}
	}
	return nil
}

// isOn reports whether a switch is on. What is not plainly off is on, so that
// nobody who wrote "yes" goes without.
func isOn(value string) bool {
	switch strings.ToLower(value) {
	case "0", "f", "false", "n", "no", "off":
		return false
	}
	return true
}

func isSet(string) bool { return true }

// setRouting takes away all configured strategies if routing is turned off.
func setRouting(a *App, value string) error {
	enabled, err := strconv.ParseBool(value)
	if err != nil {
		return errors.New("write true or false; routing stays on")
	}
	if enabled {
		return nil
	}
	a.routingOff = true
	a.RoutingRaw = nil
	for _, m := range a.Models {
		if m != nil {
			m.RoutingRaw = nil
		}
	}
	return nil
}

// setKeyBound returns what sets one of the bounds of keys.
func setKeyBound(bound func(*Keys) *int) func(*App, string) error {
	return func(a *App, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n <= 0 {
			return errors.New("write a number above 0; the default stands")
		}
		if a.Keys == nil {
			a.Keys = new(Keys)
		}
		if p := bound(a.Keys); *p == 0 {
			*p = n
		}
		return nil
	}
}

func setReservationTTL(a *App, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return errors.New("write a time, such as 10s, or 0; the default stands")
	}
	if a.ReservationTTL == nil {
		a.ReservationTTL = (*caddy.Duration)(&d)
	}
	return nil
}

// setAttempts takes the number of attempts, of which the first is no retry.
// FlexInfer's proxy makes 1 to 3.
func setAttempts(a *App, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil {
		return errors.New("write a number from 1 to 3; the default stands")
	}
	attempts := min(max(n, 1), 3)
	if a.Retries = orZero(a.Retries); a.Retries.Max == nil {
		a.Retries.Max = new(attempts - 1)
	}
	if attempts != n {
		return fmt.Errorf("write a number from 1 to 3; %d stands", attempts)
	}
	return nil
}

// setSwitch returns what sets an option that is on or off.
func setSwitch(option func(*App) **bool) func(*App, string) error {
	return func(a *App, value string) error {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("write true or false; the default stands")
		}
		if p := option(a); *p == nil {
			*p = &on
		}
		return nil
	}
}

func setPromptReserve(a *App, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n <= 0 {
		return errors.New("write a number above 0; the default stands")
	}
	if c := orZero(a.MaxTokensClamp); c.PromptReserve == 0 && !c.PromptReserveAuto {
		c.PromptReserve = n
		a.MaxTokensClamp = c
	}
	return nil
}
