package gateway

import (
	"encoding/json"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A source of models.
type source []routing.Model

func (s source) Models() ([]routing.Model, <-chan struct{}) { return s, nil }

func TestListedModels(t *testing.T) {
	c := catalog.New(catalog.Config{
		Ledger: ledger.New(ledger.Config{}),
		Sources: []routing.Source{source{
			{
				Name: "awake", Aliases: []string{"a"}, Adapters: []string{"l"},
				Endpoints: []routing.Spec{{Scheme: "http", Address: "10.0.0.1:8000"}},
				Traits: &routing.Traits{
					Created:  7,
					Metadata: map[string]any{"ready": true, "phase": "Ready", "aliases": []string{"a", "taken"}},
				},
			},
			{
				Name:   "asleep",
				Traits: &routing.Traits{Created: 8, State: routing.State{Phase: routing.Asleep}, Metadata: map[string]any{"backend": "vllm"}},
			},
			{Name: "parked", Traits: &routing.Traits{State: routing.State{Phase: routing.Parked}}},
		}},
		Policy: new(catalog.Policy),
	})
	defer c.Close()
	h := &Handler{}
	h.catalog = c
	var got []listed
	for _, m := range h.models() {
		got = append(got, entry(m, ""))
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"id":"awake","object":"model","created":7,"owned_by":"flexinfer","metadata":{"aliases":["a","taken"],"endpoints":1,"phase":"Ready","ready":true}},` +
		`{"id":"asleep","object":"model","created":8,"owned_by":"flexinfer","metadata":{"backend":"vllm","endpoints":0,"ready":false}}]`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	if len(c.Table().Models()) != 3 {
		t.Error("the catalog has lost a model")
	}
}
