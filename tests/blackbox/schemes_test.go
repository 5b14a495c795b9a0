package blackbox

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// An echo is what a server of Go's own saw of a request.
type echo struct {
	Proto, Host, Target, SNI, Body string
	Header                         http.Header
}

func answerEcho(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e := echo{Proto: r.Proto, Host: r.Host, Target: r.RequestURI, Body: string(body), Header: r.Header}
	if r.TLS != nil {
		e.SNI = r.TLS.ServerName
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(e)
}

// echoServer starts a server of one of the schemes, and returns its address.
func echoServer(t *testing.T, scheme string, cert *tls.Certificate) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(answerEcho))
	t.Cleanup(srv.Close)
	switch scheme {
	case "h2c":
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true) // and nothing else
		srv.Config.Protocols = protocols
		srv.Start()
	case "https":
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
		srv.EnableHTTP2 = true
		srv.StartTLS()
	default:
		srv.Start()
	}
	return srv.Listener.Addr().String()
}

// localhostCertificate returns a certificate for localhost, and a file that
// makes it trusted.
func localhostCertificate(t *testing.T) (*tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, path
}

// Upstreams of every scheme, with a base path and headers of their own, stand
// side by side behind one directive.
func TestSchemesAndBasePaths(t *testing.T) {
	t.Parallel()
	cert, ca := localhostCertificate(t)
	plain, h2c, secure := echoServer(t, "http", nil), echoServer(t, "h2c", nil), echoServer(t, "https", cert)
	_, securePort, _ := net.SplitHostPort(secure)
	secureHost := "localhost:" + securePort
	g := harness.Start(t, harness.Config{
		Flexinfer: model("http", "to http://"+plain+"/base/v0 {\n\t\theader Authorization \"Bearer {env.KEY}\"\n\t\theader X-Team red\n\t}") +
			model("h2c", "to h2c://"+h2c+"/b%2Fase") +
			model("https", "to https://"+secureHost+"/eu/"),
		Site: "route {\n\tmetrics /metrics\n\tflexinfer_call\n\treverse_proxy {\n\t\tdynamic flexinfer\n\t\tlb_policy flexinfer\n\t\ttransport flexinfer {\n\t\t\ttls_trust_pool file " + ca + "\n\t\t}\n\t}\n}",
		Env:  []string{"KEY=k-1234"},
	})
	tests := []struct{ model, proto, host, target, sni string }{
		{"http", "HTTP/1.1", "", "/base/v0/v1/chat/completions?x=%2F", ""},
		{"h2c", "HTTP/2.0", "", "/b%2Fase/v1/chat/completions?x=%2F", ""},
		{"https", "HTTP/2.0", secureHost, "/eu/v1/chat/completions?x=%2F", "localhost"},
	}
	for _, tt := range tests {
		body := chatOf(tt.model, strings.Repeat("long ", 50_000))
		res := g.Post(t, "/v1/chat/completions?x=%2F", body, "Authorization", "Bearer the client's")
		got := harness.Decode[echo](t, res.Body)
		if got.Proto != tt.proto || got.Target != tt.target || got.SNI != tt.sni {
			t.Errorf("%s: the upstream saw %s %s, SNI %q", tt.model, got.Proto, got.Target, got.SNI)
		}
		if tt.host != "" && got.Host != tt.host {
			t.Errorf("%s: the upstream saw the host %q, want %q", tt.model, got.Host, tt.host)
		}
		if got.Body != body {
			t.Errorf("%s: the body arrived with %d of %d bytes", tt.model, len(got.Body), len(body))
		}
		want := "Bearer the client's"
		if tt.model == "http" {
			want = "Bearer k-1234"
		}
		if v := got.Header.Values("Authorization"); len(v) != 1 || v[0] != want {
			t.Errorf("%s: the upstream saw Authorization %q, want %q", tt.model, v, want)
		}
		if v := got.Header.Get("X-Team"); (v == "red") != (tt.model == "http") {
			t.Errorf("%s: the upstream saw X-Team %q", tt.model, v)
		}
	}
	// The path and headers of one upstream do not stick to the next request.
	for range 3 {
		res := g.Post(t, "/v1/embeddings", bare("http"))
		if got := harness.Decode[echo](t, res.Body); got.Target != "/base/v0/v1/embeddings" {
			t.Errorf("the upstream saw %s", got.Target)
		}
	}
	g.WaitIdle(t)
}

// Credentials of an upstream are told to nobody else.
func TestUpstreamCredentialsStayHidden(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", "to "+up.Addr+" {\n\t\theader Authorization \"Bearer {env.KEY}\"\n\t}"),
		AccessLog: true, Debug: true, Env: []string{"KEY=s3cr3t-key"},
	})
	res := g.Chat(t, chat("hi"), harness.Debug...)
	if up.Last(t).Header.Get("Authorization") != "Bearer s3cr3t-key" {
		t.Fatal("the upstream did not get its key")
	}
	told := []string{res.String(), res.Header.Get("X-Flexinfer-Route"), string(g.Get(t, "/v1/models").Body), string(g.Get(t, "/metrics").Body)}
	told = append(told, string(g.TryExplain(t, "/v1/chat/completions", chat("hi")).Body))
	told = append(told, string(g.AdminGet(t, "/flexinfer/models").Body))
	told = append(told, g.Logs().Lines()...)
	for _, text := range told {
		if strings.Contains(text, "s3cr3t-key") {
			t.Errorf("the key is told: %.400s", text)
		}
	}
}

// An upstream that is tried after one with a base path gets a path of its own.
func TestRetryWithAnotherBasePath(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "to http://"+harness.FreeAddr(t)+"/dead http://"+up.Addr+"/alive", "routing round-robin")})
	for range 6 {
		g.Chat(t, chat("hi"))
		if got := up.Last(t).Target; got != "/alive/v1/chat/completions" {
			t.Errorf("the upstream got %s", got)
		}
	}
}
