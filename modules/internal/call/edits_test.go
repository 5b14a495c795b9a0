package call

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/key"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// specs is a source that never changes.
type specs []routing.Spec

func (s specs) Models() ([]routing.Model, <-chan struct{}) {
	return []routing.Model{{Endpoints: s}}, nil
}

// editCase is a request to a model with the alias "alias" and the adapter
// "lora", whose endpoint knows it by the name upstream if that is not empty.
// NAME stands for the declared name.
type editCase struct {
	name       string
	path       string // /v1/chat/completions if empty
	upstream   string
	sent, want string
	clamped    string // what the header says
	hides      bool
	renamed    string // the name in the answer, if it is to be changed
}

var editCases = []editCase{
	// The model's name.
	{name: "declared", sent: `{"model":"NAME"}`, want: `{"model":"NAME"}`},
	{name: "alias", sent: `{ "model" : "alias" , "x":1.0}`, want: `{ "model" : "NAME" , "x":1.0}`, renamed: "alias"},
	{name: "adapter", sent: `{"model":"lora"}`, want: `{"model":"lora"}`},
	{name: "adapter of a renamed model", upstream: "Qwen/Q", sent: `{"model":"lora"}`, want: `{"model":"lora"}`},
	{name: "upstream", upstream: "Qwen/Q", sent: `{"model":"NAME"}`, want: `{"model":"Qwen/Q"}`, renamed: "NAME"},
	{name: "alias and upstream", upstream: "Qwen/Q", sent: `{"model":"alias"}`, want: `{"model":"Qwen/Q"}`, renamed: "alias"},
	{name: "upstream is the alias", upstream: "alias", sent: `{"model":"alias"}`, want: `{"model":"alias"}`},
	{name: "name to be escaped", upstream: `a"b\c`, sent: `{"model":"alias"}`, want: `{"model":"a\"b\\c"}`, renamed: "alias"},
	{name: "escaped name", sent: `{"mod\u0065l":"\u0061lias"}`, want: `{"mod\u0065l":"NAME"}`, renamed: "alias"},
	{name: "last of two", sent: `{"model":"x","y":{"model":"alias"},"model":"alias"}`, want: `{"model":"x","y":{"model":"alias"},"model":"NAME"}`, renamed: "alias"},
	{name: "Ollama's old name", path: "/api/show", upstream: "q:1", sent: `{"name":"alias"}`, want: `{"name":"q:1"}`, renamed: "alias"},

	// Limits.
	{name: "clamp", sent: `{"model":"NAME","max_tokens":5000}`, want: `{"model":"NAME","max_tokens":900}`, clamped: "5000->900"},
	{name: "limit that fits", sent: `{"model":"NAME","max_tokens":900}`, want: `{"model":"NAME","max_tokens":900}`},
	{name: "all limits", sent: `{"max_output_tokens":1e3,"max_completion_tokens":901,"max_tokens":900.5,"model":"NAME"}`,
		want: `{"max_output_tokens":900,"max_completion_tokens":900,"max_tokens":900,"model":"NAME"}`, clamped: "900.5->900"},
	{name: "limits of no use", sent: `{"model":"NAME","max_tokens":"5000","max_completion_tokens":null,"max_output_tokens":-1}`,
		want: `{"model":"NAME","max_tokens":"5000","max_completion_tokens":null,"max_output_tokens":-1}`},

	// Usage.
	{name: "usage", sent: `{"model":"NAME","stream":true}`, want: `{"model":"NAME","stream":true,"stream_options":{"include_usage":true}}`, hides: true},
	{name: "usage at the end", sent: "{\"model\":\"NAME\",\"stream\":true \n}\n", want: "{\"model\":\"NAME\",\"stream\":true \n,\"stream_options\":{\"include_usage\":true}}\n", hides: true},
	{name: "usage among options", sent: `{"stream_options":{ "x":1},"model":"NAME","stream":true}`, want: `{"stream_options":{"include_usage":true, "x":1},"model":"NAME","stream":true}`, hides: true},
	{name: "usage refused", sent: `{"stream_options":{"include_usage":false},"model":"NAME","stream":true}`, want: `{"stream_options":{"include_usage":true},"model":"NAME","stream":true}`, hides: true},
	{name: "usage asked for", sent: `{"model":"NAME","stream":true,"stream_options":{"include_usage":true}}`, want: `{"model":"NAME","stream":true,"stream_options":{"include_usage":true}}`},
	{name: "no stream", sent: `{"model":"NAME","stream":false}`, want: `{"model":"NAME","stream":false}`},
	{name: "no usage to ask for", path: "/v1/responses", sent: `{"model":"NAME","stream":true}`, want: `{"model":"NAME","stream":true}`},

	// All at once, in every order in the body.
	{name: "all", upstream: "Qwen/Q", sent: ` {"stream":true,"max_tokens":5000,"messages":[{"role":"user","content":"é \u00e9"}],"model":"alias"}`,
		want:    ` {"stream":true,"max_tokens":900,"messages":[{"role":"user","content":"é \u00e9"}],"model":"Qwen/Q","stream_options":{"include_usage":true}}`,
		clamped: "5000->900", hides: true, renamed: "alias"},
	{name: "all, the name first", upstream: "Qwen/Q", sent: `{"model":"alias","stream_options":null,"max_completion_tokens":1E9,"stream":true}`,
		want:    `{"model":"Qwen/Q","stream_options":{"include_usage":true},"max_completion_tokens":900,"stream":true}`,
		clamped: "1E9->900", hides: true, renamed: "alias"},
	{name: "all, side by side", sent: `{"stream":true,"model":"alias","max_tokens":901}`,
		want:    `{"stream":true,"model":"NAME","max_tokens":900,"stream_options":{"include_usage":true}}`,
		clamped: "901->900", hides: true, renamed: "alias"},
	{name: "all of a long one", upstream: "Qwen/Q", sent: `{"model":"alias","x":"` + strings.Repeat("x", 10_000) + `","max_tokens":5000,"stream":true}`,
		want:    `{"model":"Qwen/Q","x":"` + strings.Repeat("x", 10_000) + `","max_tokens":900,"stream":true,"stream_options":{"include_usage":true}}`,
		clamped: "5000->900", hides: true, renamed: "alias"},
}

