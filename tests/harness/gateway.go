package harness

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Config is what of a Caddyfile differs from test to test. Ports, logs and
// the like are filled in.
type Config struct {
	// Flexinfer is what the global option flexinfer holds. Empty: there is
	// no such option.
	Flexinfer string

	// Global is further global options.
	Global string

	// Site is what the site holds. Empty: the directive flexinfer.
	Site string

	// Extra comes after the site.
	Extra string

	// AccessLog turns the site's access log on.
	AccessLog bool

	// TLS makes the site speak HTTP/1.1, 2 and 3 over TLS. It may not change
	// on a reload.
	TLS bool

	// Debug makes the log tell of every decision.
	Debug bool

	// Env is the environment of the process, beside that of the tests.
	Env []string
}

// A Gateway is a running gateway.
type Gateway struct {
	*Process

	// Addr is the address of the site, URL its URL without a slash at the
	// end, and Admin that of the admin API.
	Addr, URL, Admin string

	// Client keeps connections to the gateway open, as SDKs do. Fresh makes
	// one for each request: a reload closes those that are kept, as stock
	// Caddy does, and what is just being sent on one is lost.
	Client, Fresh *http.Client

	port, adminPort int

	tls       *tls.Config // of its clients, nil without TLS
	cert, key string      // paths
}

// Start starts a gateway. It ends with the test.
func Start(tb testing.TB, cfg Config) *Gateway {
	tb.Helper()
	g := newGateway(tb)
	if cfg.TLS {
		g.certify(tb)
	}
	path := filepath.Join(tb.TempDir(), "Caddyfile")
	g.run(tb, path, g.Caddyfile(cfg), "caddyfile", cfg.Env)
	return g
}

// StartJSON starts a gateway with the JSON configuration that config returns
// for the ports that the site and the admin API are to have.
func StartJSON(tb testing.TB, config func(site, admin string) string) *Gateway {
	tb.Helper()
	g := newGateway(tb)
	path := filepath.Join(tb.TempDir(), "config.json")
	g.run(tb, path, config(g.Addr, Loopback(g.adminPort)), "", nil)
	return g
}

// StartCaddyfile starts a gateway with the Caddyfile that config returns for
// the addresses that the site and the admin API are to have.
func StartCaddyfile(tb testing.TB, env []string, config func(site, admin string) string) *Gateway {
	tb.Helper()
	g := newGateway(tb)
	path := filepath.Join(tb.TempDir(), "Caddyfile")
	g.run(tb, path, config(g.Addr, Loopback(g.adminPort)), "caddyfile", env)
	return g
}

func newGateway(tb testing.TB) *Gateway {
	tb.Helper()
	g := &Gateway{port: FreePort(tb), adminPort: FreePort(tb)}
	g.Addr = Loopback(g.port)
	g.URL = "http://" + g.Addr
	g.Admin = "http://" + Loopback(g.adminPort)
	g.Client = NewClient(tb)
	g.Fresh = NewClient(tb)
	g.Fresh.Transport.(*http.Transport).DisableKeepAlives = true
	return g
}

