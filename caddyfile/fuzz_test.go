package caddyfile

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/app"
	_ "github.com/flexinfer/caddy-flexinfer/modules/strategies"
)

// FuzzGlobalOption parses tokens that Caddy's own parser may not have seen,
// so that blocks need not end.
func FuzzGlobalOption(f *testing.F) {
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		// from the option's name on
		if i := bytes.Index(content, []byte("flexinfer {")); i >= 0 {
			text, _, _ := bytes.Cut(content[i:], []byte("\n----------\n"))
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		tokens, err := caddyfile.Tokenize(text, "Caddyfile")
		if err != nil {
			return
		}
		result, err := parseGlobalOption(caddyfile.NewDispenser(tokens), nil)
		if err != nil {
			return
		}
		var a app.App
		d := json.NewDecoder(bytes.NewReader(result.(httpcaddyfile.App).Value))
		d.DisallowUnknownFields()
		if err := d.Decode(&a); err != nil {
			t.Errorf("the JSON is not the app's: %v", err)
		}
	})
}
