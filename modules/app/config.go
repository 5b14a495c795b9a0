package app

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/sources"
)

// App is what all parts of the FlexInfer gateway share: the models, how calls
// for them are routed, and the counts of calls in flight, which outlive a
// reload.
//
// Every option may be left out. Those that FlexInfer's own proxy takes from
// the environment (`PROXY_*` and `FLEXINFER_*`) have the variable's value as
// their default; what the configuration says wins. A variable that turns on
// what the gateway leaves to other parts of Caddy, such as
// `PROXY_AUTH_ENABLED`, fails the start with the directives to write instead,
// unless `env_ignore` names it.
type App struct {
	// The strategy of every model that names none. Default: `default`.
	RoutingRaw json.RawMessage `json:"routing,omitempty" caddy:"namespace=flexinfer.strategies inline_key=strategy"`

	// The models, in the order in which /v1/models lists them.
	Models []*Model `json:"models,omitempty"`

	// Bounds and further sources of routing keys.
	Keys *Keys `json:"keys,omitempty"`

	// The largest request body that is read, in bytes. A larger one is
	// refused with 413. Default: `33554432` (32 MiB).
	MaxBody int64 `json:"max_body,omitempty"`

	// When a call is tried again with another endpoint. What a model says
	// itself wins, option by option.
	Retries *Retries `json:"retries,omitempty"`

	// How long the phases of a call may take. What a model says itself
	// wins, option by option.
	Timeouts *Timeouts `json:"timeouts,omitempty"`

	// When an endpoint is passed over. What a model says itself wins,
	// option by option.
	Health *Health `json:"health,omitempty"`

	// How calls wait for a model.
	Queue *Queue `json:"queue,omitempty"`

	// Which of the models that claim a label gets a call for it: each in
	// turn (`round-robin`), the one with the fewest calls (`least-loaded`), or
	// the one that the call's prefix or session key belongs to (`prefix`,
	// `session`; in turn without such a key). FlexInfer's own names are
	// known as well: `prefix-or-rr`, which does without the session key,
	// `session-or-rr` and `prefix-session-or-rr`. Default: `round-robin`.
	LabelGroups string `json:"label_groups,omitempty"`

	// How long a pick counts as load before its attempt dials; 0 counts
	// only from the dial. Default: `10s`.
	ReservationTTL *caddy.Duration `json:"reservation_ttl,omitempty"`

	// Bounds of the in-flight ledger.
	Ledger *Ledger `json:"ledger,omitempty"`

	// How limits of tokens are cut down to the context window.
	MaxTokensClamp *MaxTokensClamp `json:"max_tokens_clamp,omitempty"`

	// Which name answers have as their `model`: `asked`, the one that the
	// client asked for, or `upstream`, what the engine wrote.
	// Default: `asked`.
	ResponseModel string `json:"response_model,omitempty"`

	// Whose streams are counted by the usage that engines report: `client`,
	// of clients that ask for the report, or `always`: engines are asked
	// for all, and clients that did not ask do not see the report.
	// Default: `client`.
	UsageMetrics string `json:"usage_metrics,omitempty"`

	// Whether requests for chats, completions and embeddings that engines
	// would refuse for their shape are refused here. Default: `false`.
	ValidateRequests *bool `json:"validate_requests,omitempty"`

	// Who may ask for the X-Flexinfer-Route header with X-Flexinfer-Debug: 1:
	// `off`, `private` (clients with a private or loopback address) or
	// `all`. Default: `private`.
	DebugHeader string `json:"debug_header,omitempty"`

	// The Kubernetes cluster in which FlexInfer's resources and the
	// endpoints of models are looked for. Default: none is asked for
	// resources, and endpoints are looked for in the one that the gateway
	// runs in.
	Kubernetes *sources.Cluster `json:"kubernetes,omitempty"`

	// Environment variables of FlexInfer's proxy that are passed over, such
	// as those which ask for what this gateway does by other means.
	EnvIgnore []string `json:"env_ignore,omitempty"`

	routingOff bool // by PROXY_ROUTING_ENABLED

	instance
}

