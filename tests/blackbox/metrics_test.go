package blackbox

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// families are the metrics of the parts that exist, with their labels: what
// dashboards and alerts rely on.
var families = map[string][]string{
	"flexinfer_proxy_requests_total":                          {"model", "status"},
	"flexinfer_proxy_upstream_retries_total":                  {"model", "reason"},
	"flexinfer_proxy_request_duration_seconds":                {"model"},
	"flexinfer_proxy_active_connections":                      {"model"},
	"flexinfer_proxy_endpoint_changes_total":                  {"change_type", "model"},
	"flexinfer_proxy_endpoint_count":                          {"model"},
	"flexinfer_proxy_routing_decisions_total":                 {"key_source", "model", "outcome", "strategy"},
	"flexinfer_proxy_routing_target_hits_total":               {"model", "strategy", "target"},
	"flexinfer_proxy_routing_key_cardinality":                 {"key_source", "model", "strategy"},
	"flexinfer_proxy_routing_key_cardinality_overflow_total":  {"key_source", "model", "strategy"},
	"flexinfer_proxy_request_prompt_tokens":                   {"model"},
	"flexinfer_proxy_request_completion_tokens":               {"model"},
	"flexinfer_proxy_completions_total":                       {"model", "stream"},
	"flexinfer_proxy_prompt_tokens_total":                     {"model"},
	"flexinfer_proxy_cached_prompt_tokens_total":              {"model"},
	"flexinfer_proxy_least_loaded_reservations_total":         {"model"},
	"flexinfer_proxy_least_loaded_reservations_expired_total": {"model"},
	"flexinfer_proxy_upstream_inflight":                       {"model", "target"},
	"flexinfer_proxy_upstream_healthy":                        {"model", "target"},
	"flexinfer_proxy_max_tokens_clamped_total":                {"model", "reason"},
	"flexinfer_proxy_time_to_first_token_seconds":             {"model"},
}

func TestMetricNamesAndLabels(t *testing.T) {
	t.Parallel()
	engines := harness.StartEngines(t, 2, harness.Instant...)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("sim", "to "+harness.FreeAddr(t)+" "+harness.Addrs(engines), "routing prefix") +
			model("even", "to "+harness.Addrs(engines), "routing least-loaded"),
	})
	for i := range 20 {
		question := fmt.Sprintf("chat %d: %s", i, strings.Repeat("How long is a block of tokens? ", 10))
		body := strings.TrimSuffix(chatOf("sim", question), "}")
		g.Chat(t, body+"}")
		g.Chat(t, body+`,"stream":true,"stream_options":{"include_usage":true}}`)
	}
	g.Post(t, "/v1/completions", bare("even"))
	m := g.Metrics(t)
	for name, labels := range families {
		series := m.Series(name)
		if len(series) == 0 {
			t.Errorf("%s is not there", name)
			continue
		}
		for _, s := range series {
			if got := slices.Sorted(maps.Keys(s.Labels)); !slices.Equal(got, labels) {
				t.Errorf("%s has the labels %v, want %v", s, got, labels)
			}
		}
	}
	for name := range m {
		if strings.HasPrefix(name, "flexinfer_") && families[name] == nil && m[name].GetHelp() == "" {
			t.Errorf("%s has no help text", name)
		}
	}
	for name, want := range map[string]float64{
		"flexinfer_proxy_endpoint_count":                          3,
		"flexinfer_proxy_completions_total":                       40,
		"flexinfer_proxy_request_prompt_tokens":                   40,
		"flexinfer_proxy_request_completion_tokens":               40,
		"flexinfer_proxy_time_to_first_token_seconds":             20,
		"flexinfer_proxy_routing_key_cardinality":                 20,
		"flexinfer_proxy_request_duration_seconds":                40,
		"flexinfer_proxy_routing_key_cardinality_overflow_total":  0,
		"flexinfer_proxy_active_connections":                      0,
		"flexinfer_proxy_least_loaded_reservations_expired_total": 0,
	} {
		if got := m.Value(name, "model", "sim"); got != want {
			t.Errorf("%s of sim is %v, want %v", name, got, want)
		}
	}
	if got := m.Value("flexinfer_proxy_requests_total", "model", "sim", "status", "success"); got != 40 {
		t.Errorf("requests_total{status=success} is %v", got)
	}
	if m.Value("flexinfer_proxy_cached_prompt_tokens_total", "model", "sim") == 0 {
		t.Error("no cached tokens were counted, though each prompt came twice")
	}
}

