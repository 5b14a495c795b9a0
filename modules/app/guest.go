package app

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// parseGuest reads the guest module of a namespace that is named by the
// dispenser's current token, with its options, into the module's JSON. It has to
// be a T. The inline key is the kind of module; what says so with its article.
func parseGuest[T any](d *caddyfile.Dispenser, namespace, kind, what string) (json.RawMessage, error) {
	typed := d.Val()
	name := strings.ReplaceAll(typed, "-", "_")
	id := namespace + "." + name
	if _, err := caddy.GetModule(id); err != nil {
		return nil, d.Errf("unknown %s %q; write one of: %s", kind, typed, strings.Join(guestNames(namespace), ", "))
	}
	module, err := caddyfile.UnmarshalModule(d, id)
	if err != nil {
		return nil, err
	}
	if _, ok := module.(T); !ok {
		return nil, d.Errf("module %s is not %s", id, what)
	}
	return caddyconfig.JSONModuleObject(module, kind, name, nil), nil
}

// guestNames returns the names of a namespace's modules in this binary, as users
// type them.
func guestNames(namespace string) []string {
	var names []string
	for _, m := range caddy.GetModules(namespace) {
		names = append(names, strings.ReplaceAll(m.ID.Name(), "_", "-"))
	}
	slices.Sort(names)
	return names
}
