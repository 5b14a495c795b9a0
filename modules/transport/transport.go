// Package transport holds the transport that makes the exchange with an
// endpoint.
package transport

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http/httpguts"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(Transport))
}

// Transport makes the exchange with the endpoint that was picked for a call,
// over that endpoint's own scheme: http, https or h2c. It counts the call as
// under way from the dial to the end of the answer, measures the time to the
// first byte of the answer's body, and lets the proxy try again with another
// endpoint if this one could not be reached.
//
// It takes the options of Caddy's `http` transport, which hold for all of the
// endpoints; `tls` and its kin for those with the scheme https. The defaults
// differ where inference engines need it: no HTTP proxy from the environment,
// no compression of its own, up to 512 idle connections per endpoint, kept
// for 4 seconds with http (uvicorn closes its own after 5) and 75 seconds
// otherwise.
//
// For a request without a picked endpoint, as in a plain `reverse_proxy`, it
// is Caddy's `http` transport with these defaults.
type Transport struct {
	reverseproxy.HTTPTransport

	plain, secure, h2c *http.Transport
	upgrade            *http.Transport // https over HTTP/1.1
	fresh              *http.Transport // http without kept connections
	keepHost           bool            // the operator sets Host
	app                *app.App
	logger             *zap.Logger
	logged             atomic.Int64 // when the last failure was, in ns
	hitRates           hitRates
}

// CaddyModule returns the Caddy module information.
func (*Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport.flexinfer",
		New: func() caddy.Module { return new(Transport) },
	}
}

// versions are the versions of HTTP that endpoints may speak. HTTP/3 is left
// out: it is not worth a transport of its own on the way to an engine.
var versions = []string{"1.1", "2", "h2c"}

const (
	idlePlain   = 4 * time.Second
	idleSecure  = 75 * time.Second
	idlePerHost = 512
)

// Provision sets up t, and raises the number of retries of the proxy that it
// belongs to: the proxy stops where t does not ask for another attempt.
func (t *Transport) Provision(ctx caddy.Context) error {
	a, err := app.Of(ctx)
	if err != nil {
		return err
	}
	t.app = a
	t.logger = ctx.Logger()
	for _, v := range t.Versions {
		if !slices.Contains(versions, v) {
			return fmt.Errorf("HTTP version %q is not supported here; write some of: %s", v, strings.Join(versions, ", "))
		}
	}
	if mods := ctx.Modules(); len(mods) > 1 {
		if h, ok := mods[len(mods)-2].(*reverseproxy.Handler); ok {
			t.adopt(h, a.MaxRetries())
		}
	}
	if t.plain, err = t.make(ctx, "http"); err != nil {
		return err
	}
	if t.secure, err = t.make(ctx, "https"); err != nil {
		return err
	}
	if t.h2c, err = t.make(ctx, "h2c"); err != nil {
		return err
	}
	if t.upgrade, err = t.make(ctx, "https", "1.1"); err != nil {
		return err
	}
	t.fresh = t.plain.Clone()
	t.fresh.DisableKeepAlives = true
	t.Transport = t.plain
	switch {
	case t.TLS != nil:
		t.Transport = t.secure
	case len(t.Versions) > 0 && t.Versions[0] == "h2c":
		t.Transport = t.h2c
	}
	return nil
}

// adopt makes the proxy h fit for t.
func (t *Transport) adopt(h *reverseproxy.Handler, retries int) {
	if h.LoadBalancing == nil {
		h.LoadBalancing = new(reverseproxy.LoadBalancing)
	}
	h.LoadBalancing.Retries = max(h.LoadBalancing.Retries, retries)
	if h.Headers != nil && h.Headers.Request != nil {
		t.keepHost = setsHost(h.Headers.Request)
	}
}

func setsHost(ops *headers.HeaderOps) bool {
	for _, fields := range []http.Header{ops.Set, ops.Add} {
		for field := range fields {
			if strings.EqualFold(field, "Host") {
				return true
			}
		}
	}
	for field := range ops.Replace {
		if strings.EqualFold(field, "Host") {
			return true
		}
	}
	return false
}

