package transport

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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
	upstreamMsHeader   = ownPrefix + "Upstream-Ms"
	promptTokensHeader = ownPrefix + "Prompt-Tokens"
	completionHeader   = ownPrefix + "Completion-Tokens"
	cachedTokensHeader = ownPrefix + "Cached-Tokens"
	finishReasonHeader = ownPrefix + "Finish-Reason"
	ttftHeader         = ownPrefix + "Ttft-Ms"
	hitRateHeader      = ownPrefix + "Prefix-Cache-Hit-Rate"
)

// answer makes an endpoint's answer ready for the client, or has the call tried
// elsewhere if the endpoint has no time for it.
func (a *attempt) answer(res *http.Response) (*http.Response, error) {
	policy := a.model.Policy
	switch status := res.StatusCode; {
	case policy.Unhealthy.Has(status):
		a.blame()
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		a.endpoint.Health().Busy(&policy.Health, retryAfter(res.Header))
	case status < http.StatusBadRequest:
		a.fine = true
	}
	elsewhere := policy.RetryOn.Has(res.StatusCode) && a.call.Failed(call.Declined, "http_"+strconv.Itoa(res.StatusCode))
	res, err := a.dress(res)
	if err != nil {
		return nil, err
	}
	if elsewhere {
		a.watchdog.stop() // it may be a while until it is wanted
		a.call.Hold(res)
		return nil, reverseproxy.NewDialError(fmt.Errorf("%s answered %s", a.endpoint.Target(), res.Status))
	}
	a.call.Accept()
	return res, nil
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
	dropOwn(h)
	if route := c.Route(); route != "" {
		h[call.RouteHeader] = a.value(route)
	}
	if c.Completion() {
		h[upstreamMsHeader] = a.value(strconv.FormatInt(time.Since(c.Dialled()).Milliseconds(), 10))
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
	if b.ReadCloser == http.NoBody { // nobody may read it to its end
		b.end(io.EOF)
		res.Body = http.NoBody
		return res, nil
	}
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

// dropOwn drops from an upstream's header what is not its to set.
func dropOwn(h http.Header) {
	for field := range h {
		if strings.HasPrefix(field, ownPrefix) || field == call.RequestIDHeader {
			delete(h, field)
		}
	}
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

var gathered = sync.Pool{New: func() any { return &gatherBuffer{make([]byte, 0, 8<<10)} }}

type gatherBuffer struct{ b []byte }

// gather reads a plain completion to its end, which the engine sends at once,
// so that what it says of tokens can go into headers.
func (a *attempt) gather(res *http.Response, b *watchedBody) (*http.Response, error) {
	g := &a.whole
	g.buf = gathered.Get().(*gatherBuffer)
	raw, err := g.buf.b[:0], error(nil)
	for err == nil && len(raw) < maxGathered {
		raw = slices.Grow(raw, 1)
		var n int
		n, err = b.receive(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
	}
	g.buf.b = raw
	whole := errors.Is(err, io.EOF)
	switch {
	case whole:
		b.usage.End(raw)
		b.end(err)
	case err == nil: // and there may be more
		b.usage.Feed(raw)
		g.rest = b
	default:
		b.end(err)
		_ = b.ReadCloser.Close()
		_ = g.Close()
		return a.brokeOff(err)
	}
	if g.unread = raw; b.rewrite != nil {
		g.unread = b.rewrite.Append(nil, raw)
		if whole {
			g.unread = b.rewrite.Finish(g.unread)
		}
	}
	res.Body = g
	if whole {
		_ = b.ReadCloser.Close()
		a.tellPlain(res)
	}
	return res, nil
}

// brokeOff turns the end of a plain answer in its middle, of which the client
// has seen nothing, into what makes the proxy do the right thing.
func (a *attempt) brokeOff(err error) (*http.Response, error) {
	if gone := a.client.Err(); gone != nil {
		a.call.GiveUp()
		return nil, gone
	}
	err = fmt.Errorf("reading the answer of %s: %w", a.endpoint.Target(), err)
	return a.conclude(err, a.model.Policy.RetryReset && a.call.Failed(call.Declined, reason(err)))
}

// tellPlain puts what a plain completion says of itself into headers.
func (a *attempt) tellPlain(res *http.Response) {
	h, u := res.Header, a.call.Answer().Usage
	if u.Known {
		h[promptTokensHeader] = a.value(strconv.Itoa(u.Prompt))
	}
	if u.CachedKnown {
		h[cachedTokensHeader] = a.value(strconv.Itoa(u.Cached))
	}
	if f := a.usage.Finish(); f != "" {
		h[finishReasonHeader] = a.value(f)
	}
	if rate := a.hitRate.value(true); rate != "" {
		h[hitRateHeader] = a.value(rate)
	}
	if length := int64(len(a.whole.unread)); res.ContentLength != length && len(res.Trailer) == 0 {
		res.ContentLength = length
		h["Content-Length"] = a.value(strconv.FormatInt(length, 10))
	}
}

// A gatheredBody is what was read of an answer, and the rest of it.
type gatheredBody struct {
	unread []byte
	buf    *gatherBuffer // nil once closed
	rest   io.ReadCloser // nil if there is none
}

// Read implements [io.Reader].
func (g *gatheredBody) Read(p []byte) (int, error) {
	if len(g.unread) > 0 {
		n := copy(p, g.unread)
		g.unread = g.unread[n:]
		if len(g.unread) == 0 && g.rest == nil {
			return n, io.EOF
		}
		return n, nil
	}
	if g.rest != nil {
		return g.rest.Read(p)
	}
	return 0, io.EOF
}

// Close implements [io.Closer].
func (g *gatheredBody) Close() error {
	if g.buf != nil {
		g.unread = nil
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
	if !b.stream || res.ContentLength >= 0 || !a.call.TakesTrailers() {
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
		case !strings.HasPrefix(field, ownPrefix) && field != call.RequestIDHeader:
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
