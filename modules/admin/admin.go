// Package admin holds the gateway's part of the admin API.
package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(API{})
}

// API adds two routes to the admin API:
//
//   - `GET /flexinfer/models` tells of the models and the load of their
//     endpoints;
//   - `POST /flexinfer/explain?path=/v1/chat/completions` takes a request's
//     own headers and body and tells where it would go, and why. Nothing is
//     sent or counted.
type API struct{}

// CaddyModule returns the Caddy module information.
func (API) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.flexinfer",
		New: func() caddy.Module { return new(API) },
	}
}

// Routes implements [caddy.AdminRouter].
func (API) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/flexinfer/models", Handler: caddy.AdminHandlerFunc(serveModels)},
		{Pattern: "/flexinfer/explain", Handler: caddy.AdminHandlerFunc(serveExplain)},
	}
}

// running returns the app of the configuration that is running. It is looked
// up for each request: the admin server may belong to a configuration that
// failed to load.
func running() (*app.App, error) {
	a, err := caddy.ActiveContext().AppIfConfigured("flexinfer")
	if err != nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("the running configuration does not use flexinfer: %w", err)}
	}
	return a.(*app.App), nil
}

type model struct {
	Name      string     `json:"name"`
	Aliases   []string   `json:"aliases"`
	Adapters  []string   `json:"adapters"`
	Strategy  string     `json:"strategy"`
	Service   string     `json:"service,omitempty"`
	Labels    []string   `json:"service_labels,omitempty"`
	Priority  int        `json:"priority,omitempty"`
	State     string     `json:"state"`
	Message   string     `json:"message,omitempty"`
	Queued    int        `json:"queued"`
	Endpoints []endpoint `json:"endpoints"`
}

type endpoint struct {
	ID       string            `json:"id"`
	Address  string            `json:"address"`
	Scheme   string            `json:"scheme"`
	Path     string            `json:"path,omitempty"`
	Weight   int               `json:"weight"`
	Labels   map[string]string `json:"labels,omitempty"`
	Inflight int               `json:"inflight"`
	Reserved int               `json:"reserved"`
	Load     int               `json:"load"`
	Most     int               `json:"max_inflight,omitempty"`
	Healthy  bool              `json:"healthy"`
}

func describe(e *routing.Endpoint) endpoint {
	return endpoint{
		ID: e.ID, Address: e.Address, Scheme: e.Scheme, Path: e.Path, Weight: e.Weight, Labels: e.Labels,
		Inflight: e.Inflight(), Reserved: e.Reserved(), Load: e.Load(), Most: e.MaxInflight, Healthy: e.Health().Healthy(),
	}
}

func serveModels(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return methodNotAllowed(http.MethodGet)
	}
	a, err := running()
	if err != nil {
		return err
	}
	models := []model{}
	for _, cat := range a.Catalogs() {
		for _, m := range cat.Table().Models() {
			models = append(models, describeModel(m))
		}
	}
	return writeJSON(w, models)
}

func describeModel(m *catalog.Model) model {
	d := model{
		Name: m.Name, Strategy: m.StrategyName,
		Aliases: append([]string{}, m.Aliases...), Adapters: append([]string{}, m.Adapters...),
		Labels: m.Groups, Priority: m.Priority, State: m.State.Phase.String(), Message: m.State.Message,
		Endpoints: []endpoint{},
	}
	if m.Lane != nil {
		d.Queued = m.Queue().Len()
	}
	if s := m.Snapshot.Service(); s != nil {
		d.Service = s.URL()
	}
	for i := range m.Snapshot.Len() {
		d.Endpoints = append(d.Endpoints, describe(m.Snapshot.At(i)))
	}
	return d
}

type explanation struct {
	Model       string      `json:"model"`
	Asked       string      `json:"asked"`
	Adapter     string      `json:"adapter,omitempty"`
	Strategy    string      `json:"strategy"`
	KeySource   string      `json:"key_source"`
	KeyHash     string      `json:"key_hash"`
	SessionHash string      `json:"session_hash"`
	Target      string      `json:"target"`
	Outcome     string      `json:"outcome"`
	Reason      string      `json:"reason,omitempty"`
	Candidates  []candidate `json:"candidates"`
}

type candidate struct {
	Target string `json:"target"`
	Load   int    `json:"load"`
	Weight int    `json:"weight"`
	Picked bool   `json:"picked"`
}

func serveExplain(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		return methodNotAllowed(http.MethodPost)
	}
	a, err := running()
	if err != nil {
		return err
	}
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "/v1/chat/completions"
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf("parsing the query parameter path: %w", err)}
	}
	var refused error
	for _, cat := range a.Catalogs() {
		if refused != nil && len(cat.Table().Models()) == 0 {
			continue
		}
		asked := r.WithContext(r.Context())
		asked.URL = u
		c := call.Begin(asked, a.Settings())
		c.DryRun()
		err := c.Resolve(asked, cat)
		r.Body = asked.Body // read by now
		if err == nil {
			err = writeJSON(w, explain(c))
			c.End()
			return err
		}
		defer c.End()
		refused = err
	}
	if ref, ok := errors.AsType[*refusal.Refusal](refused); ok {
		return ref.Write(w, u.Path)
	}
	return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: refused}
}

func explain(c *call.Call) explanation {
	d := c.Explain()
	m := c.Model()
	e := explanation{
		Model: m.Name, Asked: c.Asked(), Adapter: c.Adapter(), Strategy: c.StrategyName(),
		KeySource: d.Key.Source.String(), KeyHash: d.Key.String(), SessionHash: c.SessionKey().String(),
		Target: call.Target(d), Reason: d.Reason, Candidates: []candidate{},
	}
	if d.Lease != nil {
		e.Outcome = call.Outcome(d)
	}
	for i := range m.Snapshot.Len() {
		ep := m.Snapshot.At(i)
		e.Candidates = append(e.Candidates, candidate{
			Target: ep.Target(), Load: ep.Load(), Weight: ep.Weight,
			Picked: d.Lease != nil && !d.Lease.IsService() && d.Lease.Endpoint() == ep,
		})
	}
	return e
}

func methodNotAllowed(allowed string) error {
	return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("only %s is allowed here", allowed)}
}

func writeJSON(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(v)
}

// Interface guards
var _ caddy.AdminRouter = API{}
