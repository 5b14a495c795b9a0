package sim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

const chatPath = "/v1/chat/completions"

func (e *Engine) do(method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

func (e *Engine) set(t *testing.T, fault string) {
	t.Helper()
	if w := e.do("POST", "/_sim/failures", fault); w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
}

// codes makes n requests and returns their statuses.
func (e *Engine) codes(n int, method, path, body string) string {
	all := make([]int, n)
	for i := range all {
		all[i] = e.do(method, path, body).Code
	}
	return fmt.Sprint(all)
}

func TestFaultStatus(t *testing.T) {
	e := newTestEngine(t, unlimited())
	chat := `{` + longChat + `}`
	e.set(t, `{"status":503,"body":"{\"overloaded\":true}","headers":{"Retry-After":"3"},"count":2}`)
	w := e.do("POST", chatPath, chat)
	if w.Code != 503 || w.Body.String() != `{"overloaded":true}` || w.Header().Get("Retry-After") != "3" {
		t.Error(w.Code, w.Header(), w.Body)
	}
	want(t, e.do("GET", "/_sim/failures", "").Body.String(), map[string]any{"#": 1, "0.count": 1, "0.status": 503})
	if got := e.codes(1, "GET", "/health", "") + e.codes(1, "GET", "/v1/models", "") + e.codes(3, "POST", chatPath, chat); got != "[200][200][503 200 200]" {
		t.Error(got)
	}

	// One for a path, one for all; the later one of the same path counts.
	e.set(t, `{"status":500,"path":"/health"}`)
	e.set(t, `{"status":429}`)
	e.set(t, `{"status":502}`)
	if got := e.codes(2, "GET", "/health", "") + e.codes(1, "GET", "/metrics", "") + e.codes(2, "POST", chatPath, chat); got != "[500 500][200][502 502]" {
		t.Error(got)
	}
	want(t, e.do("POST", chatPath, chat).Body.String(), map[string]any{"error.code": 502, "error.type": "BadGatewayError"})
	if w := e.do("DELETE", "/_sim/failures", ""); w.Code != 204 || e.do("GET", "/_sim/failures", "").Body.String() != "[]\n" {
		t.Error("the faults are not cleared")
	}

	// A series.
	e.set(t, `[{"status":503,"count":1},{"status":429,"count":1},{"headers":{"X-Mark":"1"},"count":1}]`)
	if got := e.codes(2, "POST", chatPath, chat); got != "[503 429]" {
		t.Error(got)
	}
	if w := e.do("POST", chatPath, chat); w.Code != 200 || w.Header().Get("X-Mark") != "1" {
		t.Error(w.Code, w.Header())
	}

	for _, wrong := range []string{
		``, `x`, `{"statuss":503}`, `{"status":99}`, `{"count":-1}`, `{"delay":"2"}`, `{"delay":2}`, `{"delay":"-2s"}`,
		`{"reset":"sometimes"}`, `{"after_tokens":-1}`, `{} {}`, `[{"status":1}]`,
	} {
		w := e.do("POST", "/_sim/failures", wrong)
		if w.Code != 400 || gjson.Get(w.Body.String(), "error.message").String() == "" {
			t.Errorf("%s: %d %s", wrong, w.Code, w.Body)
		}
	}
}

// post starts a request and returns the answer as soon as its headers are there.
func post(ctx context.Context, url, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", url+chatPath, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

func TestFaultDelay(t *testing.T) {
	e, url := serve(t, unlimited())
	for _, tt := range []struct {
		fault, body string
		headers     bool // come before the delay is over
	}{
		{`{"delay":%q}`, `{"stream":true,` + longChat + `}`, true},
		{`{"delay":%q}`, `{` + longChat + `}`, false},
		{`{"delay":%q,"status":500}`, `{` + longChat + `}`, false},
		{`{"delay_headers":%q}`, `{"stream":true,` + longChat + `}`, false},
		{`{"delay_headers":%q}`, `{` + longChat + `}`, false},
	} {
		t.Run(fmt.Sprintf(tt.fault, "d")+tt.body[:15], func(t *testing.T) {
			e.set(t, fmt.Sprintf(tt.fault, "50ms"))
			start := time.Now()
			res, err := post(t.Context(), url, tt.body)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if took := time.Since(start); took < 50*time.Millisecond || err != nil || len(b) == 0 {
				t.Errorf("%d bytes after %v, %v", len(b), took, err)
			}

			// A client that leaves does not wait for the end of a delay.
			e.set(t, fmt.Sprintf(tt.fault, "1h"))
			timeout := 50 * time.Millisecond
			if tt.headers {
				timeout = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			res, err = post(ctx, url, tt.body)
			cancel()
			if err == nil {
				res.Body.Close()
			}
			if (err == nil) != tt.headers {
				t.Errorf("while it is delayed: %v, %v", res, err)
			}
			eventually(t, func() bool { return e.State().Running == 0 })
			idle(t, e)
		})
	}
}

func TestFaultReset(t *testing.T) {
	for _, tt := range []struct {
		fault  string
		stream bool
		words  int // that arrive; -1 for not even headers
		body   bool
	}{
		{`{"reset":"before_headers"}`, true, -1, false},
		{`{"reset":"before_headers","status":500}`, false, -1, false},
		{`{"reset":"after_headers"}`, true, 0, false},
		{`{"reset":"after_headers"}`, false, 0, false},
		{`{"reset":"mid_stream"}`, true, 1, true},
		{`{"reset":"mid_stream","after_tokens":3}`, true, 3, true},
		{`{"reset":"mid_stream","after_tokens":3}`, false, 0, true},
		{`{"reset":"mid_stream","status":503}`, false, 0, true},
	} {
		t.Run(fmt.Sprint(tt.fault, tt.stream), func(t *testing.T) {
			e, url := serve(t, unlimited())
			e.set(t, tt.fault)
			res, err := post(t.Context(), url, fmt.Sprintf(`{"stream":%t,`+longChat+`}`, tt.stream))
			if tt.words < 0 {
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("got %v", err)
				}
				eventually(t, func() bool { return e.State().Running == 0 })
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the body ended with %v", err)
			}
			if words := strings.Count(string(b), `"delta":{"content"`); words != tt.words {
				t.Errorf("%d words came, want %d: %s", words, tt.words, b)
			}
			if (len(b) > 0) != tt.body {
				t.Errorf("the body is %q", b)
			}
			eventually(t, func() bool { return e.State().Running == 0 })
			idle(t, e)
		})
	}
}

// Where the connection is shared, the stream is reset.
func TestFaultResetHTTP2(t *testing.T) {
	e := newTestEngine(t, unlimited())
	srv := httptest.NewUnstartedServer(e)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	e.set(t, `{"reset":"mid_stream","after_tokens":2}`)
	req, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+chatPath, strings.NewReader(`{"stream":true,`+longChat+`}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil || res.ProtoMajor != 2 || strings.Count(string(b), `"delta":{"content"`) != 2 {
		t.Errorf("%s: %v after %s", res.Proto, err, b)
	}
}

func TestRequestsAreRemembered(t *testing.T) {
	e := newTestEngine(t, unlimited())
	body := `{"model":"sim",` + longChat + `}`
	for range 2 {
		e.do("POST", chatPath, body)
	}
	e.do("POST", chatPath, `{"model":"unknown"}`)
	e.do("GET", "/health?x=1", "")
	list := e.do("GET", "/_sim/requests", "").Body.String()
	want(t, list, map[string]any{
		"#": 4, "0.method": "POST", "0.path": chatPath, "0.model": "sim", "0.prompt_tokens": 49, "0.cached_tokens": 0,
		"0.body_length": len(body), "0.body_sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(body))),
		"1.cached_tokens": 48, "2.model": "unknown", "3.path": "/health", "3.query": "x=1",
	})
	for range historySize {
		e.do("GET", "/version", "")
	}
	want(t, e.do("GET", "/_sim/requests", "").Body.String(), map[string]any{"#": historySize, "0.path": "/version"})
	e.do("DELETE", "/_sim/requests", "")
	want(t, e.do("GET", "/_sim/requests", "").Body.String(), map[string]any{"#": 0})
}

func TestCacheIsEmptied(t *testing.T) {
	e := newTestEngine(t, unlimited())
	cached := func() int64 {
		return gjson.Get(e.do("POST", chatPath, `{`+longChat+`}`).Body.String(), "usage.prompt_tokens_details.cached_tokens").Int()
	}
	cached()
	if cached() == 0 {
		t.Error("nothing was cached")
	}
	want(t, e.do("GET", "/_sim/state", "").Body.String(), map[string]any{
		"name": "engine", "models": []any{"sim"}, "running": 0, "waiting": 0, "kv_blocks": 65536, "used_blocks": 0, "cached_blocks": 4,
	})
	if w := e.do("DELETE", "/_sim/cache", ""); w.Code != 204 {
		t.Error(w.Code)
	}
	if n := cached(); n != 0 {
		t.Errorf("%d tokens were still there", n)
	}
	if w := e.do("GET", "/_sim/nothing", ""); w.Code != 404 {
		t.Error(w.Code)
	}
}