// editFixture is the model of an editCase.
func editFixture(t *testing.T, upstream string) (*Settings, *catalog.Catalog) {
	t.Helper()
	keys := key.Default()
	cat := catalog.New(catalog.Config{
		Ledger: ledger.New(ledger.Config{}),
		Models: []catalog.Declaration{{
			Name: t.Name(), Aliases: []string{"alias"}, Adapters: []string{"lora"},
			Strategy: first{}, StrategyName: "first",
			Sources: []routing.Source{specs{{Scheme: "http", Address: "a:1", Model: upstream}}},
			Policy:  &catalog.Policy{ContextWindow: 1000},
		}},
	})
	t.Cleanup(cat.Close)
	return &Settings{
		MaxBody: 1 << 20, Keys: &keys, LeaseTTL: time.Hour, Logger: zap.NewNop(),
		Clamp: true, PromptReserve: 100, AskUsage: true, MapModel: true,
	}, cat
}

// sent returns the body that the endpoint gets.
func sent(t *testing.T, c *Call, r *http.Request) string {
	t.Helper()
	c.Rewind(r)
	got, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || r.ContentLength != int64(len(got)) {
		t.Errorf("%d bytes, announced %d, error %v", len(got), r.ContentLength, err)
	}
	return string(got)
}

// B1, B10: what is edited is edited together, and every other byte stays.
func TestEdits(t *testing.T) {
	for _, tt := range editCases {
		t.Run(tt.name, func(t *testing.T) {
			set, cat := editFixture(t, tt.upstream)
			name := strings.NewReplacer("NAME", t.Name())
			r := post(name.Replace(tt.sent))
			if tt.path != "" {
				r.URL.Path = tt.path
			}
			r.Header.Set("Content-Digest", "sha-256=:x:")
			c := Begin(r, set)
			defer c.End()
			if err := c.Resolve(r, cat); err != nil {
				t.Fatal(err)
			}
			if c.Next(t.Context()) == nil {
				t.Fatal("no endpoint")
			}
			want := name.Replace(tt.want)
			for range 2 { // each attempt gets it anew
				if got := sent(t, c, r); got != want {
					t.Errorf("sent %.300s, want %.300s", got, want)
				}
			}
			switch dropped := r.Header.Get("Content-Digest") == ""; {
			case !dropped && want != name.Replace(tt.sent):
				t.Error("the digest is that of other bytes")
			case dropped && want == name.Replace(tt.sent) && c.Asked() == t.Name():
				t.Error("the digest is gone")
			}
			if c.Clamped() != tt.clamped || c.HidesUsage() != tt.hides || c.Renamed() != name.Replace(tt.renamed) {
				t.Errorf("clamped %q, hides usage: %v, renamed %q", c.Clamped(), c.HidesUsage(), c.Renamed())
			}
		})
	}
}

