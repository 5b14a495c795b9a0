package blackbox

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Nothing that a client or an upstream sends passes for the gateway's own word.
func TestZ1_OwnHeadersCannotBeForged(t *testing.T) {
	t.Parallel()
	a := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.Write("HTTP/1.1 200 OK\r\nX-Flexinfer-Route: target=forged\r\nx-flexinfer-route: target=again\r\nContent-Length: 2\r\n\r\n{}")
	})
	b := harness.NewUpstream(t, named("b"))
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", "to "+a.Addr+" {\n\t\theader Authorization \"Bearer ours\"\n\t}") + model("other", to(b)),
	})
	forged := []string{
		"X-Flexinfer-Route", "target=" + b.Addr, "x-flexinfer-route", "target=" + b.Addr, "X-Flexinfer-Target", b.Addr,
		"X-Upstream", b.Addr, "X-Forwarded-Host", b.Addr, "X-Gateway-Destination-Endpoint", b.Addr, "Forwarded", "host=" + b.Addr,
		"X-Forwarded-For", "1.2.3.4", "X-Forwarded-Proto", "https", "X-Real-Ip", "1.2.3.4", "Authorization", "Bearer theirs",
		"Connection", "close, x-model-id, authorization, x-flexinfer-route, x-flexinfer-debug",
	}
	body := strings.TrimSuffix(chat("hi"), "}") + fmt.Sprintf(`,"api_base":"http://%s","base_url":"http://%[1]s","target":%[1]q,"upstream":%[1]q}`, b.Addr)
	for range 10 {
		res := g.Chat(t, body, append([]string{"X-Model-ID", "m"}, forged...)...)
		if got := res.Header.Values("X-Flexinfer-Route"); len(got) != 0 {
			t.Fatalf("a client that did not ask got X-Flexinfer-Route %q", got)
		}
		res = g.Chat(t, body, append([]string{"X-Model-ID", "m", "X-Flexinfer-Debug", "1"}, forged...)...)
		if got := res.Header.Values("X-Flexinfer-Route"); len(got) != 1 || !strings.HasPrefix(got[0], "target="+a.Addr+" ") {
			t.Fatalf("X-Flexinfer-Route is %q", got)
		}
	}
	if b.Connections() != 0 {
		t.Error("the client picked an upstream")
	}
	got := a.Last(t).Header
	if v := got.Values("Authorization"); len(v) != 1 || v[0] != "Bearer ours" {
		t.Errorf("the upstream got Authorization %q", v)
	}
	if v := got.Values("X-Forwarded-For"); len(v) != 1 || v[0] != "127.0.0.1" {
		t.Errorf("the upstream got X-Forwarded-For %q", v)
	}
	if v := got.Get("X-Forwarded-Proto"); v != "http" {
		t.Errorf("the upstream got X-Forwarded-Proto %q", v)
	}
}

