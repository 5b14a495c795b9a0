package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Bodies that name no model, or cannot: refused at once, in OpenAI's shape, and
// never sent anywhere.
func TestB11_WrongModelTypes(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	bodies := []string{
		`{"model":null}`, `{"model":1}`, `{"model":true}`, `{"model":[]}`, `{"model":{}}`, `{"model":["m"]}`,
		`{"model":""}`, `{"model":" "}`, `{}`, `{"messages":[]}`, `{"MODEL":"m"}`, `{"Model":"m"}`,
		`[]`, `[{"model":"m"}]`, `null`, `"m"`, `1`, ` `,
		`{`, `{"model":"m"`, `{"model":"m"}}`, `{"model":"m"} x`, `{"model":"m"}{"model":"m"}`, `{"model":'m'}`, `{model:"m"}`,
		`{"model":"m",}x`, "{\"model\":\"m\x01", `not json`, "\x00\x01\x02",
		`{"a":` + strings.Repeat("[", 100_000) + `,"model":"m"`,
		`{"model":"m","model":null}`, `{"model":"m","model":7}`,
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
		for _, body := range bodies {
			res := g.Post(t, path, body)
			if res.Status != http.StatusBadRequest {
				t.Errorf("%.60q: %s", body, res)
				continue
			}
			if e := res.Refusal(t); e.Error.Type != "invalid_request_error" {
				t.Errorf("%.60q: error type %q", body, e.Error.Type)
			}
		}
	}
	if n := up.Connections(); n != 0 {
		t.Errorf("the upstream was dialled %d times", n)
	}
	g.WaitIdle(t)
}

// Of several keys the last one with the exact case counts, as a JSON library
// would have it.
func TestB11_DuplicateModelKeys(t *testing.T) {
	t.Parallel()
	a, b := harness.NewUpstream(t, named("a")), harness.NewUpstream(t, named("b"))
	g := harness.Start(t, harness.Config{Flexinfer: model("a", to(a)) + model("b", to(b))})
	tests := []struct{ body, want string }{
		{`{"model":"a","model":"b"}`, "b"},
		{`{"model":"b","x":{"model":"z"},"model":"a"}`, "a"},
		{`{"model":"a","Model":"b"}`, "a"},
		{`{"MODEL":"b","model":"a","mOdel":"b"}`, "a"},
		{`{"x":[{"model":"b"}],"model":"a"}`, "a"},
		{`{"mod\u0065l":"b"}`, "b"},
		{`{"model":"\u0061"}`, "a"},
		{`{"model":"x","model":"a"}`, "a"},
	}
	for _, tt := range tests {
		res := g.Post(t, "/v1/chat/completions", tt.body)
		if res.Status == http.StatusBadRequest {
			continue // the other answer that is allowed
		}
		if got := upstreamOf(t, res); got != tt.want {
			t.Errorf("%s went to %q, want %q", tt.body, got, tt.want)
		}
	}
}

func TestB12_LeadingByteOrderMark(t *testing.T) {
	t.Parallel()
	up, other := harness.NewUpstream(t, nil), harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("other", to(other)) + model("m", to(up))})
	for _, contentType := range []string{"application/json", "text/plain"} {
		body := "\xef\xbb\xbf" + chat("hi")
		res := g.Post(t, "/v1/chat/completions", body, "Content-Type", contentType)
		switch res.Status {
		case http.StatusBadRequest:
			res.Refusal(t)
		case http.StatusOK:
			if got := up.Last(t); string(got.Body) != body {
				t.Errorf("the upstream got %q", got.Body)
			}
		default:
			t.Errorf("the answer is %s", res)
		}
	}
	if other.Connections() != 0 {
		t.Error("the first model was taken for a default")
	}
}

// A file that looks like a form field of its own.
var trickyFile = "RIFF\r\n--xyzzy\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nother\r\n--xyzz" + strings.Repeat("\x00\xffaudio", 5<<20/7)

// form returns a multipart body of parts, each a name and a value; a file has
// the name file.
func form(boundary string, parts ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(parts); i += 2 {
		b.WriteString("--" + boundary + "\r\nContent-Disposition: form-data; name=\"" + parts[i] + `"`)
		if parts[i] == "file" {
			b.WriteString("; filename=\"a.wav\"\r\nContent-Type: audio/wav")
		}
		b.WriteString("\r\n\r\n" + parts[i+1] + "\r\n")
	}
	return b.String() + "--" + boundary + "--\r\n"
}

