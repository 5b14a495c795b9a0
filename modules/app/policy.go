package app

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
)

// Retries says when a call is tried again with another endpoint.
//
// What cannot have begun is: a failure to connect, a kept connection that the
// endpoint had closed already, an answer whose status is named here. When the
// tries end, the client gets the last endpoint's own answer.
type Retries struct {
	// How many further attempts a call may have. 0 turns retries off.
	// Default: `2`.
	Max *int `json:"max,omitempty"`

	// The statuses after which another endpoint is tried: numbers from 400
	// to 599, or `5xx` for all of that class. `reset` allows it too after a
	// connection that was lost when the endpoint may have begun to work on
	// the call, which may then run twice. Default: `429`, `503`.
	On []string `json:"on,omitempty"`

	// How many retries the calls for one model may have together.
	Budget *RetryBudget `json:"budget,omitempty"`
}

// RetryBudget bounds the retries of a model's calls, so that an outage is not
// multiplied by them.
type RetryBudget struct {
	// The most retries in proportion to attempts, in percent, 0 to 100.
	// Default: `20`.
	Percent *int `json:"percent,omitempty"`

	// How many retries there may be in any 10 seconds, whatever the
	// proportion. Default: `10`.
	Floor *int `json:"floor,omitempty"`
}

// Timeouts bound the phases of a call. There is no bound on the whole.
type Timeouts struct {
	// How long connecting to an endpoint may take. Only for all models
	// together. Default: `3s`.
	Dial caddy.Duration `json:"dial,omitempty"`

	// How long a stream may take to the first byte of its body that is no
	// SSE comment. 0 is for ever. Default: `10m`.
	FirstByte *caddy.Duration `json:"first_byte,omitempty"`

	// How long a stream may be silent between two bytes. 0 is for ever.
	// Default: `5m`.
	Gap *caddy.Duration `json:"gap,omitempty"`

	// How long an idle connection to an endpoint is kept; less if the
	// endpoint's Keep-Alive header says so. Only for all models together.
	// Default: `4s` for http, `75s` for https and h2c.
	KeepAlive caddy.Duration `json:"keepalive,omitempty"`
}

// Health says when an endpoint is passed over for a while, and whether it is
// probed.
//
// Failures in a row eject an endpoint, a success brings it back. Errors of the
// client's making and clients that leave count neither way; 429 and 503 only
// lower the preference for a moment, unless `unhealthy_status` names them. If
// all endpoints are ejected all are tried.
type Health struct {
	// How many failures in a row eject an endpoint. Default: `3`.
	EjectAfter int `json:"eject_after,omitempty"`

	// For how long the first time; each further time doubles it, with
	// jitter. Default: `10s`.
	EjectFor caddy.Duration `json:"eject_for,omitempty"`

	// The longest that it becomes. At least `eject_for`. Default: `5m`.
	EjectForMax caddy.Duration `json:"eject_for_max,omitempty"`

	// How many of a model's endpoints may be ejected at once, in percent,
	// 0 to 100. Those that cannot be reached, or fail their probes, do not
	// count. Default: `50`.
	MaxEjected *int `json:"max_ejected,omitempty"`

	// The statuses that are failures: numbers from 400 to 599, or `5xx` for
	// all of that class. Default: `500`, `502`, `504`.
	UnhealthyStatus []string `json:"unhealthy_status,omitempty"`

	// The path, and query if need be, of the probe, below the endpoint's
	// base path. Default: none, which means no probes; so does `off`, for a
	// model that is not to have those of all models.
	URI string `json:"uri,omitempty"`

	// The time between two probes of an endpoint. Default: `10s`.
	Interval caddy.Duration `json:"interval,omitempty"`

	// How long a probe may take. Default: `2s`.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How many probes in a row must succeed to bring an endpoint back.
	// Default: `2`.
	Passes int `json:"passes,omitempty"`

	// How many probes in a row must fail to take an endpoint out.
	// Default: `3`.
	Fails int `json:"fails,omitempty"`
}

// MaxTokensClamp says how limits of tokens in requests are cut down to what
// the model's context window has room for. It concerns models with a
// `context_window`.
type MaxTokensClamp struct {
	// Whether limits are cut down. Default: `true`.
	Enabled *bool `json:"enabled,omitempty"`

	// How many tokens of the window are kept for the prompt.
	// Default: `512`.
	PromptReserve int `json:"prompt_reserve,omitempty"`

	// Whether to keep as many as the prompt is estimated to have, instead.
	PromptReserveAuto bool `json:"prompt_reserve_auto,omitempty"`
}