// NewClient returns a client that keeps connections open until the end of the
// test, follows no redirect and asks for no compression.
func NewClient(tb testing.TB) *http.Client {
	transport := &http.Transport{
		MaxIdleConnsPerHost: 512,
		DisableCompression:  true,
		DialContext:         new(net.Dialer).DialContext,
	}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     transport,
		Timeout:       2 * time.Minute, // of a test that hangs
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (g *Gateway) run(tb testing.TB, path, config, adapter string, env []string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	args := []string{"run", "--config", path}
	if adapter != "" {
		args = append(args, "--adapter", adapter)
	}
	g.Process = startProcess(tb, env, args...)
	Eventually(tb, Patience, "the gateway runs", func() bool {
		return g.Ended() || listens(g.Addr) && listens(Loopback(g.adminPort)) && g.configured(tb)
	})
	if g.Ended() {
		tb.Fatalf("the gateway ended:\n%s", strings.Join(g.logs.Lines(), "\n"))
	}
}

// configured reports whether the configuration runs whole: the admin API
// answers before the first one has started.
func (g *Gateway) configured(tb testing.TB) bool {
	req, err := newRequest(tb.Context(), http.MethodGet, g.Admin+"/config/", "")
	if err != nil {
		return false
	}
	res, err := do(g.Fresh, req)
	return err == nil && res.Status == http.StatusOK && strings.HasPrefix(string(res.Body), "{")
}

func listens(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Logs returns what the gateway wrote.
func (g *Gateway) Logs() *Logs { return g.logs }

// Caddyfile returns the whole Caddyfile of cfg for this gateway's ports.
func (g *Gateway) Caddyfile(cfg Config) string {
	var b strings.Builder
	level := "INFO"
	if cfg.Debug {
		level = "DEBUG"
	}
	fmt.Fprintf(&b, "{\n\tadmin %s\n\tpersist_config off\n\tauto_https off\n", Loopback(g.adminPort))
	fmt.Fprintf(&b, "\tlog {\n\t\toutput stderr\n\t\tformat json\n\t\tlevel %s\n\t}\n", level)
	if !cfg.Debug {
		// net/http tells of panics in handlers at the level debug only.
		b.WriteString("\tlog stdlib {\n\t\toutput stderr\n\t\tformat json\n\t\tlevel DEBUG\n\t\tinclude http.stdlib\n\t}\n")
	}
	if !strings.Contains(cfg.Global, "grace_period") {
		b.WriteString("\tgrace_period 2s\n")
	}
	if !strings.Contains(cfg.Global, "shutdown_delay") {
		b.WriteString("\tshutdown_delay 0s\n")
	}
	b.WriteString(indent(cfg.Global, 1))
	if cfg.Flexinfer != "" {
		b.WriteString("\tflexinfer {\n" + indent(cfg.Flexinfer, 2) + "\t}\n")
	}
	fmt.Fprintf(&b, "}\n:%d {\n\tbind 127.0.0.1\n", g.port)
	if cfg.TLS {
		fmt.Fprintf(&b, "\ttls %s %s\n", g.cert, g.key)
	}
	if cfg.AccessLog {
		b.WriteString("\tlog\n")
	}
	site := cfg.Site
	if site == "" {
		site = "flexinfer"
	}
	b.WriteString(indent(site, 1) + "}\n" + cfg.Extra + "\n")
	return b.String()
}

// indent indents the lines of a part of a Caddyfile, so that a failing test
// shows a file that can be read.
func indent(text string, depth int) string {
	var b strings.Builder
	for line := range strings.Lines(strings.Trim(text, "\n")) {
		b.WriteString(strings.Repeat("\t", depth) + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}

// Load gives the admin API a configuration, also if it is the same as before,
// and returns its answer.
func (g *Gateway) Load(tb testing.TB, contentType, config string) *Response {
	tb.Helper()
	return g.adminDo(tb, http.MethodPost, "/load", config, "Content-Type", contentType, "Cache-Control", "must-revalidate")
}

// Reload replaces the configuration, and waits until the listener of the one
// before is closed: what would connect to it is lost, as with stock Caddy.
func (g *Gateway) Reload(tb testing.TB, cfg Config) {
	tb.Helper()
	// A server that shuts down closes its listener first, then what is idle.
	wait := g.Idle(tb)
	if res := g.Load(tb, "text/caddyfile", g.Caddyfile(cfg)); res.Status != http.StatusOK {
		tb.Fatalf("reload: %s", res)
	}
	wait()
	g.Client.CloseIdleConnections()
}

// Adapt returns cfg as JSON.
func (g *Gateway) Adapt(tb testing.TB, cfg Config) []byte {
	tb.Helper()
	out, err := Command(tb, g.Caddyfile(cfg), cfg.Env, "adapt", "--adapter", "caddyfile", "--config")
	if err != nil {
		tb.Fatalf("adapt: %v\n%s", err, out.Stderr)
	}
	return []byte(out.Stdout)
}

// Output is what a command wrote.
type Output struct{ Stdout, Stderr string }

// Command runs a command of the gateway's binary to its end, with the path of
// a file named Caddyfile that holds caddyfile as its last argument.
func Command(tb testing.TB, caddyfile string, env []string, args ...string) (Output, error) {
	tb.Helper()
	dir := tb.TempDir()
	path := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(path, []byte(caddyfile), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(Binary(tb), append(args, path)...)
	cmd.Dir = dir
	cmd.Env = environ(dir, env)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return Output{stdout.String(), stderr.String()}, err
}

// do makes a request and reads the answer to its end.
func do(client *http.Client, req *http.Request) (*Response, error) {
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return &Response{Status: res.StatusCode, Header: res.Header, Body: body}, err
}
