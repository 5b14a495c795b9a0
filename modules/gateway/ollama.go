package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
)

// serveOllama answers r if it is for one of the pages of Ollama's API that
// speak of all models. Those of one model, such as /api/show, are the
// upstream's.
func (h *Handler) serveOllama(w http.ResponseWriter, r *http.Request) bool {
	switch r.URL.Path {
	case "/api/tags":
		h.serveTags(w, r)
	case "/api/ps":
		h.serveProcesses(w, r)
	case "/api/version":
		if readOnly(w, r) {
			writeJSON(w, r, map[string]string{"version": version()})
		}
	default:
		return false
	}
	return true
}

// tag is a model as Ollama's API lists it. What the gateway does not know of
// it is 0 or empty.
type tag struct {
	Name    string  `json:"name"`
	Model   string  `json:"model"`
	Size    int64   `json:"size"`
	Digest  string  `json:"digest"`
	Details details `json:"details"`
}

type details struct {
	ParentModel       string   `json:"parent_model"` // of an adapter
	Format            string   `json:"format"`
	Family            string   `json:"family"`
	Families          []string `json:"families"`
	ParameterSize     string   `json:"parameter_size"`
	QuantizationLevel string   `json:"quantization_level"`
}

// newTag lists a model, or an adapter under its parent. The digest is that of
// the name: Ollama's clients show the first twelve of its characters, and some
// of them break if there are fewer.
func newTag(name, parent string) tag {
	digest := sha256.Sum256([]byte(name))
	return tag{
		Name: name, Model: name, Digest: hex.EncodeToString(digest[:]),
		Details: details{ParentModel: parent, Families: []string{}},
	}
}

func (h *Handler) serveTags(w http.ResponseWriter, r *http.Request) {
	type tagged struct {
		tag
		ModifiedAt time.Time `json:"modified_at"`
	}
	if !readOnly(w, r) {
		return
	}
	started := time.Unix(app.Started(), 0).UTC()
	list := struct {
		Models []tagged `json:"models"`
	}{[]tagged{}}
	for _, m := range h.models() {
		list.Models = append(list.Models, tagged{newTag(m.Name, ""), started})
		for _, a := range m.Adapters {
			list.Models = append(list.Models, tagged{newTag(a, m.Name), started})
		}
	}
	writeJSON(w, r, list)
}

// never is when a model is unloaded, as far as the gateway knows.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// serveProcesses lists the models that have an endpoint.
func (h *Handler) serveProcesses(w http.ResponseWriter, r *http.Request) {
	type running struct {
		tag
		ExpiresAt time.Time `json:"expires_at"`
		SizeVRAM  int64     `json:"size_vram"`
	}
	if !readOnly(w, r) {
		return
	}
	list := struct {
		Models []running `json:"models"`
	}{[]running{}}
	for _, m := range h.catalog.Table().Models() {
		if m.Ready() {
			list.Models = append(list.Models, running{newTag(m.Name, ""), never, 0})
		}
	}
	writeJSON(w, r, list)
}

// modulePath is that of the module that this package belongs to.
const modulePath = "github.com/flexinfer/caddy-flexinfer"

// version returns the gateway's version, as Ollama's clients read one.
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return plainVersion("")
	}
	for _, m := range info.Deps {
		if m.Path == modulePath {
			return plainVersion(m.Version)
		}
	}
	return plainVersion(info.Main.Version)
})

// plainVersion turns the version of a module into numbers with dots, and
// perhaps what follows a -. Clients fail on anything else.
func plainVersion(v string) string {
	v, ok := strings.CutPrefix(v, "v")
	if !ok { // (devel), or nothing
		return "0.0.0"
	}
	v, _, _ = strings.Cut(v, "+")
	return v
}