// over returns r's options, and those of base that r leaves out. Either may be
// nil.
func (r *Retries) over(base *Retries) *Retries {
	r, base = orZero(r), orZero(base)
	budget, baseBudget := orZero(r.Budget), orZero(base.Budget)
	return &Retries{
		Max: cmp.Or(r.Max, base.Max),
		On:  orList(r.On, base.On),
		Budget: &RetryBudget{
			Percent: cmp.Or(budget.Percent, baseBudget.Percent),
			Floor:   cmp.Or(budget.Floor, baseBudget.Floor),
		},
	}
}

// over is as that of Retries.
func (t *Timeouts) over(base *Timeouts) *Timeouts {
	t, base = orZero(t), orZero(base)
	return &Timeouts{
		Dial:      cmp.Or(t.Dial, base.Dial),
		FirstByte: cmp.Or(t.FirstByte, base.FirstByte),
		Gap:       cmp.Or(t.Gap, base.Gap),
		KeepAlive: cmp.Or(t.KeepAlive, base.KeepAlive),
	}
}

// over is as that of Retries.
func (h *Health) over(base *Health) *Health {
	h, base = orZero(h), orZero(base)
	return &Health{
		EjectAfter:      cmp.Or(h.EjectAfter, base.EjectAfter),
		EjectFor:        cmp.Or(h.EjectFor, base.EjectFor),
		EjectForMax:     cmp.Or(h.EjectForMax, base.EjectForMax),
		MaxEjected:      cmp.Or(h.MaxEjected, base.MaxEjected),
		UnhealthyStatus: orList(h.UnhealthyStatus, base.UnhealthyStatus),
		URI:             cmp.Or(h.URI, base.URI),
		Interval:        cmp.Or(h.Interval, base.Interval),
		Timeout:         cmp.Or(h.Timeout, base.Timeout),
		Passes:          cmp.Or(h.Passes, base.Passes),
		Fails:           cmp.Or(h.Fails, base.Fails),
	}
}

