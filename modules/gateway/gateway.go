// Package gateway holds the HTTP handler that owns one request's lifetime:
// it finds out which model the request asks for, hands it on, and accounts
// for how it ended.
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler finds the model that a request asks for and the keys that say which
// KV cache it would hit, and hands it on to the next handler, usually
// `reverse_proxy` with `dynamic flexinfer`, `lb_policy flexinfer` and
// `transport flexinfer`. However the request ends, the handler releases what
// it holds and accounts for it.
//
// The model is the first of these that is there: the header `X-Model-ID`; a
// path `/model/<name>/…`, whose first two segments are stripped; the field
// `model` of a JSON body or a multipart form; the query parameter `model` of
// a request without a body; the answer that a path `/v1/responses/<id>` or a
// `previous_response_id` refers to.
//
// Requests that cannot be served are answered here, in the shape that the
// caller's API uses: OpenAI's, Anthropic's on `/v1/messages`, Ollama's on
// `/api/`. That holds for errors of the next handler too, so that
// `handle_errors` does not run for them.
//
// The handler sets these placeholders, empty where the value is not known:
//
// Placeholder | Description
// ------------|-------------
// `{http.flexinfer.model}` | The declared name of the model
// `{http.flexinfer.strategy}` | The strategy that picked
// `{http.flexinfer.key_source}` | Where the routing key came from
// `{http.flexinfer.outcome}` | `pod` or `service-fallback`
// `{http.flexinfer.target}` | The upstream, as `host:port` and base path
// `{http.flexinfer.upstream_model}` | The name by which the upstream knows the model
// `{http.flexinfer.queue_ms}` | Milliseconds that the call waited for its first attempt
// `{http.flexinfer.ttft_ms}` | Milliseconds to the first byte of the answer's body
type Handler struct {
	// The strategy for requests through this handler, instead of the
	// model's own.
	StrategyRaw json.RawMessage `json:"strategy,omitempty" caddy:"namespace=flexinfer.strategies inline_key=strategy"`

	// Sources that list the models of this handler, instead of those of the
	// `flexinfer` app.
	SourcesRaw []json.RawMessage `json:"sources,omitempty" caddy:"namespace=flexinfer.sources inline_key=source"`

	// Whether to answer `/healthz`, `/readyz`, `/v1/models`,
	// `/v1/models/<id>`, and Ollama's `/api/tags`, `/api/ps` and
	// `/api/version` too.
	Operations bool `json:"operations,omitempty"`

	app          *app.App
	settings     *call.Settings
	catalog      *catalog.Catalog
	strategy     routing.Strategy
	strategyName string
	logger       *zap.Logger
	accessLog    bool
	listed       bool // has sources of its own
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.flexinfer",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up h.
func (h *Handler) Provision(ctx caddy.Context) (err error) {
	h.logger = ctx.Logger()
	if h.app, err = app.Of(ctx); err != nil {
		return err
	}
	h.settings = h.app.Settings()
	h.catalog = h.app.Catalog()
	if h.strategy, h.strategyName, err = h.app.LoadStrategy(ctx, h, "StrategyRaw", h.StrategyRaw); err != nil {
		return err
	}
	if h.listed = h.SourcesRaw != nil; h.listed {
		if h.catalog, err = h.app.CatalogOf(ctx, h, "SourcesRaw", h.strategy, h.strategyName); err != nil {
			return err
		}
	}
	if srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		h.accessLog = srv.Logs != nil
	}
	return nil
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if h.Operations && h.serveOperations(w, r) {
		return nil
	}
	c := call.Begin(r, h.settings)
	defer c.End()
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	repl.Map(placeholders(c))
	if h.strategy != nil {
		c.UseStrategy(h.strategy, h.strategyName)
	}
	result := metrics.StatusError
	if h.accessLog {
		defer func() { logFields(r, c, result) }()
	}
	if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
		defer traceFields(span, c)
	}
	w.Header().Set(call.RequestIDHeader, c.RequestID())
	if err := c.Resolve(r, h.catalog); err != nil {
		if h.mayPass(c, err) {
			return h.pass(w, r, c, next, err, &result)
		}
		return h.refuse(w, r, c, err)
	}
	if err := c.Admit(r.Context()); err != nil {
		return h.refuse(w, r, c, err)
	}
	if change := c.Clamped(); change != "" {
		w.Header()["X-FlexInfer-MaxTokens-Clamped"] = []string{change} // as FlexInfer spells it
	}

	m := c.Model().Metrics
	m.Begin()
	rec := &recorder{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	returned := false
	// Runs also when the answer is broken off by a panic, as reverse_proxy
	// does when the upstream dies or the client leaves in the middle.
	defer func() {
		result = outcome(rec, c.Answer(), returned)
		m.End(result, time.Since(c.Started()))
	}()

	c.AllowRoute(h.mayDebug(r))
	err := next.ServeHTTP(rec, r)
	returned = err == nil || rec.status == 0 // else the answer is to be broken off
	if err != nil {
		return h.answerFor(rec, r, c, err)
	}
	// The server arms a deadline with each write and leaves it armed. An
	// answer that ends long after its last byte would lose its end to it.
	if r.ProtoMajor == 1 && rec.status != http.StatusSwitchingProtocols && w.Header().Get("Content-Length") == "" {
		_ = http.NewResponseController(w).Flush()
	}
	return nil
}