// Buckets may be extended upward and never changed.
func TestHistogramBuckets(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.Respond(http.StatusOK, "application/json", `{"usage":{"prompt_tokens":1,"completion_tokens":1}}`)
	})
	g := serve(t, "", up)
	g.Chat(t, chat("hi"))
	m := g.Metrics(t)
	tokens := []float64{16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}
	seconds := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	for name, want := range map[string][]float64{
		"flexinfer_proxy_request_duration_seconds":    seconds,
		"flexinfer_proxy_time_to_first_token_seconds": seconds,
		"flexinfer_proxy_request_prompt_tokens":       tokens,
		"flexinfer_proxy_request_completion_tokens":   tokens,
	} {
		got := m.Buckets(name, "model", "m")
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%s has the buckets %v, want %v at first", name, got, want)
		}
	}
	if got := m.Buckets("flexinfer_proxy_time_to_first_token_seconds", "model", "m"); !slices.Contains(got, 600) {
		t.Errorf("time_to_first_token_seconds has the buckets %v, want them up to 600", got)
	}
}

// No string of a client becomes a label: the number of series grows by a
// constant, however many names are tried.
func TestM1_ClientStringsAreNoLabels(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("real", to(up), "routing prefix", "alias other-name"),
		Global:    "servers {\n\tmax_header_size 300KB\n}",
	})
	g.Post(t, "/v1/completions", bare("real"))
	g.Post(t, "/v1/completions", bare("nobody"))
	g.Post(t, "/v1/completions", bare("real"), "X-Session-ID", "1", "X-Flexinfer-Cache-Key", "1")
	before := g.Metrics(t)

	odd := []string{"Real", "REAL", "real ", `a"b`, "a\nb", "a\\", "\xff\xfe", strings.Repeat("x", 100<<10), "", "{}", "real\x00", "ключ", "other-name"}
	inParallel(t, 8, 5000, func(ctx context.Context, i int) error {
		name := fmt.Sprint("model-", i)
		if i < len(odd) {
			name = odd[i]
		}
		var err error
		switch i % 6 {
		case 0:
			_, err = g.Try(ctx, http.MethodPost, "/v1/completions", bare(name))
		case 1:
			_, err = g.Try(ctx, http.MethodPost, "/v1/completions", "", "X-Model-ID", fmt.Sprint("model-", i))
		case 2:
			_, err = g.Try(ctx, http.MethodPost, "/model/"+escape(name)+"/v1/completions", bare("real"))
		case 3:
			_, err = g.Try(ctx, http.MethodPost, fmt.Sprint("/path/", i), bare("real"), "X-Session-ID", fmt.Sprint(i))
		case 4:
			_, err = g.Try(ctx, fmt.Sprint("FOO", i), "/v1/completions", bare("real"), "X-Flexinfer-Cache-Key", fmt.Sprint(i))
		default:
			req, e := g.NewRequest(ctx, http.MethodPost, "/v1/completions?model="+fmt.Sprint(i), bare("real"), "X-Forwarded-Host", fmt.Sprint(i))
			if e != nil {
				return e
			}
			req.Host = fmt.Sprintf("host-%d.example", i)
			res, e := g.Client.Do(req)
			if e == nil {
				_ = res.Body.Close()
			}
			err = e
		}
		return err
	})

	after := g.Metrics(t)
	if grew := after.Own() - before.Own(); grew > 10 {
		t.Errorf("%d series came with 5000 requests", grew)
	}
	names := make(map[string]bool)
	for name := range families {
		for _, s := range after.Series(name) {
			names[s.Labels["model"]] = true
		}
	}
	if len(names) != 2 || !names["real"] {
		t.Errorf("the values of the label model are %v, want real and one for all others", slices.Collect(maps.Keys(names)))
	}
	delete(names, "real")
	for unknown := range names {
		if n := after.Value("flexinfer_proxy_requests_total", "model", unknown, "status", "error"); n < 1500 {
			t.Errorf("%v requests for unknown models are errors, want thousands", n)
		}
		for _, status := range []string{"success", "upstream_error", "client_closed"} {
			if n := after.Value("flexinfer_proxy_requests_total", "model", unknown, "status", status); n != 0 {
				t.Errorf("%v requests for unknown models count as %s", n, status)
			}
		}
	}
}

