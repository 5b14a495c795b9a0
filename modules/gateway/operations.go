package gateway

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const modelsPath = "/v1/models"

// serveOperations answers r if it is for one of the gateway's own pages.
func (h *Handler) serveOperations(w http.ResponseWriter, r *http.Request) bool {
	path := r.URL.Path
	switch {
	case path == "/healthz":
		writeText(w, r, http.StatusOK, "ok")
	case path == "/readyz":
		h.serveReady(w, r)
	case path == modelsPath:
		h.serveModels(w, r)
	case strings.HasPrefix(path, modelsPath+"/"):
		h.serveModel(w, r, path[len(modelsPath)+1:])
	case strings.HasPrefix(path, "/api/"):
		return h.serveOllama(w, r)
	case path == "/" && isKnock(r):
		writeText(w, r, http.StatusOK, "")
	default:
		return false
	}
	return true
}

// isKnock reports whether r only asks if there is anybody. The ollama command
// does before all else.
func isKnock(r *http.Request) bool {
	return r.Method == http.MethodHead && r.URL.RawQuery == "" && r.Header["X-Model-Id"] == nil
}

// serveReady tells whether new requests are welcome. From SIGTERM on they are
// not, though they are still served while shutdown_delay lasts.
func (h *Handler) serveReady(w http.ResponseWriter, r *http.Request) {
	switch {
	case caddy.Exiting():
		writeText(w, r, http.StatusServiceUnavailable, "draining")
	case !h.app.Ready(h.catalog):
		writeText(w, r, http.StatusServiceUnavailable, "starting")
	default:
		writeText(w, r, http.StatusOK, "ok")
	}
}

// listed is a model as OpenAI's API lists it.
type listed struct {
	ID       string         `json:"id"`
	Object   string         `json:"object"`
	Created  int64          `json:"created"`
	OwnedBy  string         `json:"owned_by"`
	Parent   string         `json:"parent,omitempty"` // of an adapter
	Metadata map[string]any `json:"metadata,omitempty"`
}

func entry(m *catalog.Model, adapter string) listed {
	l := listed{ID: m.Name, Object: "model", Created: cmp.Or(m.Created, app.Started()), OwnedBy: "flexinfer"}
	if adapter != "" {
		l.ID, l.Parent = adapter, m.Name
		return l
	}
	l.Metadata = map[string]any{"ready": m.Ready(), "endpoints": m.Snapshot.Len()}
	if len(m.Aliases) > 0 {
		l.Metadata["aliases"] = m.Aliases
	}
	maps.Copy(l.Metadata, m.Metadata) // the source knows best
	return l
}

// models returns the models that are shown: not those that are parked, which are
// refused as if there were none.
func (h *Handler) models() []*catalog.Model {
	return slices.DeleteFunc(slices.Clone(h.catalog.Table().Models()), isParked)
}

func isParked(m *catalog.Model) bool { return m.State.Phase == routing.Parked }

func (h *Handler) serveModels(w http.ResponseWriter, r *http.Request) {
	if !readOnly(w, r) {
		return
	}
	list := struct {
		Object string   `json:"object"`
		Data   []listed `json:"data"`
	}{Object: "list", Data: []listed{}}
	for _, m := range h.models() {
		list.Data = append(list.Data, entry(m, ""))
		for _, a := range m.Adapters {
			list.Data = append(list.Data, entry(m, a))
		}
	}
	writeJSON(w, r, list)
}

func (h *Handler) serveModel(w http.ResponseWriter, r *http.Request, name string) {
	if !readOnly(w, r) {
		return
	}
	t := h.catalog.Table()
	res, ok := t.Resolve(name)
	if !ok || isParked(res.Model) {
		ref := refusal.UnknownModel(name)
		if !ok && !t.Settled() {
			ref = refusal.Starting(name)
		}
		_ = ref.Write(w, r.URL.Path)
		return
	}
	writeJSON(w, r, entry(res.Model, res.Adapter))
}

// readOnly refuses methods other than GET and HEAD.
func readOnly(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	_ = refusal.MethodNotAllowed().Write(w, r.URL.Path)
	return false
}

func writeJSON(w http.ResponseWriter, r *http.Request, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	write(w, r, http.StatusOK, "application/json", append(b, '\n'))
}

func writeText(w http.ResponseWriter, r *http.Request, status int, text string) {
	write(w, r, status, "text/plain; charset=utf-8", []byte(text))
}

func write(w http.ResponseWriter, r *http.Request, status int, contentType string, b []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b)
	}
}