// What the gateway judged is what the upstream serves: no path reaches it that
// means another one once somebody cleans it.
func TestZ2_PathTricks(t *testing.T) {
	t.Parallel()
	a, b := harness.NewUpstream(t, named("a")), harness.NewUpstream(t, named("b"))
	g := harness.Start(t, harness.Config{Flexinfer: model("a", to(a)) + model("b", to(b))})
	targets := []string{
		"/model/a/..%2fb/v1/x", "/model/a/../b/v1/x", "/model/..%2f..%2fmetrics", "/model/../metrics", "/model/a%00/", "/model/a%00/v1/x",
		"/model//v1/..", "/model/a//..//admin", "//v1/chat/completions", "/v1//chat/completions", "/model/a/v1/../../admin", "/model/a/v1/%2e%2e/%2e%2e/admin",
		"/model/a/%2e%2e/admin", "/model/a/.%2e/admin", "/model/a/%2e/x", "/MODEL/a/", "/model/A/v1/x", `/model/a\..\admin`, "/model/a/%5c..%5cadmin", "/model/a/v1;x=1/y",
		"/model/a/v1/x;/../admin", "/model/a;b/v1/x", "/model/a/v1/x%2f..%2f..%2fadmin", "/model/a/admin/..", "/model/a/.../x", "/v1/%2e%2e/admin",
		"http://evil.example/model/a/v1/x", "http://evil.example/admin/../v1/x", "/model/%61/v1/x", "/model/a/v1/x?y=../../admin", "/model/a/v1/\xc0\xae\xc0\xae/admin",
		"/model/a/v1/%ff%fe", "/model/a/v1/x#y", "/healthz/../admin", "/metrics/../admin", "/model/b/..%2fa/v1/x", "*",
	}
	for _, target := range targets {
		for _, body := range []string{bare("a"), ""} {
			a.Forget()
			b.Forget()
			conn := g.Dial(t)
			method := "POST"
			if body == "" {
				method = "GET"
			}
			conn.Send(t, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, target, len(body), body))
			res := conn.Response(t)
			if res.Status >= 500 {
				t.Errorf("%s %s: %s", method, target, res)
			}
			for _, r := range b.Requests() {
				if !strings.HasPrefix(target, "/model/b/") {
					t.Errorf("%s %s came to the model b as %s", method, target, r.Target)
				}
			}
			for _, r := range append(a.Requests(), b.Requests()...) {
				got, _, _ := strings.Cut(r.Target, "?")
				if !strings.HasPrefix(got, "/") {
					t.Errorf("%s %s came to an upstream as %s", method, target, r.Target)
					continue
				}
				plain := unescape(got)
				if clean := path.Clean(strings.ReplaceAll(plain, `\`, "/")); strings.HasPrefix(clean, "/admin") || strings.Contains(plain, "\x00") || strings.Contains("/"+plain+"/", "/../") {
					t.Errorf("%s %s came to an upstream as %s, which means %s", method, target, r.Target, clean)
				}
			}
		}
	}
	// A prefix that is stripped takes nothing with it.
	if res := g.Get(t, "/model/a/v1/x%2Fy%20z?q=%2F%2e%2e"); res.Status != http.StatusOK || a.Last(t).Target != "/v1/x%2Fy%20z?q=%2F%2e%2e" {
		t.Errorf("an escaped path came as %s: %s", a.Last(t).Target, res)
	}
}

// unescape decodes %XX, until there is none left.
func unescape(s string) string {
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 || i+2 >= len(s) {
			return s
		}
		var c byte
		if _, err := fmt.Sscanf(s[i+1:i+3], "%02x", &c); err != nil || c == '%' {
			return s
		}
		s = s[:i] + string([]byte{c}) + s[i+3:]
	}
}

// No name of a model leads anywhere that is not configured, or forges a line
// of the log, a header, or a long answer.
func TestZ4_HostileModelNames(t *testing.T) {
	t.Parallel()
	up, trap := harness.NewUpstream(t, nil), harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", to(up), "routing session-affinity"), AccessLog: true, Debug: true,
		Env: []string{"SECRET=s3cr3t-value"},
	})
	names := []string{
		"http://" + trap.Addr + "/", trap.Addr, "//" + trap.Addr, "m@" + trap.Addr, "../../m", "./m", "localhost:6379", "m\r\nX-Evil: 1", "m\n{\"msg\":\"forged\"}",
		"m\x00", "\x00", strings.Repeat("m", 1<<20), "🦊", "{env.SECRET}", "{$SECRET}", "{http.request.host}", "m%00", "m/../m", "\u2028m", "m\ufeff", "<script>", "'; DROP TABLE models;--",
	}
	for _, name := range names {
		shown := name[:min(len(name), 40)]
		lines := len(g.Logs().Entries("handled request"))
		res := g.Post(t, "/v1/chat/completions", chatOf(name, "hi"))
		if res.Status != http.StatusNotFound && res.Status != http.StatusBadRequest {
			t.Errorf("%q: %s", shown, res)
		}
		res.Refusal(t)
		if len(res.Body) > 1024 {
			t.Errorf("%q: the error has %d bytes", shown, len(res.Body))
		}
		if res.Header.Get("X-Evil") != "" || strings.Contains(string(res.Body), "s3cr3t") {
			t.Errorf("%q: %v %s", shown, res.Header, res)
		}
		harness.Eventually(t, harness.Patience, "the request is logged", func() bool { return len(g.Logs().Entries("handled request")) > lines })
		if n := len(g.Logs().Entries("handled request")) - lines; n != 1 {
			t.Errorf("%q: %d lines in the access log", shown, n)
		}
	}
	// The same in every place where a request names a session or a key.
	for _, name := range names {
		if len(name) < 1000 {
			g.Chat(t, `{"model":"m","session_id":`+quote(name)+`,"cache_key":`+quote(name)+`,"prefix":`+quote(name)+`,"user":`+quote(name)+`}`)
			g.Chat(t, bare("m"), "X-Session-ID", printable(name), "X-Request-Id", printable(name), "X-Flexinfer-Cache-Key", printable(name))
			if got := up.Last(t).Header; got.Get("X-Evil") != "" {
				t.Errorf("%q: the upstream got a header that nobody sent", name)
			}
		}
	}
	if trap.Connections() != 0 {
		t.Error("a name led to an address that is not configured")
	}
	for _, line := range g.Logs().Lines() {
		if !strings.HasPrefix(line, "{") || strings.Contains(line, `"msg":"forged"`) && !strings.Contains(line, `\"msg\"`) {
			t.Errorf("a line of the log is %.200q", line)
		}
		if len(line) > 16<<10 {
			t.Errorf("a line of the log has %d bytes: %.200q", len(line), line)
		}
		if strings.Contains(line, "s3cr3t-value") {
			t.Errorf("the log tells a variable of the environment: %.200q", line)
		}
	}
}

// printable leaves out what no header can hold.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
}

// Text that looks like a placeholder is text, wherever it stands.
func TestPlaceholdersInRequestsStayLiteral(t *testing.T) {
	t.Parallel()
	const literal = "{env.SECRET} {$SECRET} {http.request.uri} {file./etc/passwd} {system.hostname}"
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", to(up), "routing prefix"), AccessLog: true, Debug: true,
		Env: []string{"SECRET=s3cr3t-value"},
	})
	body := `{"model":"m","session_id":` + quote(literal) + `,"messages":[{"role":"system","content":` + quote(literal) + `},{"role":"user","content":` + quote(literal) + `}]}`
	res := g.Chat(t, body, "X-Custom", literal, "X-Session-ID", literal, "X-Flexinfer-Debug", "1")
	got := up.Last(t)
	if string(got.Body) != body {
		t.Errorf("the upstream got %q", got.Body)
	}
	if v := got.Header.Get("X-Custom"); v != literal {
		t.Errorf("the upstream got the header %q", v)
	}
	for _, values := range res.Header {
		if strings.Contains(strings.Join(values, " "), "s3cr3t") {
			t.Errorf("the answer has the headers %v", res.Header)
		}
	}
	for _, header := range []string{"X-Model-ID", "X-Session-ID", "X-Flexinfer-Cache-Key"} {
		res := g.Post(t, "/v1/completions", bare("{env.SECRET}"), header, "{env.SECRET}")
		if strings.Contains(res.String(), "s3cr3t") {
			t.Errorf("%s: %s", header, res)
		}
	}
	res = g.Post(t, "/model/%7Benv.SECRET%7D/v1/x", "")
	if res.Status != http.StatusNotFound || strings.Contains(res.String(), "s3cr3t") {
		t.Errorf("a path with a placeholder: %s", res)
	}
	for _, line := range g.Logs().Lines() {
		if strings.Contains(line, "s3cr3t-value") {
			t.Errorf("the log tells a variable of the environment: %.300q", line)
		}
	}
}