// The number of distinct keys is told up to a cap, and the cap is told once.
func TestKeyCardinality(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	send := func(from, n int) {
		inParallel(t, 3, n, func(ctx context.Context, i int) error {
			_, err := g.Try(ctx, http.MethodPost, "/v1/completions", bare("m"), "X-Flexinfer-Cache-Key", fmt.Sprint("k", from+i))
			return err
		})
	}
	labels := []string{"model", "m", "strategy", "prefix", "key_source", "explicit-header"}
	check := func(keys, overflow float64) {
		t.Helper()
		m := g.Metrics(t)
		if got := m.Value("flexinfer_proxy_routing_key_cardinality", labels...); got != keys {
			t.Errorf("routing_key_cardinality is %v, want %v", got, keys)
		}
		if got := m.Value("flexinfer_proxy_routing_key_cardinality_overflow_total", labels...); got != overflow {
			t.Errorf("routing_key_cardinality_overflow_total is %v, want %v", got, overflow)
		}
	}
	send(0, 100)
	send(50, 100)
	check(150, 0)
	send(0, 4500)
	check(4096, 1)
	send(4000, 1000)
	check(4096, 1)
}

// The series of an endpoint, and those of a model, go with it, at the next turn
// of the ledger at the latest. All others stay, and never go back.
func TestSeriesOfWhatIsGoneGo(t *testing.T) {
	t.Parallel()
	const ledger = "ledger {\n\tbucket 100ms\n}\n"
	a, b := harness.NewUpstream(t, nil), harness.NewUpstream(t, nil)
	both := harness.Config{Flexinfer: ledger + model("m", to(a, b)) + model("gone", to(a))}
	g := harness.Start(t, both)
	for range 10 {
		g.Post(t, "/v1/completions", bare("m"))
		g.Post(t, "/v1/completions", bare("gone"))
	}
	before := g.Metrics(t)
	for _, name := range []string{"flexinfer_proxy_routing_target_hits_total", "flexinfer_proxy_upstream_inflight"} {
		if len(before.Series(name, "model", "m", "target", b.Addr)) == 0 {
			t.Errorf("%s of %s is not there", name, b.Addr)
		}
	}
	g.Reload(t, harness.Config{Flexinfer: ledger + model("m", to(a))})
	g.Post(t, "/v1/completions", bare("m"))
	var left []string
	if !harness.Within(harness.Patience, func() bool {
		left = nil
		m := g.Metrics(t)
		for name := range m {
			for _, s := range m.Series(name) {
				if s.Labels["target"] == b.Addr || s.Labels["model"] == "gone" {
					left = append(left, s.String())
				}
			}
		}
		return len(left) == 0
	}) {
		t.Errorf("still there: %v", left)
	}
	after := g.Metrics(t)
	if got, want := after.Value("flexinfer_proxy_routing_target_hits_total", "target", a.Addr, "model", "m"), 6.0; got != want {
		t.Errorf("target_hits_total of the endpoint that stays is %v, want %v", got, want)
	}
	if got, want := after.Value("flexinfer_proxy_requests_total", "model", "m", "status", "success"), 11.0; got != want {
		t.Errorf("requests_total is %v, want %v", got, want)
	}
	if got := after.Value("flexinfer_proxy_endpoint_count", "model", "m"); got != 1 {
		t.Errorf("endpoint_count is %v", got)
	}
	changes := func(added, removed float64) {
		t.Helper()
		harness.Eventually(t, harness.Patience, fmt.Sprintf("%v endpoints were added and %v removed", added, removed), func() bool {
			m := g.Metrics(t)
			const name = "flexinfer_proxy_endpoint_changes_total"
			return m.Value(name, "model", "m", "change_type", "added") == added && m.Value(name, "model", "m", "change_type", "removed") == removed
		})
	}
	changes(2, 1)
	for range 3 { // that change nothing
		g.Reload(t, harness.Config{Flexinfer: ledger + model("m", to(a))})
	}
	changes(2, 1)
	g.Reload(t, both)
	changes(3, 1)
	if got := g.Metrics(t).Value("flexinfer_proxy_endpoint_count", "model", "m"); got != 2 {
		t.Errorf("with the endpoint back endpoint_count is %v", got)
	}
}
