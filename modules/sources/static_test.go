package sources

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// provision provisions a module from its JSON, as Caddy does.
func provision(t *testing.T, id, config string) (any, error) {
	t.Helper()
	ctx, err := caddy.ProvisionContext(&caddy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return ctx.LoadModuleByID(id, json.RawMessage(config))
}

func TestStatic(t *testing.T) {
	t.Setenv("STATIC_TEST_KEY", "k1")
	m, err := provision(t, "flexinfer.sources.static", `{"upstreams": [
		{"address": "10.0.0.5:8000"},
		{"address": "https://eu.example.com/base", "model": "/models/m.gguf", "weight": 2, "labels": {"region": "eu"},
		 "headers": {"authorization": "Bearer {env.STATIC_TEST_KEY}"}}
	]}`)
	if err != nil {
		t.Fatal(err)
	}
	models, changed := m.(routing.Source).Models()
	if changed != nil {
		t.Error("a static list does not change")
	}
	want := []routing.Model{{Endpoints: []routing.Spec{
		{Scheme: "http", Address: "10.0.0.5:8000"},
		{Scheme: "https", Address: "eu.example.com:443", Path: "/base", Model: "/models/m.gguf", Weight: 2, Labels: map[string]string{"region": "eu"},
			Header: http.Header{"Authorization": {"Bearer k1"}}},
	}}}
	if !reflect.DeepEqual(models, want) {
		t.Errorf("got  %+v\nwant %+v", models, want)
	}
}

func TestStaticErrors(t *testing.T) {
	t.Setenv("STATIC_TEST_EVIL", "a\r\nX-Evil: 1")
	for _, tt := range []struct{ name, config, remedy string }{
		{"address", `[{"address": "engine"}]`, "write host:port"},
		{"twice", `[{"address": "a:80"}, {"address": "http://A"}]`, "listed twice"},
		{"negative weight", `[{"address": "a:1", "weight": -1}]`, "write a number from 1 to 100"},
		{"heavy", `[{"address": "a:1", "weight": 101}]`, "write a number from 1 to 100"},
		{"model", `[{"address": "a:1", "model": "a\u0000"}]`, "model: the name"},
		{"field", `[{"address": "a:1", "headers": {"X Y": ""}}]`, "not the name of a header field"},
		{"fields", `[{"address": "a:1", "headers": {"x-a": "1", "X-A": "2"}}]`, "set twice"},
		{"unknown placeholder", `[{"address": "a:1", "headers": {"X-A": "{http.request.uri}"}}]`, "http.request.uri"},
		{"unset variable", `[{"address": "a:1", "headers": {"X-A": "{env.STATIC_TEST_UNSET}"}}]`, "header X-A"},
		{"injection", `[{"address": "a:1", "headers": {"X-A": "{env.STATIC_TEST_EVIL}"}}]`, "line break"},
		{"unknown option", `[{"address": "a:1", "wieght": 2}]`, "wieght"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := provision(t, "flexinfer.sources.static", `{"upstreams": `+tt.config+`}`)
			if err == nil || !strings.Contains(err.Error(), tt.remedy) {
				t.Errorf("got %v, want it to contain %q", err, tt.remedy)
			}
		})
	}
}
