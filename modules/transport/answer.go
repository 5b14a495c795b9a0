package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
)

// The headers and trailers that the gateway adds to answers, in the spelling
// of http.Header.
const (
	ownPrefix          = "X-Flexinfer-"
	routeHeader        = ownPrefix + "Route"
	upstreamMsHeader   = ownPrefix + "Upstream-Ms"
	promptTokensHeader = ownPrefix + "Prompt-Tokens"
	completionHeader   = ownPrefix + "Completion-Tokens"
	cachedTokensHeader = ownPrefix + "Cached-Tokens"
	finishReasonHeader = ownPrefix + "Finish-Reason"
	ttftHeader         = ownPrefix + "Ttft-Ms"
	hitRateHeader      = ownPrefix + "Prefix-Cache-Hit-Rate"
	requestIDHeader    = "X-Request-Id"
)

// answer makes an endpoint's answer ready for the client, or has the call tried
// elsewhere if the endpoint has no time for it.
func (a *attempt) answer(res *http.Response) (*http.Response, error) {
	policy, health := a.model.Policy, a.endpoint.Health()
	switch status := res.StatusCode; {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		health.Busy(&policy.Health, retryAfter(res.Header))
	case policy.Unhealthy.Has(status):
		health.Failed(&policy.Health, false, a.mayEject)
	case status < http.StatusBadRequest:
		a.fine = true
	}
	a.call.Answer().Status = res.StatusCode
	elsewhere := policy.RetryOn.Has(res.StatusCode) && a.call.Failed(call.Declined, "http_"+strconv.Itoa(res.StatusCode))
	res, err := a.dress(res)
	if elsewhere && err == nil {
		a.call.Hold(res)
		return nil, reverseproxy.NewDialError(fmt.Errorf("%s answered %s", a.endpoint.Target(), res.Status))
	}
	a.call.Accept()
	return res, err
}

// retryAfter returns the time that a Retry-After header asks for, 0 if it has
// none in seconds.
func retryAfter(h http.Header) time.Duration {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || s < 0 {
		return 0
	}
	return time.Duration(min(s, 3600)) * time.Second
}

// dress puts the gateway's own headers on an answer, and a body that watches.
func (a *attempt) dress(res *http.Response) (*http.Response, error) {
	c, h := a.call, res.Header
	for field := range h {
		if strings.HasPrefix(field, ownPrefix) || field == requestIDHeader {
			delete(h, field) // not the upstream's to set
		}
	}
	if route := c.Route(); route != "" {
		h[routeHeader] = []string{route}
	}
	if c.Completion() {
		h[upstreamMsHeader] = []string{strconv.FormatInt(time.Since(c.Dialled()).Milliseconds(), 10)}
	}
	if res.StatusCode == http.StatusSwitchingProtocols { // whose body is the connection
		a.endpoint.Health().Succeeded()
		a.watchdog.stop()
		return res, nil
	}
	if seconds := keepAlive(h); seconds > 0 {
		a.idle = seconds
	}
	b := a.watch(res)
	if c.Completion() && !c.Stream() && b.usage != nil && !b.stream {
		return a.gather(res, b)
	}
	if rate := a.hitRate.value(false); rate != "" {
		h[hitRateHeader] = []string{rate}
		a.hitRate = nil
	}
	a.announce(res, b)
	return res, nil
}

// keepAlive returns for how long the endpoint says that it keeps an idle
// connection, less a second to be on the safe side; 0 if it does not say.
func keepAlive(h http.Header) time.Duration {
	value := h.Get("Keep-Alive")
	if value == "" {
		return 0
	}
	for param := range strings.SplitSeq(value, ",") {
		name, n, _ := strings.Cut(strings.TrimSpace(param), "=")
		if s, err := strconv.Atoi(n); err == nil && strings.EqualFold(name, "timeout") && s >= 0 {
			return max(time.Duration(min(s, 3600))*time.Second-time.Second, time.Second/2)
		}
	}
	return 0
}