// With nothing set the client's bytes go out, but for the model's name.
func TestEditsUnset(t *testing.T) {
	for _, tt := range editCases {
		t.Run(tt.name, func(t *testing.T) {
			set, cat := editFixture(t, "")
			set.Clamp, set.AskUsage, set.MapModel = false, false, false
			name := strings.NewReplacer("NAME", t.Name())
			body := name.Replace(strings.NewReplacer("alias", "NAME", `\u0061lias`, "NAME", "lora", "NAME").Replace(tt.sent))
			r := post(body)
			if tt.path != "" {
				r.URL.Path = tt.path
			}
			c := Begin(r, set)
			defer c.End()
			if err := c.Resolve(r, cat); err != nil {
				t.Fatal(err)
			}
			c.Next(t.Context())
			if got := sent(t, c, r); got != body {
				t.Errorf("sent %.300s, want %.300s", got, body)
			}
			if c.Clamped() != "" || c.HidesUsage() || c.Renamed() != "" {
				t.Errorf("clamped %q, hides usage: %v, renamed %q", c.Clamped(), c.HidesUsage(), c.Renamed())
			}
		})
	}
}

// B7: of a form the model's name changes, and nothing else.
func TestEditsForm(t *testing.T) {
	const file = "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n--X\r\n\"model\"\r\nalias\r\n\x00\xff\r\n"
	field := func(value string) string {
		return "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + value + "\r\n"
	}
	for _, tt := range []struct{ name, upstream, sent, want string }{
		{"declared", "", file + field("NAME"), file + field("NAME")},
		{"alias", "", field("alias") + file, field("NAME") + file},
		{"upstream", "Qwen/Q", file + field("NAME"), file + field("Qwen/Q")},
		{"white space", "Qwen/Q", file + field(" alias\t"), file + field(" Qwen/Q\t")},
		{"twice", "Qwen/Q", field("alias") + file + field("alias"), field("Qwen/Q") + file + field("Qwen/Q")},
		{"a name as it is", `a"b`, field("alias"), field(`a"b`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set, cat := editFixture(t, tt.upstream)
			name := strings.NewReplacer("NAME", t.Name())
			r := httptest.NewRequest(http.MethodPost, "/v1/audio/transcriptions", strings.NewReader(name.Replace(tt.sent)+"--XX--\r\n"))
			r.Header.Set("Content-Type", "multipart/form-data; boundary=XX")
			c := Begin(r, set)
			defer c.End()
			if err := c.Resolve(r, cat); err != nil {
				t.Fatal(err)
			}
			c.Next(t.Context())
			if got, want := sent(t, c, r), name.Replace(tt.want)+"--XX--\r\n"; got != want {
				t.Errorf("sent %q, want %q", got, want)
			}
		})
	}
}

// Attempts may go to endpoints that know the model by other names.
func TestEditsPerAttempt(t *testing.T) {
	keys := key.Default()
	cat := catalog.New(catalog.Config{
		Ledger: ledger.New(ledger.Config{}),
		Models: []catalog.Declaration{{
			Name: t.Name(), Strategy: first{}, StrategyName: "first",
			Sources: []routing.Source{specs{{Scheme: "http", Address: "a:1", Model: "long/name-of-it"}, {Scheme: "http", Address: "b:1"}, {Scheme: "http", Address: "c:1", Model: "c"}}},
			Policy:  &catalog.Policy{Retries: 2, RetryFloor: 10, ContextWindow: 1000},
		}},
	})
	t.Cleanup(cat.Close)
	set := &Settings{MaxBody: 1 << 20, Keys: &keys, LeaseTTL: time.Hour, Logger: zap.NewNop(), Clamp: true, PromptReserve: 100, MapModel: true}
	r := post(`{"max_tokens":5000,"model":"` + t.Name() + `","max_completion_tokens":5000,"max_output_tokens":5000}`)
	c := Begin(r, set)
	defer c.End()
	if err := c.Resolve(r, cat); err != nil {
		t.Fatal(err)
	}
	if got := c.UpstreamModel(); got != "" {
		t.Errorf("the model is called %q before the first attempt", got)
	}
	for _, name := range []string{"long/name-of-it", t.Name(), "c"} {
		if c.Next(t.Context()) == nil {
			t.Fatal("no endpoint")
		}
		if got, want := sent(t, c, r), `{"max_tokens":900,"model":"`+name+`","max_completion_tokens":900,"max_output_tokens":900}`; got != want {
			t.Errorf("sent %s, want %s", got, want)
		}
		if got := c.UpstreamModel(); got != name {
			t.Errorf("the model is called %q, want %q", got, name)
		}
		c.Failed(Unreached, "test")
	}
}
