package gateway

import (
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
)

// mayPass reports whether a request that asks for no known model may be meant
// for a proxy that does not care: one to a Kubernetes Service.
func (h *Handler) mayPass(c *call.Call, err error) bool {
	ref, refused := errors.AsType[*refusal.Refusal](err)
	return refused && ref.Unresolved && c.Model() == nil && !h.Operations && h.app.ProxiesServices()
}

// pass hands on such a request. If nobody takes it, it is refused for the cause.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request, c *call.Call, next caddyhttp.Handler, cause error, result *metrics.Status) error {
	rec := &recorder{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	returned := false
	defer func() {
		if m := c.Model(); m != nil {
			*result = outcome(rec, c.Answer(), returned)
			m.Metrics.Begin()
			m.Metrics.End(*result, time.Since(c.Started()))
		}
	}()
	c.AllowRoute(h.mayDebug(r))
	err := next.ServeHTTP(rec, r)
	returned = err == nil || rec.status == 0
	switch {
	case err == nil:
		return nil
	case c.Model() != nil:
		return h.answerFor(rec, r, c, err)
	case rec.status == 0:
		return h.refuse(w, r, c, cause)
	}
	return err
}