// make builds the transport for one scheme out of the options, for these
// versions of HTTP if any are named.
func (t *Transport) make(ctx caddy.Context, scheme string, versions ...string) (*http.Transport, error) {
	o := t.HTTPTransport
	idle := idlePlain
	switch scheme {
	case "http":
		o.TLS, o.Versions = nil, []string{"1.1"}
	case "https":
		idle = idleSecure
		if o.TLS == nil {
			o.TLS = new(reverseproxy.TLSConfig)
		}
		if len(o.Versions) == 0 || o.Versions[0] == "h2c" {
			o.Versions = []string{"1.1", "2"}
		}
	case "h2c":
		idle = idleSecure
		o.TLS, o.Versions = nil, []string{"h2c"}
	}
	if len(versions) > 0 {
		o.Versions = versions
	}
	keepAlive := reverseproxy.KeepAlive{}
	if o.KeepAlive != nil {
		keepAlive = *o.KeepAlive
	}
	if keepAlive.IdleConnTimeout == 0 {
		keepAlive.IdleConnTimeout = caddy.Duration(cmp.Or(t.app.KeepAlive(), idle))
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = caddy.Duration(t.app.DialTimeout())
	}
	if keepAlive.MaxIdleConnsPerHost == 0 {
		keepAlive.MaxIdleConnsPerHost = idlePerHost
	}
	o.KeepAlive = &keepAlive
	if o.Compression == nil {
		o.Compression = new(bool)
	}
	rt, err := o.NewTransport(ctx)
	if err != nil {
		return nil, fmt.Errorf("making the transport for %s: %w", scheme, err)
	}
	if t.NetworkProxyRaw == nil && t.ForwardProxyURL == "" {
		rt.Proxy = nil // in-cluster traffic is no business of a proxy's
	}
	dial := rt.DialContext
	rt.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialWithCause(ctx, network, address, dial)
		if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
			return newDirectConn(tcp), nil
		}
		return conn, err
	}
	return rt, nil
}

// RequestHeaderOps is empty: the transport sets Host for each endpoint.
func (t *Transport) RequestHeaderOps() *headers.HeaderOps {
	return nil
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := call.From(req.Context())
	var lease *routing.Lease
	if c != nil && !c.Foreign() {
		lease = c.Lease()
	}
	if lease == nil { // the proxy's own upstream
		if t.TLS != nil && !t.keepHost {
			req.Host = req.URL.Host
		}
		return t.HTTPTransport.RoundTrip(req)
	}
	rt := t.direct(req, c, lease.Endpoint())
	a, req := t.begin(c, lease, req)
	if c.Completion() && c.WantsHitRate() {
		a.hitRate = t.hitRates.ask(rt, a.endpoint)
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		return a.failed(err)
	}
	return a.answer(res)
}

// direct points req to the endpoint of an attempt and returns the transport for
// it. The first attempt changes the proxy's own clone of the request; the later
// ones get copies, since net/http may still be reading from an earlier one.
func (t *Transport) direct(req *http.Request, c *call.Call, e *routing.Endpoint) *http.Transport {
	if c.Attempts() > 1 {
		u := *req.URL
		req.URL, req.Header = &u, maps.Clone(req.Header)
	}
	rt := t.plain
	if c.WantsFresh() {
		rt = t.fresh
	}
	req.URL.Scheme = "http"
	switch e.Scheme {
	case "https":
		req.URL.Scheme, rt = "https", t.secure
		if len(req.Header["Upgrade"]) > 0 { // which HTTP/2 has not
			rt = t.upgrade
		}
		if !t.keepHost {
			req.Host = strings.TrimSuffix(e.Address, ":443")
		}
	case "h2c":
		rt = t.h2c
	}
	if e.Path != "" {
		u := *req.URL // the next attempt is to begin with the path as it is
		rewriteBase(&u, e.Path)
		req.URL = &u
	}
	h := req.Header
	if len(e.Header) > 0 { // which the next attempt is not to have
		h = maps.Clone(h)
		maps.Copy(h, e.Header)
		req.Header = h
	}
	for field := range req.Trailer {
		if !httpguts.ValidTrailerHeader(field) || !httpguts.ValidHeaderFieldName(field) {
			delete(req.Trailer, field)
		}
	}
	delete(h, workloadHeader) // FlexInfer's own business
	h[call.RequestIDHeader] = []string{c.AttemptID()}
	if c.Renamed() != "" || c.HidesUsage() {
		h["Accept-Encoding"] = []string{"identity"} // what is to be changed must be legible
	}
	return rt
}

const workloadHeader = "X-Flexinfer-Internal-Workload-Class"

// rewriteBase puts an escaped base path in front of u's path.
func rewriteBase(u *url.URL, base string) {
	escaped := base + u.EscapedPath()
	if p, err := url.PathUnescape(escaped); err == nil {
		u.Path, u.RawPath = p, escaped
	}
}

// Cleanup closes idle connections.
func (t *Transport) Cleanup() error {
	for _, rt := range []*http.Transport{t.plain, t.secure, t.h2c, t.upgrade} {
		if rt != nil {
			rt.CloseIdleConnections()
		}
	}
	return nil
}

// UnmarshalCaddyfile sets up the transport from Caddyfile tokens. Syntax:
//
//	transport flexinfer {
//		<options of the http transport...>
//	}
func (t *Transport) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return t.HTTPTransport.UnmarshalCaddyfile(d)
}

// Interface guards
var (
	_ caddy.Provisioner         = (*Transport)(nil)
	_ caddy.CleanerUpper        = (*Transport)(nil)
	_ http.RoundTripper         = (*Transport)(nil)
	_ reverseproxy.TLSTransport = (*Transport)(nil)
	_ reverseproxy.H2CTransport = (*Transport)(nil)
	_ caddyfile.Unmarshaler     = (*Transport)(nil)
)
