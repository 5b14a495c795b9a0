package harness

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
)

// Protocols are the versions of HTTP that a gateway with TLS speaks.
var Protocols = []string{"HTTP/1.1", "HTTP/2", "HTTP/3"}

// serverName is the name in the gateway's certificate.
const serverName = "gateway.test"

// certify makes the gateway's certificate, which its clients trust, and writes
// it beside its key into a directory of the test.
func (g *Gateway) certify(tb testing.TB) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: serverName},
		DNSNames:     []string{serverName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	g.cert, g.key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{
		g.cert: {Type: "CERTIFICATE", Bytes: cert},
		g.key:  {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(cert)
	if err != nil {
		tb.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	g.tls = &tls.Config{RootCAs: roots, ServerName: serverName}
	g.URL = "https://" + g.Addr
	for _, client := range []*http.Client{g.Client, g.Fresh} {
		client.Transport.(*http.Transport).TLSClientConfig = g.tls.Clone()
	}
}

// NewProtocolClient returns a client of its own that speaks one version of
// HTTP to a gateway with TLS, and what cuts all its connections: by a reset, or
// over HTTP/3 by closing them.
func (g *Gateway) NewProtocolClient(tb testing.TB, protocol string) (client *http.Client, cut func()) {
	tb.Helper()
	client = NewClient(tb)
	if protocol == "HTTP/3" {
		transport := &http3.Transport{TLSClientConfig: g.tls.Clone(), DisableCompression: true}
		client.Transport = transport
		cut = func() { _ = transport.Close() }
		tb.Cleanup(cut)
		return client, cut
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(protocol == "HTTP/1.1")
	protocols.SetHTTP2(protocol == "HTTP/2")
	conns := new(conns)
	transport := client.Transport.(*http.Transport)
	transport.Protocols = protocols
	transport.TLSClientConfig = g.tls.Clone()
	transport.DialContext = conns.dial
	return client, conns.reset
}

// DoWith makes a request with a client and reads the answer to its end.
func DoWith(client *http.Client, req *http.Request) (*Response, error) { return do(client, req) }

// Idle opens a connection, has one request served on it, and returns what
// waits until the gateway closes it.
func (g *Gateway) Idle(tb testing.TB) (wait func()) {
	tb.Helper()
	var conn net.Conn
	var br *bufio.Reader
	var err error
	for range connects {
		if conn, err = net.DialTimeout("tcp", g.Addr, Patience); err != nil {
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(Patience))
		if g.tls != nil {
			conn = tls.Client(conn, g.tls.Clone())
		}
		br = bufio.NewReader(conn)
		if err = getHealthz(conn, br); err == nil {
			break
		}
		_ = conn.Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return func() {
		tb.Helper()
		if _, err := br.ReadByte(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			tb.Fatalf("the gateway does not close what is idle: %v", err)
		}
		_ = conn.Close()
	}
}

// getHealthz has one request served on a connection.
func getHealthz(conn net.Conn, br *bufio.Reader) error {
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}

// Resend is a transport that sends a request once more, on a connection of its
// own, if that of the first try was lost before any of the answer came. This
// happens to what is just being sent when a reload closes idle connections. A
// connection that could not even be made, because its listener was closed
// before it was accepted, is made anew: a reload opens a listener beside the
// other and then closes one of them, also if it fails.
type Resend struct{ *http.Transport }

// RoundTrip implements [http.RoundTripper].
func (r Resend) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := r.Transport.RoundTrip(req)
	if err == nil || req.Context().Err() != nil || req.Body != nil && req.GetBody == nil {
		return res, err
	}
	fresh := r.Transport.Clone()
	fresh.DisableKeepAlives = true
	for range connects {
		again := req.Clone(req.Context())
		if req.GetBody != nil {
			if again.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		var made atomic.Bool
		res, err = fresh.RoundTrip(again.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { made.Store(true) },
		})))
		if err == nil || made.Load() || req.Context().Err() != nil {
			break
		}
	}
	return res, err
}

// connects is how often a connection is made that is lost before it is
// accepted. One reload follows another in these tests, and on a loaded machine
// a connection can meet several closing listeners.
const connects = 5

var _ http.RoundTripper = Resend{}
