// Package direct is for what the gateway itself asks upstreams: whether they
// are well, and which models they have.
package direct

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// maxHeader bounds the header of an answer, in bytes.
const maxHeader = 64 << 10

// URL returns the URL of a path of an upstream. The scheme is http, https or
// h2c; the latter is http to a client that [NewClient] made for it. The base is
// host:port and the escaped base path, without a trailing slash.
func URL(scheme, base, path string) string {
	if scheme == "h2c" {
		scheme = "http"
	}
	host := base
	if i := strings.IndexByte(base, '/'); i >= 0 {
		host, path = base[:i], base[i:]+path
	}
	u := url.URL{Scheme: scheme, Host: host} // which escapes the zone of an IPv6 address
	return u.String() + path
}

// NewClient returns a client for upstreams with this scheme: http, https or
// h2c. It goes straight to them, past any proxy, opens a connection for each
// request and follows no redirect. A dial of nil stands for that of net.
func NewClient(scheme string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(scheme != "h2c")
	protocols.SetHTTP2(scheme == "https")
	protocols.SetUnencryptedHTTP2(scheme == "h2c")
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            dial,
			DisableKeepAlives:      true,
			Protocols:              protocols,
			MaxResponseHeaderBytes: maxHeader,
		},
	}
}
