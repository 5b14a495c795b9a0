package direct

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func TestURL(t *testing.T) {
	for _, tt := range []struct{ scheme, base, path, want string }{
		{"http", "a:8000", "/health", "http://a:8000/health"},
		{"https", "[::1]:443", "/v1/models", "https://[::1]:443/v1/models"},
		{"http", "[fe80::1%eth0]:80/b%20c", "/health", "http://[fe80::1%25eth0]:80/b%20c/health"},
		{"h2c", "a:8000/base%2Fb", "/metrics", "http://a:8000/base%2Fb/metrics"},
		{"h2c", "a:8000", "/health?x=1", "http://a:8000/health?x=1"},
	} {
		if got := URL(tt.scheme, tt.base, tt.path); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestClient(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/", http.StatusFound)
		case "/large":
			w.Header().Set("X-Large", strings.Repeat("x", 2*maxHeader))
		}
		w.Header().Set("X-Proto", r.Proto)
	})
	for _, tt := range []struct {
		scheme string
		both   bool // the server speaks both versions
		want   string
	}{
		{"http", false, "HTTP/1.1"},
		{"http", true, "HTTP/1.1"},
		{"h2c", true, "HTTP/2.0"},
		{"https", false, "HTTP/1.1"},
		{"https", true, "HTTP/2.0"},
	} {
		srv := httptest.NewUnstartedServer(handler)
		if tt.scheme == "https" {
			srv.EnableHTTP2 = tt.both
			srv.StartTLS()
		} else {
			srv.Config.Protocols = new(http.Protocols)
			srv.Config.Protocols.SetHTTP1(true)
			srv.Config.Protocols.SetUnencryptedHTTP2(tt.both)
			srv.Start()
		}
		var dials atomic.Int32
		client := NewClient(tt.scheme, func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		})
		if tt.scheme == "https" {
			client.Transport.(*http.Transport).TLSClientConfig = srv.Client().Transport.(*http.Transport).TLSClientConfig
		}
		get := func(path string) (*http.Response, error) {
			res, err := client.Get(URL(tt.scheme, srv.Listener.Addr().String(), path))
			if err == nil {
				res.Body.Close()
			}
			return res, err
		}
		for i := range int32(2) {
			res, err := get("/")
			if err != nil {
				t.Fatalf("%s: %v", tt.scheme, err)
			}
			if got := res.Header.Get("X-Proto"); got != tt.want {
				t.Errorf("%s: the server saw %s, want %s", tt.scheme, got, tt.want)
			}
			if n := dials.Load(); n != i+1 {
				t.Errorf("%s: %d connections for %d requests", tt.scheme, n, i+1)
			}
		}
		if res, err := get("/redirect"); err != nil || res.StatusCode != http.StatusFound {
			t.Errorf("%s: a redirect is followed: %v", tt.scheme, err)
		}
		if _, err := get("/large"); err == nil {
			t.Errorf("%s: a header of %d bytes is read", tt.scheme, 2*maxHeader)
		}
		srv.Close()
	}
	if _, err := NewClient("http", nil).Get("http://127.0.0.1:1/"); err == nil {
		t.Error("nobody answered")
	}
}