// Model declares one model: the names that ask for it, where its replicas are
// and how calls are spread over them.
type Model struct {
	// The name that clients ask for. Required; unique among all names.
	Name string `json:"name"`

	// Other names for the same model. Each is unique among all names.
	Aliases []string `json:"aliases,omitempty"`

	// LoRA adapters that the model's engines hold. A call for one goes to
	// this model's endpoints with the adapter's name left in the body, and
	// the name is part of the routing key. Each is unique among all names.
	Adapters []string `json:"adapters,omitempty"`

	// The strategy that picks an endpoint. Default: that of the app.
	RoutingRaw json.RawMessage `json:"routing,omitempty" caddy:"namespace=flexinfer.strategies inline_key=strategy"`

	// Where the model's endpoints come from; their union counts. Needed
	// unless there is a service.
	SourcesRaw []json.RawMessage `json:"sources,omitempty" caddy:"namespace=flexinfer.sources inline_key=source"`

	// Where to go when no endpoint can be picked: host:port or a URL,
	// usually a Kubernetes Service's name.
	Service string `json:"service,omitempty"`

	// Labels that the model claims a share of: a call for one goes to one of
	// the models that claim it, as label_groups says. A label comes before a
	// model of that name.
	ServiceLabels []string `json:"service_labels,omitempty"`

	// The model's place among those that claim its labels: only the ones
	// with the highest priority of those that serve get calls.
	// Default: `0`.
	Priority int `json:"priority,omitempty"`

	// How to wake the model when it sleeps. Default: it does not.
	ActivateRaw json.RawMessage `json:"activate,omitempty" caddy:"namespace=flexinfer.activators inline_key=activator"`

	// How long the model may take to wake. Default: as the app's queue says.
	ColdStartTimeout caddy.Duration `json:"cold_start_timeout,omitempty"`

	// How many tokens a prompt and its answer may have together. Default:
	// unknown, and limits of tokens are left as they are.
	ContextWindow int `json:"context_window,omitempty"`

	// Whether to ask the engines for the context window, every minute: it
	// is the `max_model_len` that they list on /v1/models.
	ContextWindowAuto bool `json:"context_window_auto,omitempty"`

	// When a call is tried again. Default: as the app says.
	Retries *Retries `json:"retries,omitempty"`

	// How long a stream may take. Default: as the app says.
	Timeouts *Timeouts `json:"timeouts,omitempty"`

	// When an endpoint is passed over for this model's calls. Default: as
	// the app says.
	Health *Health `json:"health,omitempty"`
}

// Keys bounds and extends the sources of routing keys.
type Keys struct {
	// The longest explicit cache key that is accepted, in characters.
	// Default: `128`.
	ExplicitKeyMaxLength int `json:"explicit_key_max_length,omitempty"`

	// How much of each system message takes part in the canonical key, in
	// bytes after normalisation. Default: `512`.
	SystemSegmentMaxLength int `json:"system_segment_max_length,omitempty"`

	// How much of the document context takes part in the canonical key, in
	// bytes after normalisation. Default: `256`.
	DocumentSegmentMaxLength int `json:"document_segment_max_length,omitempty"`

	// Request headers that hold a session key, after X-Session-ID and
	// X-Conversation-ID. Given, they replace the shipped list, which has
	// the session headers of the common coding agents.
	SessionHeaders []string `json:"session_headers,omitempty"`

	// Body fields that hold a session key, as dotted paths, after
	// session_id. Given, they replace the shipped list: metadata.user_id.
	SessionFields []string `json:"session_fields,omitempty"`
}

// Ledger bounds how long a leaked in-flight count can live.
type Ledger struct {
	// The width of a time bucket. Default: `5s`.
	Bucket caddy.Duration `json:"bucket,omitempty"`

	// The age at which a bucket is dropped whole. At least four times the
	// width of a bucket. A call that really runs longer stays counted.
	// Default: `600s`.
	TTL caddy.Duration `json:"ttl,omitempty"`
}

// debugHeaders are the values of App.DebugHeader.
var debugHeaders = []string{"off", "private", "all"}

// CheckDebugHeader returns an error if DebugHeader cannot be value.
func CheckDebugHeader(value string) error {
	return checkChoice("debug_header", value, debugHeaders)
}

// RoutingOff reports whether PROXY_ROUTING_ENABLED=false has every model
// routed by the strategy `default`, whatever else is configured.
func (a *App) RoutingOff() bool { return a.routingOff }

// validate returns an error if the configuration is wrong. It looks at the
// raw modules, and must be called before they are loaded.
func (a *App) validate() error {
	var names Names
	for i, m := range a.Models {
		if m == nil {
			return fmt.Errorf("model %d is null", i)
		}
		if err := m.validate(&names, a.Health); err != nil {
			return err
		}
	}
	err := noneNegative(number{"max_body", a.MaxBody}, number{"reservation_ttl", int64(deref(a.ReservationTTL))})
	if err != nil {
		return err
	}
	if a.Keys != nil {
		if err := a.Keys.validate(); err != nil {
			return fmt.Errorf("keys: %w", err)
		}
	}
	if a.Ledger != nil {
		if err := a.Ledger.Check(); err != nil {
			return fmt.Errorf("ledger: %w", err)
		}
	}
	if err := validatePolicy(a.Retries, a.Timeouts, a.Health, nil, false); err != nil {
		return err
	}
	if err := a.Queue.validate(); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	if err := a.MaxTokensClamp.validate(); err != nil {
		return fmt.Errorf("max_tokens_clamp: %w", err)
	}
	for _, choice := range []struct {
		value string
		check func(string) error
	}{
		{a.ResponseModel, CheckResponseModel},
		{a.UsageMetrics, CheckUsageMetrics},
		{a.DebugHeader, CheckDebugHeader},
		{a.LabelGroups, CheckLabelGroups},
	} {
		if choice.value == "" {
			continue
		}
		if err := choice.check(choice.value); err != nil {
			return err
		}
	}
	return nil
}

