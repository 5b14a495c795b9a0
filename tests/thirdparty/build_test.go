package bypath

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A build with xcaddy has the strategy, and a gateway routes by it.
func TestBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a Caddy")
	}
	bin, caddyVersion := build(t)

	if got := output(t, bin, "version"); !strings.HasPrefix(got, caddyVersion+" ") {
		t.Errorf("caddy version is %q, want %s", got, caddyVersion)
	}
	modules := strings.Split(output(t, bin, "list-modules", "--versions"), "\n")
	for _, want := range []string{
		"flexinfer.strategies.by_path " + ownVersion,
		"flexinfer.strategies.prefix " + gatewayVersion,
		"http.handlers.flexinfer " + gatewayVersion,
	} {
		if !contains(modules, want) {
			t.Errorf("list-modules --versions has no line %q", want)
		}
	}

	g := start(t, bin)
	for _, tc := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Hello"}]}`, g.big},
		{"/v1/embeddings", `{"model":"m","input":"Hello"}`, g.small},
		{"/v1/embeddings", `{"model":"m","input":"Hello again"}`, g.small},
		{"/v1/completions", `{"model":"m","prompt":"Hello"}`, g.big},
	} {
		req, err := http.NewRequest(http.MethodPost, "http://"+g.addr+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Flexinfer-Debug", "1")
		status, header, body := do(t, req)
		route := header.Get("X-Flexinfer-Route")
		if status != http.StatusOK || !strings.Contains(route, "target="+tc.want+" strategy=by-path ") {
			t.Errorf("POST %s: status %d, route %q, want target %s\n%s", tc.path, status, route, tc.want, body)
		}
	}

	// The admin API explains what the strategy would do, and why.
	req, err := http.NewRequest(http.MethodPost, "http://"+g.admin+"/flexinfer/explain?path=/v1/embeddings",
		strings.NewReader(`{"model":"m","input":"Hello"}`))
	if err != nil {
		t.Fatal(err)
	}
	status, _, body := do(t, req)
	if status != http.StatusOK || !strings.Contains(body, `"target":"`+g.small+`"`) || !strings.Contains(body, `"reason":"pool small"`) {
		t.Errorf("explain: status %d\n%s", status, body)
	}
}

// An unknown strategy is refused with the names of those that the build has.
func TestUnknownStrategy(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a Caddy")
	}
	bin, _ := build(t)
	path := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(path, []byte("{\n\tflexinfer {\n\t\trouting by-pth\n\t}\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin, "adapt", "--config", path).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("by-path")) || !bytes.Contains(out, []byte("Caddyfile:3")) {
		t.Errorf("adapt: %v\n%s", err, out)
	}
}

// The versions that the build is told, as a release is told its tag.
const (
	gatewayVersion = "v0.0.1"
	ownVersion     = "v0.0.2"
)

var built struct{ bin, caddyVersion string }

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "thirdparty-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var buildDir string

// build builds a Caddy with the gateway and the strategy, both from this
// repository, in the way a user does: with the xcaddy that the gateway pins.
func build(t *testing.T) (bin, caddyVersion string) {
	t.Helper()
	if built.bin != "" {
		return built.bin, built.caddyVersion
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	own, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	version := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/caddyserver/caddy/v2")
	version.Dir = root
	out, err := version.Output()
	if err != nil {
		t.Fatalf("go list -m: %v", err)
	}
	caddyVersion = strings.TrimSpace(string(out))
	bin = filepath.Join(buildDir, "caddy")
	xcaddy := func(env ...string) ([]byte, error) {
		cmd := exec.Command("go", "tool", "xcaddy", "build", caddyVersion, "--output", bin,
			"--with", "github.com/flexinfer/caddy-flexinfer@"+gatewayVersion+"="+root,
			"--with", "example.com/flexinfer-by-path@"+ownVersion+"="+own)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), env...)
		return cmd.CombinedOutput()
	}
	if out, err = xcaddy(); err != nil && offline(out) {
		t.Logf("the module proxy cannot be reached: building from the modules that are here already")
		cache, _ := exec.Command("go", "env", "GOMODCACHE").Output()
		out, err = xcaddy("GOPROXY=file://"+strings.TrimSpace(string(cache))+"/cache/download", "GOSUMDB=off")
	}
	if err != nil {
		t.Fatalf("xcaddy build: %v\n%s", err, out)
	}
	built.bin, built.caddyVersion = bin, caddyVersion
	return bin, caddyVersion
}

func offline(out []byte) bool {
	for _, sign := range []string{"dial tcp", "no such host", "i/o timeout", "connection refused", "TLS handshake timeout"} {
		if bytes.Contains(out, []byte(sign)) {
			return true
		}
	}
	return false
}

type gateway struct{ addr, admin, big, small string }

// start runs a gateway over two simulated engines.
func start(t *testing.T, bin string) *gateway {
	t.Helper()
	g := &gateway{addr: free(t), admin: free(t), big: free(t), small: free(t)}
	site := func(addr, body string) string {
		_, port, _ := net.SplitHostPort(addr)
		return ":" + port + " {\n\tbind 127.0.0.1\n\t" + body + "\n}\n"
	}
	config := `{
	admin ` + g.admin + `
	persist_config off
	flexinfer {
		model m {
			routing by-path {
				/v1/embeddings small
			}
			to ` + g.big + `
			to ` + g.small + ` {
				label pool small
			}
		}
	}
}
` + site(g.addr, "flexinfer") + site(g.big, "flexinfer_engine {\n\t\tmodel m\n\t}") + site(g.small, "flexinfer_engine {\n\t\tmodel m\n\t}")
	dir := t.TempDir()
	path := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(bin, "run", "--config", path)
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("the gateway wrote:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if res, err := http.Get("http://" + g.addr + "/readyz"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return g
			}
		}
		select {
		case <-done:
			t.Fatal("the gateway ended")
		default:
		}
	}
	t.Fatal("the gateway is not ready after 20 s")
	return nil
}

func free(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func do(t *testing.T, req *http.Request) (int, http.Header, string) {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

func output(t *testing.T, bin string, args ...string) string {
	t.Helper()
	out, err := exec.Command(bin, args...).Output()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

func contains(lines []string, want string) bool {
	for _, line := range lines {
		if strings.TrimSpace(line) == want {
			return true
		}
	}
	return false
}
