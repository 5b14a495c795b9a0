package harness

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// A Model is one entry of GET /flexinfer/models.
type Model struct {
	Name      string     `json:"name"`
	Aliases   []string   `json:"aliases"`
	Strategy  string     `json:"strategy"`
	State     string     `json:"state"`
	Queued    int        `json:"queued"`
	Endpoints []Endpoint `json:"endpoints"`
}

// An Endpoint is one of a model's endpoints.
type Endpoint struct {
	Address  string `json:"address"`
	Inflight int    `json:"inflight"`
	Reserved int    `json:"reserved"`
}

// An Explanation is the answer of POST /flexinfer/explain.
type Explanation struct {
	Model      string `json:"model"`
	Strategy   string `json:"strategy"`
	KeySource  string `json:"key_source"`
	KeyHash    string `json:"key_hash"`
	Target     string `json:"target"`
	Outcome    string `json:"outcome"`
	Candidates []any  `json:"candidates"`
}

// adminDo makes a request of the admin API. A load replaces its listener too,
// so what is lost is sent again: on a loaded machine several listeners may be
// about to close.
func (g *Gateway) adminDo(tb testing.TB, method, path, body string, headers ...string) *Response {
	tb.Helper()
	var res *Response
	var err error
	for range 10 {
		var req *http.Request
		if req, err = newRequest(tb.Context(), method, g.Admin+path, body, headers...); err != nil {
			tb.Fatal(err)
		}
		if res, err = do(g.Fresh, req); err == nil {
			return res
		}
	}
	tb.Fatalf("%s %s: %v", method, path, err)
	return nil
}

// AdminGet makes a GET request of the admin API.
func (g *Gateway) AdminGet(tb testing.TB, path string) *Response {
	tb.Helper()
	return g.adminDo(tb, http.MethodGet, path, "")
}

// Models returns what GET /flexinfer/models answers.
func (g *Gateway) Models(tb testing.TB) []Model {
	tb.Helper()
	res := g.AdminGet(tb, "/flexinfer/models")
	if res.Status != http.StatusOK {
		tb.Fatalf("GET /flexinfer/models: %s", res)
	}
	return Decode[[]Model](tb, res.Body)
}

// Explain asks where a request would go.
func (g *Gateway) Explain(tb testing.TB, path, body string, headers ...string) Explanation {
	tb.Helper()
	res := g.TryExplain(tb, path, body, headers...)
	if res.Status != http.StatusOK {
		tb.Fatalf("explain %s: %s", path, res)
	}
	return Decode[Explanation](tb, res.Body)
}

// TryExplain is Explain for requests that may be refused.
func (g *Gateway) TryExplain(tb testing.TB, path, body string, headers ...string) *Response {
	tb.Helper()
	return g.adminDo(tb, http.MethodPost, "/flexinfer/explain?path="+url.QueryEscape(path), body, headers...)
}

// Inflight returns how many calls the gateway counts for each endpoint's
// address, reserved and under way.
func (g *Gateway) Inflight(tb testing.TB) map[string]int {
	tb.Helper()
	counts := make(map[string]int)
	for _, m := range g.Models(tb) {
		for _, e := range m.Endpoints {
			counts[e.Address] += e.Inflight + e.Reserved
		}
	}
	return counts
}

// WaitIdle fails the test if a count of calls in flight is not back at 0 in
// two seconds: in the ledger, as the admin API tells, and in the metrics.
func (g *Gateway) WaitIdle(tb testing.TB) {
	tb.Helper()
	var busy string
	idle := Within(2*time.Second, func() bool {
		busy = ""
		for addr, n := range g.Inflight(tb) {
			if n != 0 {
				busy += " " + addr + "=" + strconv.Itoa(n)
			}
		}
		m := g.Metrics(tb)
		for _, name := range []string{"flexinfer_proxy_active_connections", "flexinfer_proxy_upstream_inflight", "flexinfer_proxy_queue_depth"} {
			for _, s := range m.Series(name) {
				if s.Value != 0 {
					busy += " " + s.String()
				}
			}
		}
		return busy == ""
	})
	if !idle {
		tb.Fatalf("after 2 s there are still calls in flight:%s", busy)
	}
}

var goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)

// Goroutines returns how many goroutines the gateway has.
func (g *Gateway) Goroutines(tb testing.TB) int {
	tb.Helper()
	res := g.AdminGet(tb, "/debug/pprof/goroutine?debug=1")
	found := goroutineTotal.FindSubmatch(res.Body)
	if found == nil {
		tb.Fatalf("goroutines: %s", res)
	}
	n, _ := strconv.Atoi(string(found[1]))
	return n
}

var heapInUse = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)

// Heap returns how many bytes the gateway's heap holds after a collection.
func (g *Gateway) Heap(tb testing.TB) int64 {
	tb.Helper()
	res := g.AdminGet(tb, "/debug/pprof/heap?gc=1&debug=1")
	found := heapInUse.FindSubmatch(res.Body)
	if found == nil {
		tb.Fatalf("heap: %s", res)
	}
	n, _ := strconv.ParseInt(string(found[1]), 10, 64)
	return n
}