func TestB7_MultipartForms(t *testing.T) {
	t.Parallel()
	up, other := harness.NewUpstream(t, nil), harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + model("other", to(other))})
	const boundary = "8f0c42"
	quoted, plain := `multipart/form-data; boundary="`+boundary+`"`, "multipart/form-data; boundary="+boundary
	tests := []struct {
		name, contentType, header, body string
		status                          int
	}{
		{"model first", plain, "", form(boundary, "model", "m", "file", trickyFile), 200},
		{"model last", plain, "", form(boundary, "file", trickyFile, "model", "m"), 200},
		{"quoted boundary", quoted, "", form(boundary, "file", trickyFile, "model", "m"), 200},
		{"odd case", "Multipart/Form-Data; Boundary=" + boundary, "", form(boundary, "file", "x", "model", " m "), 200},
		{"twice, the same", plain, "", form(boundary, "model", "m", "file", "x", "model", "m"), 200},
		{"twice, not the same", plain, "", form(boundary, "model", "other", "file", "x", "model", "m"), 400},
		{"absent", plain, "", form(boundary, "file", trickyFile), 400},
		{"absent, with header", plain, "m", form(boundary, "file", trickyFile), 200},
		{"empty", plain, "", form(boundary, "model", "", "file", "x"), 400},
		{"no boundary", "multipart/form-data", "", form(boundary, "model", "m"), 400},
		{"cut off", plain, "", form(boundary, "file", "x", "model", "m")[:60], 400},
		{"unknown", plain, "", form(boundary, "model", "z"), 404},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up.Forget()
			headers := []string{"Content-Type", tt.contentType}
			if tt.header != "" {
				headers = append(headers, "X-Model-ID", tt.header)
			}
			res := g.Post(t, "/v1/audio/transcriptions", tt.body, headers...)
			if res.Status != tt.status {
				t.Fatalf("the answer is %s, want %d", res, tt.status)
			}
			if tt.status != http.StatusOK {
				res.Refusal(t)
				if up.Served() != 0 {
					t.Error("a refused form was sent on")
				}
				return
			}
			got := up.Last(t)
			if got.Length != int64(len(tt.body)) || got.Sum != sum(tt.body) {
				t.Errorf("the upstream got other %d bytes, the client sent %d", got.Length, len(tt.body))
			}
			if ct := got.Header.Get("Content-Type"); ct != tt.contentType {
				t.Errorf("the upstream got the type %q", ct)
			}
		})
	}
	if n := other.Connections(); n != 0 {
		t.Errorf("what a file holds was taken for a field: %d requests for the other model", n)
	}
	g.WaitIdle(t)
}

// An error has the shape that the caller's API gives it.
func TestErrorShapes(t *testing.T) {
	t.Parallel()
	g := serve(t, "", harness.NewUpstream(t, nil))
	tests := []struct{ path, want string }{
		{"/v1/chat/completions", `{"error":{"message":"`},
		{"/v1/embeddings", `{"error":{"message":"`},
		{"/v1/messages", `{"type":"error","error":{"type":"not_found_error","message":"`},
		{"/api/chat", `{"error":"`},
	}
	for _, tt := range tests {
		res := g.Post(t, tt.path, `{"model":"nobody"}`)
		if res.Status != http.StatusNotFound || !strings.HasPrefix(string(res.Body), tt.want) {
			t.Errorf("%s: %s", tt.path, res)
		}
		if cl := res.Header.Get("Content-Length"); cl != fmt.Sprint(len(res.Body)) {
			t.Errorf("%s: Content-Length %q of %d bytes", tt.path, cl, len(res.Body))
		}
	}
	e := g.Post(t, "/v1/chat/completions", `{"model":"nobody"}`).Refusal(t)
	if e.Error.Type != "not_found_error" || e.Error.Code != "model_not_found" || e.Error.Param != "model" {
		t.Errorf("an unknown model is refused with %+v", e.Error)
	}
	e = g.Post(t, "/v1/chat/completions", `{"messages":[]}`).Refusal(t)
	if e.Error.Type != "invalid_request_error" || e.Error.Code != "missing_required_field" || e.Error.Param != "" {
		t.Errorf("no model is refused with %+v", e.Error)
	}
}

// Refusals are the gateway's own: error routes are for other errors.
func TestHandleErrorsIsNotRunForRefusals(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", "to "+harness.FreeAddr(t)),
		Site:      "flexinfer\nhandle_errors {\n\trespond caught 418\n}",
	})
	for body, status := range map[string]int{bare("nobody"): 404, `{`: 400, bare("m"): 502} {
		if res := g.Post(t, "/v1/chat/completions", body); res.Status != status {
			t.Errorf("%s: %s", body, res)
		} else {
			res.Refusal(t)
		}
	}
}
