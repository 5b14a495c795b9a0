// Package harness starts the built gateway, simulated engines and raw
// upstreams for black-box tests. It imports nothing of the product: what the
// tests see is what a user sees.
package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Environment variables of the tests. None has a prefix that the gateway
// itself looks for.
const (
	// envBinary names a gateway that is built already.
	envBinary = "GATEWAY_BIN"

	// envRace, if not empty, builds the gateway with the race detector. A
	// race that it reports fails the test.
	envRace = "GATEWAY_RACE"
)

var built struct {
	dir string
	mu  sync.Mutex
}

// Binary returns the path of the gateway's binary, which is built once for a
// test run.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, err := Build()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Build is Binary before there is a test.
func Build() (string, error) { return binary() }

var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(envBinary); path != "" {
		return filepath.Abs(path)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "gateway-")
	if err != nil {
		return "", err
	}
	built.mu.Lock()
	built.dir = dir
	built.mu.Unlock()
	path := filepath.Join(dir, "gateway")
	args := []string{"build", "-o", path}
	if os.Getenv(envRace) != "" {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./xcaddy")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the gateway: %w\n%s", err, out)
	}
	return path, nil
})

// Main runs the tests of a package and removes what was built for them. It is
// for TestMain.
func Main(m *testing.M) {
	// A build that fails should be said once, not by each test.
	if _, err := binary(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	RemoveBinary()
	os.Exit(code)
}

// RemoveBinary removes what Binary built.
func RemoveBinary() {
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}

// Root returns the directory of the product's own module.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "xcaddy", "main.go")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no folder above holds xcaddy/main.go")
		}
		dir = parent
	}
}

// environ returns the environment for a process under test: the one of the
// tests without what the gateway would take for its configuration, and extra.
func environ(home string, extra []string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PROXY_") && !strings.HasPrefix(entry, "FLEXINFER_") {
			env = append(env, entry)
		}
	}
	env = append(env,
		"HOME="+home,
		"XDG_DATA_HOME="+filepath.Join(home, "data"),
		"XDG_CONFIG_HOME="+filepath.Join(home, "config"),
	)
	return append(env, extra...)
}
