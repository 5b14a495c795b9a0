package catalog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// BenchmarkRefresh is a change of one model's endpoints among 1,000 models with
// 10 endpoints each.
func BenchmarkRefresh(b *testing.B) {
	models := make([]routing.Model, 1000)
	for i := range models {
		models[i] = routing.Model{Name: fmt.Sprintf("model-%d", i), Aliases: []string{fmt.Sprintf("alias-%d", i)}, Traits: new(routing.Traits)}
		for j := range 10 {
			models[i].Endpoints = append(models[i].Endpoints, routing.Spec{
				ID: fmt.Sprintf("pod-%d-%d", i, j), Scheme: "http", Address: fmt.Sprintf("10.%d.%d.%d:8000", i/250, i%250, j+1),
			})
		}
	}
	s := &source{settled: true, models: models}
	c := New(Config{Ledger: ledger.New(ledger.Config{}), Lanes: NewLanes(), Sources: []routing.Source{s}, Policy: new(Policy)})
	defer c.Close()
	for _, hashed := range []bool{false, true} {
		b.Run(fmt.Sprintf("ring=%v", hashed), func(b *testing.B) {
			if hashed {
				for _, m := range c.Table().Models() {
					m.Snapshot.Owner(1)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				next := slices.Clone(models)
				m := &next[i%len(next)]
				m.Endpoints = m.Endpoints[:9+i/len(next)%2]
				m.Endpoints = slices.Clone(m.Endpoints)
				s.set(true, next...)
				c.Refresh()
			}
		})
	}
}