// refuse answers a request that does not get as far as an upstream.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, c *call.Call, err error) error {
	status := metrics.StatusError
	if rej, ok := errors.AsType[*call.Rejection](err); ok {
		status = rej.Status
	}
	ref, ok := errors.AsType[*refusal.Refusal](err)
	left := errors.Is(err, context.Canceled)
	if !ok && !left {
		if ref = unreadable(err); ref == nil {
			status = metrics.StatusClientClosed
			ref = refusal.BadRequest("invalid_body", "the request's body broke off")
		}
	}
	m := metrics.Unknown()
	if c.Model() != nil {
		m = c.Model().Metrics
	}
	if left { // while it waited
		m.Refused(metrics.StatusClientClosed)
		w.WriteHeader(statusClientClosed)
		return nil
	}
	m.Refused(status)
	if c.Unread(r) && r.ProtoMajor == 1 {
		return refuseUnread(w, r, ref)
	}
	return ref.Write(w, r.URL.Path)
}

// How much is read of a body that is refused, and for how long: so that a
// client that sends first and reads then gets to see why.
const (
	lingerBytes = 64 << 20
	lingerTime  = 2 * time.Second
)

// refuseUnread answers a request whose body was not read. Left to itself the
// server would wait for the body before it answers.
func refuseUnread(w http.ResponseWriter, r *http.Request, ref *refusal.Refusal) error {
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil {
		return ref.Write(w, r.URL.Path)
	}
	w.Header().Set("Connection", "close")
	if err := ref.Write(w, r.URL.Path); err != nil {
		return err
	}
	if err := rc.Flush(); err != nil {
		return nil //nolint:nilerr // it is answered
	}
	if r.Header.Get("Expect") != "" { // the body that nobody asked for may never come
		_ = rc.SetReadDeadline(time.Unix(1, 0))
		return nil
	}
	late := time.AfterFunc(lingerTime, func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) })
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
	return nil
}

// unreadable returns what to answer if a body could not be read, nil if it is
// the client that broke off.
func unreadable(err error) *refusal.Refusal {
	he, _ := errors.AsType[caddyhttp.HandlerError](err)
	switch {
	case he.StatusCode == http.StatusRequestEntityTooLarge: // by request_body
		return refusal.TooLarge(0)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refusal.Timeout()
	case errors.Is(err, context.DeadlineExceeded): // of another handler
		return refusal.Upstream(http.StatusGatewayTimeout)
	}
	return nil
}

// answerFor answers a request that the next handler gave up, in the shape of
// the caller's API, or breaks the answer off if it has begun.
func (h *Handler) answerFor(rec *recorder, r *http.Request, c *call.Call, err error) error {
	ref, ok := errors.AsType[*refusal.Refusal](err)
	if !ok {
		ref = c.Refusal()
	}
	if ref != nil && rec.status == 0 {
		rec.refused = true
		return ref.Write(rec, r.URL.Path)
	}
	status := http.StatusInternalServerError
	he, ok := errors.AsType[caddyhttp.HandlerError](err)
	if ok {
		status = he.StatusCode
	}
	if e := h.logger.Check(zap.ErrorLevel, "request failed"); e != nil && status >= http.StatusInternalServerError {
		e.Write(zap.String("model", c.Model().Name), zap.String("target", call.Target(c.Decision())),
			zap.Int("attempts", c.Attempts()), zap.Int("status", status), zap.Error(err))
	}
	switch {
	case rec.status != 0:
		panic(http.ErrAbortHandler)
	case ok && status < http.StatusInternalServerError:
		return err
	}
	if route := c.Route(); route != "" {
		rec.Header().Set(call.RouteHeader, route)
	}
	return refusal.Upstream(status).Write(rec, r.URL.Path)
}

// A recorder notes the status of an answer.
type recorder struct {
	caddyhttp.ResponseWriterWrapper
	status  int  // 0 until the answer begins
	refused bool // it is the gateway's own
}

// WriteHeader implements [http.ResponseWriter].
func (rec *recorder) WriteHeader(status int) {
	if rec.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		rec.status = status
	}
	rec.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (rec *recorder) Write(p []byte) (int, error) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	return rec.ResponseWriter.Write(p)
}

// ReadFrom implements [io.ReaderFrom].
func (rec *recorder) ReadFrom(r io.Reader) (int64, error) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	return rec.ResponseWriterWrapper.ReadFrom(r)
}

// statusClientClosed is what reverse_proxy writes when the client has left.
const statusClientClosed = 499

// outcome judges how a request that was handed on ended. If its handler did
// not return the answer was broken off: by the upstream, or else by the client.
func outcome(rec *recorder, a *call.Answer, returned bool) metrics.Status {
	switch status := rec.status; {
	case rec.refused:
		return metrics.StatusError
	case !returned && !a.Broken, status == statusClientClosed:
		return metrics.StatusClientClosed
	case !returned, status == 0, status >= http.StatusInternalServerError:
		return metrics.StatusUpstreamError
	}
	return metrics.StatusSuccess
}

// mayDebug reports whether the client asks, and may ask, to be told how its
// request was routed.
func (h *Handler) mayDebug(r *http.Request) bool {
	if r.Header.Get("X-Flexinfer-Debug") != "1" {
		return false
	}
	ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return h.app.MayDebug(ip)
}

// Validate reports whether h can work.
func (h *Handler) Validate() error {
	if h.listed || !h.Operations || h.app.Kubernetes != nil || len(h.catalog.Table().Models()) > 0 {
		return nil
	}
	return errors.New("no models: declare some in the global option flexinfer, or list upstreams here: flexinfer 10.0.0.5:8000 10.0.0.6:8000")
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
