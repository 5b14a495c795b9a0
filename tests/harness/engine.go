package harness

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

// An Engine is a simulated engine: the gateway's binary, run as
// `flexinfer engine`.
type Engine struct {
	*Process
	Addr, URL string
	client    *http.Client
}

// StartEngines starts n simulated engines in one process.
func StartEngines(tb testing.TB, n int, flags ...string) []*Engine {
	tb.Helper()
	return startEngines(tb, n, strings.TrimSuffix(strings.Repeat("127.0.0.1:0,", n), ","), flags...)
}

// StartEngineAt starts a simulated engine with an address of its own, so that
// it can come back after it was killed.
func StartEngineAt(tb testing.TB, addr string, flags ...string) *Engine {
	tb.Helper()
	return startEngines(tb, 1, addr, flags...)[0]
}

func startEngines(tb testing.TB, n int, listen string, flags ...string) []*Engine {
	tb.Helper()
	const announcement = "engine listening on "
	p := startProcess(tb, nil, append([]string{"flexinfer", "engine", "--listen", listen}, flags...)...)
	var engines []*Engine
	client := NewClient(tb)
	Eventually(tb, Patience, "the engines listen", func() bool {
		engines = engines[:0]
		for _, line := range p.logs.Lines() {
			if addr, ok := strings.CutPrefix(line, announcement); ok {
				engines = append(engines, &Engine{Process: p, Addr: addr, URL: "http://" + addr, client: client})
			}
		}
		return len(engines) == n || p.Ended()
	})
	if p.Ended() {
		tb.Fatalf("the engines ended:\n%s", strings.Join(p.logs.Lines(), "\n"))
	}
	return engines
}

// Instant are flags for engines that lose no time.
var Instant = []string{"--ttft", "0", "--prefill-tokens-per-second", "0", "--tokens-per-second", "0"}

// Addrs returns the addresses of engines, as a Caddyfile lists them.
func Addrs(engines []*Engine) string {
	addrs := make([]string, len(engines))
	for i, e := range engines {
		addrs[i] = e.Addr
	}
	return strings.Join(addrs, " ")
}

// Fail sets a fault, in the JSON of the engine's own switches.
func (e *Engine) Fail(tb testing.TB, fault string) {
	tb.Helper()
	e.control(tb, http.MethodPost, "/_sim/failures", fault)
}

// Seen is a request that an engine got.
type Seen struct {
	Path         string      `json:"path"`
	Model        string      `json:"model"`
	Headers      http.Header `json:"headers"`
	PromptTokens int         `json:"prompt_tokens"`
	CachedTokens int         `json:"cached_tokens"`
}

// Seen returns the requests that the engine got for a path.
func (e *Engine) Seen(tb testing.TB, path string) []Seen {
	tb.Helper()
	var seen []Seen
	for _, s := range Decode[[]Seen](tb, e.control(tb, http.MethodGet, "/_sim/requests", "")) {
		if s.Path == path {
			seen = append(seen, s)
		}
	}
	return seen
}

func (e *Engine) control(tb testing.TB, method, path, body string) []byte {
	tb.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(tb.Context()), method, e.URL+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	res, err := do(e.client, req)
	if err != nil || res.Status >= 300 {
		tb.Fatalf("%s %s of an engine: %v %v", method, path, res, err)
	}
	return res.Body
}