// orZero returns p, or a pointer to a zero value if p is nil.
func orZero[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// orList returns list, or base if list is nil.
func orList(list, base []string) []string {
	if list == nil {
		return base
	}
	return list
}

// The validations below may be called on nil.

func (r *Retries) validate() error {
	if r == nil {
		return nil
	}
	if deref(r.Max) < 0 {
		return errors.New("max is negative; leave it out for its default")
	}
	if err := checkAll(r.On, CheckRetryOn); err != nil {
		return fmt.Errorf("on: %w", err)
	}
	if r.Budget == nil {
		return nil
	}
	if !isPercent(deref(r.Budget.Percent)) {
		return errors.New("budget: percent is not a number from 0 to 100")
	}
	if deref(r.Budget.Floor) < 0 {
		return errors.New("budget: floor is negative; leave it out for its default")
	}
	return nil
}

func (t *Timeouts) validate(ofModel bool) error {
	if t == nil {
		return nil
	}
	if ofModel && (t.Dial != 0 || t.KeepAlive != 0) {
		return errors.New("dial and keepalive hold for all models; set them in the timeouts of the app")
	}
	return noneNegative(
		number{"dial", int64(t.Dial)}, number{"first_byte", int64(deref(t.FirstByte))},
		number{"gap", int64(deref(t.Gap))}, number{"keepalive", int64(t.KeepAlive)})
}

// validate takes the options that h leaves out from base, which may be nil.
func (h *Health) validate(base *Health) error {
	if h == nil {
		return nil
	}
	err := noneNegative(
		number{"eject_after", int64(h.EjectAfter)}, number{"eject_for", int64(h.EjectFor)},
		number{"eject_for_max", int64(h.EjectForMax)}, number{"interval", int64(h.Interval)},
		number{"timeout", int64(h.Timeout)}, number{"passes", int64(h.Passes)}, number{"fails", int64(h.Fails)})
	switch {
	case err != nil:
		return err
	case !isPercent(deref(h.MaxEjected)):
		return errors.New("max_ejected is not a number from 0 to 100")
	}
	if err := checkAll(h.UnhealthyStatus, CheckStatus); err != nil {
		return fmt.Errorf("unhealthy_status: %w", err)
	}
	if h.URI != "" {
		if err := CheckProbeURI(h.URI); err != nil {
			return err
		}
	}
	return h.CheckTimes(base)
}

// CheckTimes returns an error if the times do not fit together. Those that h
// leaves out are those of base, which may be nil, else the defaults.
func (h *Health) CheckTimes(base *Health) error {
	all := h.over(base).over(defaultHealth)
	if all.EjectFor > all.EjectForMax {
		return fmt.Errorf("eject_for is %s, above eject_for_max, which is %s; raise eject_for_max",
			time.Duration(all.EjectFor), time.Duration(all.EjectForMax))
	}
	return nil
}

func (c *MaxTokensClamp) validate() error {
	switch {
	case c == nil:
		return nil
	case c.PromptReserve < 0:
		return errors.New("prompt_reserve is negative; leave it out for its default")
	case c.PromptReserve > 0 && c.PromptReserveAuto:
		return errors.New("prompt_reserve is a number or auto, not both; leave one out")
	}
	return nil
}

// A number is the value of an option.
type number struct {
	option string
	value  int64
}

func noneNegative(numbers ...number) error {
	for _, n := range numbers {
		if n.value < 0 {
			return fmt.Errorf("%s is negative; leave it out for its default", n.option)
		}
	}
	return nil
}

func isPercent(n int) bool { return n >= 0 && n <= 100 }

// checkAll checks each of a list of words, none of which may be there twice.
func checkAll(words []string, check func(string) error) error {
	for i, word := range words {
		if err := check(word); err != nil {
			return err
		}
		if slices.Contains(words[:i], word) {
			return fmt.Errorf("%s is there twice; keep one", word)
		}
	}
	return nil
}

// reset is what stands for a lost connection among Retries.On.
const reset = "reset"

// CheckRetryOn returns an error if word cannot be one of Retries.On.
func CheckRetryOn(word string) error {
	if word != reset && CheckStatus(word) != nil {
		return fmt.Errorf("%q is nothing to retry on; write statuses from 400 to 599, 5xx, or reset", word)
	}
	return nil
}

// class5xx stands for the statuses from 500 to 599.
const class5xx = "5xx"

// CheckStatus returns an error if word does not stand for statuses of
// failures.
func CheckStatus(word string) error {
	if word == class5xx {
		return nil
	}
	if n, err := strconv.Atoi(word); err != nil || len(word) != 3 || n < 400 || n > 599 {
		return fmt.Errorf("%q is not the status of a failure; write numbers from 400 to 599, or 5xx", word)
	}
	return nil
}

// statuses returns the set that words stand for. Those that stand for no
// status are left out.
func statuses(words []string) (set catalog.Statuses) {
	for _, word := range words {
		if word == class5xx {
			for status := 500; status < 600; status++ {
				set.Add(status)
			}
		} else if n, err := strconv.Atoi(word); err == nil {
			set.Add(n)
		}
	}
	return set
}

// noProbes is the uri of a model without probes.
const noProbes = "off"

// CheckProbeURI returns an error if uri cannot be that of a probe.
func CheckProbeURI(uri string) error {
	if uri == noProbes {
		return nil
	}
	_, err := url.ParseRequestURI(uri)
	if err != nil || !strings.HasPrefix(uri, "/") || strings.HasPrefix(uri, "//") || strings.Contains(uri, "#") {
		return fmt.Errorf("uri is %q; write a path, such as /health, which is asked for at each endpoint, or off", uri)
	}
	return nil
}

// What a choice may be. The first is the default.
var (
	responseModels = []string{"asked", "upstream"}
	usageMetrics   = []string{"client", "always"}
)

// CheckResponseModel returns an error if App.ResponseModel cannot be value.
func CheckResponseModel(value string) error {
	return checkChoice("response_model", value, responseModels)
}

// CheckUsageMetrics returns an error if App.UsageMetrics cannot be value.
func CheckUsageMetrics(value string) error { return checkChoice("usage_metrics", value, usageMetrics) }

func checkChoice(option, value string, choices []string) error {
	if !slices.Contains(choices, value) {
		return fmt.Errorf("%s is %q; write one of: %s", option, value, strings.Join(choices, ", "))
	}
	return nil
}
