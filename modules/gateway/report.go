package gateway

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
)

// placeholders returns the values of {http.flexinfer.*} for c.
func placeholders(c *call.Call) caddy.ReplacerFunc {
	return func(key string) (any, bool) {
		name, ok := strings.CutPrefix(key, "http.flexinfer.")
		if !ok {
			return nil, false
		}
		d := c.Decision()
		switch name {
		case "model":
			if m := c.Model(); m != nil {
				return m.Name, true
			}
		case "strategy":
			return c.StrategyName(), true
		case "key_source":
			if d.Lease != nil {
				return d.Key.Source.String(), true
			}
		case "outcome":
			if d.Lease != nil {
				return call.Outcome(d), true
			}
		case "target":
			return call.Target(d), true
		case "upstream_model":
			return c.UpstreamModel(), true
		case "queue_ms":
			if c.Attempts() > 0 {
				return c.Queued().Milliseconds(), true
			}
		case "ttft_ms":
			if t := c.Answer().TTFT; t > 0 {
				return t.Milliseconds(), true
			}
		default:
			return nil, false
		}
		return "", true
	}
}

// logFields adds what is known of the call to the access log. Nothing of a
// prompt is among it.
func logFields(r *http.Request, c *call.Call, result metrics.Status) {
	extra, ok := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	if !ok {
		return
	}
	if m := c.Model(); m != nil {
		extra.Set(zap.String("model", m.Name))
	}
	if d := c.Decision(); d.Lease != nil {
		extra.Set(zap.String("strategy", c.StrategyName()))
		extra.Set(zap.Stringer("key_source", d.Key.Source))
		extra.Set(zap.Stringer("key_hash", d.Key))
		extra.Set(zap.Stringer("session_hash", c.SessionKey()))
		extra.Set(zap.String("target", call.Target(d)))
		extra.Set(zap.Int("attempts", c.Attempts()))
		extra.Set(zap.Int64("queue_ms", c.Queued().Milliseconds()))
	}
	extra.Set(zap.Stringer("result", result))
	extra.Set(zap.Int64("prompt_bytes", max(c.Body(), 0)))
	a := c.Answer()
	if a.TTFT > 0 {
		extra.Set(zap.Int64("ttft_ms", a.TTFT.Milliseconds()))
	}
	if a.Usage.Known {
		extra.Set(zap.Int("prompt_tokens", a.Usage.Prompt))
		extra.Set(zap.Int("completion_tokens", a.Usage.Completion))
	}
	if a.Usage.CachedKnown {
		extra.Set(zap.Int("cached_tokens", a.Usage.Cached))
	}
}

// traceFields adds what is known of the call to the span of Caddy's directive
// tracing.
func traceFields(span trace.Span, c *call.Call) {
	if m := c.Model(); m != nil {
		span.SetAttributes(attribute.String("flexinfer.model", m.Name))
	}
	if d := c.Decision(); d.Lease != nil {
		span.SetAttributes(
			attribute.String("flexinfer.strategy", c.StrategyName()),
			attribute.String("flexinfer.key_source", d.Key.Source.String()),
			attribute.String("flexinfer.target", call.Target(d)),
			attribute.Int("flexinfer.attempts", c.Attempts()),
			attribute.Int64("flexinfer.queue_ms", c.Queued().Milliseconds()),
		)
	}
	if t := c.Answer().TTFT; t > 0 {
		span.SetAttributes(attribute.Int64("flexinfer.ttft_ms", t.Milliseconds()))
	}
}