// validatePolicy validates the options that the app and models have alike. base
// is the app's health, if they are a model's.
func validatePolicy(r *Retries, t *Timeouts, h, base *Health, ofModel bool) error {
	if err := r.validate(); err != nil {
		return fmt.Errorf("retries: %w", err)
	}
	if err := t.validate(ofModel); err != nil {
		return fmt.Errorf("timeouts: %w", err)
	}
	if err := h.validate(base); err != nil {
		return fmt.Errorf("health: %w", err)
	}
	return nil
}

// validate is given the app's health, which holds where m's says nothing.
func (m *Model) validate(names *Names, health *Health) error {
	if err := names.Add("model", m.Name, m.Name); err != nil {
		return err
	}
	for _, alias := range m.Aliases {
		if err := names.Add("alias", alias, m.Name); err != nil {
			return err
		}
	}
	for _, adapter := range m.Adapters {
		if err := names.Add("adapter", adapter, m.Name); err != nil {
			return err
		}
	}
	for _, label := range m.ServiceLabels {
		if err := sources.CheckName(label); err != nil {
			return fmt.Errorf("service_label of model %q: %w", m.Name, err)
		}
	}
	if m.ColdStartTimeout < 0 {
		return fmt.Errorf("model %q: cold_start_timeout is negative; leave it out for its default", m.Name)
	}
	if len(m.SourcesRaw) == 0 && m.Service == "" {
		return fmt.Errorf("model %q has neither sources nor a service; without either there is nowhere to send its calls", m.Name)
	}
	if m.Service != "" {
		if _, err := sources.ParseAddress(m.Service); err != nil {
			return fmt.Errorf("model %q: service: %w", m.Name, err)
		}
	}
	switch {
	case m.ContextWindow < 0:
		return fmt.Errorf("model %q: context_window is negative; leave it out if it is unknown", m.Name)
	case m.ContextWindow > 0 && m.ContextWindowAuto:
		return fmt.Errorf("model %q: context_window is a number or auto, not both; leave one out", m.Name)
	}
	if err := validatePolicy(m.Retries, m.Timeouts, m.Health, health, true); err != nil {
		return fmt.Errorf("model %q: %w", m.Name, err)
	}
	return nil
}

func (k *Keys) validate() error {
	err := noneNegative(
		number{"explicit_key_max_length", int64(k.ExplicitKeyMaxLength)},
		number{"system_segment_max_length", int64(k.SystemSegmentMaxLength)},
		number{"document_segment_max_length", int64(k.DocumentSegmentMaxLength)})
	if err != nil {
		return err
	}
	for _, field := range k.SessionHeaders {
		if err := CheckSessionHeader(field); err != nil {
			return err
		}
	}
	for _, path := range k.SessionFields {
		if err := CheckSessionField(path); err != nil {
			return err
		}
	}
	return nil
}

// CheckSessionHeader returns an error if field cannot be one of
// Keys.SessionHeaders.
func CheckSessionHeader(field string) error {
	if !httpguts.ValidHeaderFieldName(field) {
		return fmt.Errorf("session header %q is not the name of a header field", field)
	}
	return nil
}

// CheckSessionField returns an error if path cannot be one of
// Keys.SessionFields.
func CheckSessionField(path string) error {
	if slices.Contains(strings.Split(path, "."), "") {
		return fmt.Errorf("session field %q is not a dotted path, such as metadata.user_id", path)
	}
	return nil
}

// Check returns an error if the times do not fit together.
func (l *Ledger) Check() error {
	bucket := cmp.Or(time.Duration(l.Bucket), ledger.DefaultBucket)
	ttl := cmp.Or(time.Duration(l.TTL), ledger.DefaultTTL)
	switch {
	case bucket < 0, ttl < 0:
		return errors.New("bucket and ttl are times above 0")
	case ttl/4 < bucket:
		return fmt.Errorf("ttl %s is less than four times the bucket's %s; raise ttl to %s or more", ttl, bucket, 4*bucket)
	}
	return nil
}

// Names are the names that ask for models: their own, their aliases and their
// adapters. None may be given twice.
type Names struct{ taken map[string]string }

// Add takes a name for a model. Its kind is model, alias or adapter. The error
// says why the name cannot be, and who has it already.
func (n *Names) Add(kind, name, model string) error {
	of := ""
	if kind != "model" {
		of = fmt.Sprintf(" of model %q", model)
	}
	if err := sources.CheckName(name); err != nil {
		return fmt.Errorf("%s%s: %w", kind, of, err)
	}
	who := fmt.Sprintf("%s %q%s", kind, name, of)
	switch other, ok := n.taken[name]; {
	case ok && other == who:
		return fmt.Errorf("%s is there twice", who)
	case ok:
		return fmt.Errorf("%s: the name is taken by %s; each name, alias and adapter is there once", who, other)
	}
	if n.taken == nil {
		n.taken = make(map[string]string)
	}
	n.taken[name] = who
	return nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