// maxGathered is the largest plain answer whose usage is told in headers, in
// bytes. A larger one passes without.
const maxGathered = 1 << 20

var gathered = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// gather reads a plain completion to its end, which the engine sends at once,
// so that what it says of tokens can go into headers.
func (a *attempt) gather(res *http.Response, b *watchedBody) (*http.Response, error) {
	buf := gathered.Get().(*bytes.Buffer)
	buf.Reset()
	_, err := io.CopyN(buf, b, maxGathered)
	whole := &gatheredBody{buf: buf}
	switch {
	case err == nil: // and there may be more
		whole.rest = b
		res.Body = whole
		return res, nil
	case !errors.Is(err, io.EOF):
		_ = b.Close()
		whole.Close()
		a.call.GiveUp()
		return nil, fmt.Errorf("reading the answer of %s: %w", a.endpoint.Target(), err)
	}
	_ = b.Close()
	h, u := res.Header, a.call.Answer().Usage
	if u.Known {
		h[promptTokensHeader] = []string{strconv.Itoa(u.Prompt)}
	}
	if u.CachedKnown {
		h[cachedTokensHeader] = []string{strconv.Itoa(u.Cached)}
	}
	if f := b.usage.Finish(); f != "" {
		h[finishReasonHeader] = []string{f}
	}
	if rate := a.hitRate.value(true); rate != "" {
		h[hitRateHeader] = []string{rate}
	}
	res.Body, res.ContentLength = whole, int64(buf.Len())
	h["Content-Length"] = []string{strconv.Itoa(buf.Len())}
	return res, nil
}

// A gatheredBody is what was read of an answer, and the rest of it.
type gatheredBody struct {
	buf  *bytes.Buffer // nil once closed
	rest io.ReadCloser // nil if there is none
}

// Read implements [io.Reader].
func (g *gatheredBody) Read(p []byte) (int, error) {
	if g.buf != nil && g.buf.Len() > 0 {
		return g.buf.Read(p)
	}
	if g.rest != nil {
		return g.rest.Read(p)
	}
	return 0, io.EOF
}

// Close implements [io.Closer].
func (g *gatheredBody) Close() error {
	if g.buf != nil {
		gathered.Put(g.buf)
		g.buf = nil
	}
	if g.rest != nil {
		return g.rest.Close()
	}
	return nil
}

// announce promises what is only known at the end of a stream as trailers, to
// a client that takes them.
func (a *attempt) announce(res *http.Response, b *watchedBody) {
	if !b.stream || !a.call.TakesTrailers() {
		return
	}
	b.tells = true
	if res.Trailer == nil {
		res.Trailer = make(http.Header)
	}
	for _, field := range []string{ttftHeader, promptTokensHeader, completionHeader, cachedTokensHeader} {
		res.Trailer[field] = nil
	}
	if a.hitRate != nil {
		res.Trailer[hitRateHeader] = nil
	}
}

// tell puts the gateway's own trailers in the place of those that the upstream
// sent under their names.
func (b *watchedBody) tell() {
	trailer := b.res.Trailer
	for field := range trailer {
		switch {
		case !strings.HasPrefix(field, ownPrefix):
		case b.tells:
			trailer[field] = nil // it may have been announced
		default:
			delete(trailer, field)
		}
	}
	if !b.tells {
		return
	}
	set := func(field string, known bool, n int64) {
		if known {
			trailer[field] = []string{strconv.FormatInt(n, 10)}
		}
	}
	if rate := b.attempt.hitRate.value(false); rate != "" {
		trailer[hitRateHeader] = []string{rate}
	}
	ans := b.attempt.call.Answer()
	set(ttftHeader, ans.TTFT > 0, ans.TTFT.Milliseconds())
	set(promptTokensHeader, ans.Usage.Known, int64(ans.Usage.Prompt))
	set(completionHeader, ans.Usage.Known, int64(ans.Usage.Completion))
	set(cachedTokensHeader, ans.Usage.CachedKnown, int64(ans.Usage.Cached))
}
