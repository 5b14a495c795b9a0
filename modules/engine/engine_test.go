package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
)

// load runs Caddy with a site of the given directives on an address.
func load(t *testing.T, address, directives string) {
	t.Helper()
	config := fmt.Sprintf("{\n admin off\n persist_config off\n grace_period 1s\n storage file_system %q\n log {\n  output discard\n }\n}\nhttp://%s {\n%s\n}\n",
		t.TempDir(), address, directives)
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(adapted, true); err != nil {
		t.Fatal(err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func request(t *testing.T, method, url, body string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	// A reload closes idle connections: a new one for each request.
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

const chat = `{"messages":[{"role":"user","content":"What is the tallest mountain of the Alps, and who climbed it first? Please name the year."}]`

func TestInCaddy(t *testing.T) {
	address := freeAddress(t)
	url := "http://" + address
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
	const fast = "flexinfer_engine {\n ttft 0\n prefill_tokens_per_second 0\n tokens_per_second 0\n}"
	load(t, address, fast+"\nreverse_proxy 127.0.0.1:1") // the engine comes first

	ask := func() (cached int64, header http.Header) {
		t.Helper()
		res, body, err := request(t, "POST", url+"/v1/chat/completions", chat+`}`)
		// A connection may still be queued at the socket that a reload closes.
		for range 100 {
			if err == nil {
				break
			}
			res, body, err = request(t, "POST", url+"/v1/chat/completions", chat+`}`)
		}
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res, body, err)
		}
		return gjson.Get(body, "usage.prompt_tokens_details.cached_tokens").Int(), res.Header
	}
	_, header := ask()
	if _, port, _ := net.SplitHostPort(address); header.Get("X-Engine-Id") != ":"+port {
		t.Errorf("the engine is called %q", header.Get("X-Engine-Id"))
	}

	// A reload leaves the cache alone, unless it changes the engine.
	load(t, address, "header X-Reload 1\n"+fast)
	if cached, header := ask(); cached == 0 || header.Get("X-Reload") != "1" {
		t.Errorf("after a reload, %d tokens are cached: %v", cached, header)
	}
	load(t, address, strings.Replace(fast, "ttft", "kv_blocks 100\n ttft", 1))
	if cached, _ := ask(); cached != 0 {
		t.Errorf("%d tokens are cached in another engine", cached)
	}

	res, body, err := request(t, "POST", url+"/v1/chat/completions", chat+`,"stream":true}`)
	if err != nil || res.StatusCode != http.StatusOK || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Error(res, body, err)
	}
	for reset, words := range map[string]int{"before_headers": 0, "after_headers": 0, "mid_stream": 3} {
		if res, body, err := request(t, "POST", url+"/_sim/failures", fmt.Sprintf(`{"reset":%q,"after_tokens":3}`, reset)); err != nil || res.StatusCode != 200 {
			t.Fatal(res, body, err)
		}
		_, body, err := request(t, "POST", url+"/v1/chat/completions", chat+`,"stream":true}`)
		if !errors.Is(err, syscall.ECONNRESET) || strings.Count(body, `"delta":{"content"`) != words {
			t.Errorf("%s: %v after %q", reset, err, body)
		}
	}
}

func TestProvision(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	rate := -1.0
	for _, tt := range []struct {
		handler Handler
		err     string
	}{
		{Handler{}, ""},
		{Handler{KVBlocks: -1}, "kv_blocks -1 must be at least 1"},
		{Handler{TokensPerSecond: &rate}, "tokens_per_second -1 must not be negative"},
		{Handler{Models: []string{"a", "a"}}, `model "a" is named twice`},
	} {
		h := tt.handler
		err := h.Provision(ctx)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("got %v, want %q", err, tt.err)
		}
		for range 2 { // Caddy cleans up after a failure too
			if err := h.Cleanup(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Handlers with the same name and settings are one engine.
func TestSharedEngine(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	ctx.Context = context.WithValue(ctx.Context, caddyhttp.ServerCtxKey, &caddyhttp.Server{Listen: []string{":1"}})
	handlers := []*Handler{{}, {}, {Name: "b"}, {Name: ":1"}, {KVBlocks: 5}}
	for _, h := range handlers {
		if err := h.Provision(ctx); err != nil {
			t.Fatal(err)
		}
	}
	same := []bool{true, true, false, true, false}
	for i, h := range handlers {
		if (h.engine == handlers[0].engine) != same[i] {
			t.Errorf("handler %d has an engine of its own: %t", i, same[i])
		}
		if err := h.Cleanup(); err != nil {
			t.Error(err)
		}
	}
}
