package caddyfile_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/flexinfer/caddy-flexinfer/caddyfile"
	_ "github.com/flexinfer/caddy-flexinfer/modules/activators"
	_ "github.com/flexinfer/caddy-flexinfer/modules/matchers"
	_ "github.com/flexinfer/caddy-flexinfer/modules/selection"
	_ "github.com/flexinfer/caddy-flexinfer/modules/sources"
	_ "github.com/flexinfer/caddy-flexinfer/modules/strategies"
	_ "github.com/flexinfer/caddy-flexinfer/modules/transport"
	_ "github.com/flexinfer/caddy-flexinfer/modules/upstreams"
)

var update = flag.Bool("update", false, "rewrite the expected parts of testdata")

const line = "\n----------\n"

// adapt returns the Caddyfile's JSON, indented by tabs.
func adapt(caddyfile string) (string, []caddyconfig.Warning, error) {
	result, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
	if err != nil {
		return "", warnings, err
	}
	var indented bytes.Buffer
	err = json.Indent(&indented, result, "", "\t")
	return indented.String(), warnings, err
}

// TestAdapt compares what the Caddyfiles in testdata adapt to with what
// follows them there, after a line of dashes: JSON, or the error.
func TestAdapt(t *testing.T) {
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, want, _ := strings.Cut(string(content), line)
			want = strings.TrimSpace(want)
			got, warnings, err := adapt(caddyfile + "\n")
			if err != nil {
				got = err.Error()
			}
			for _, w := range warnings {
				t.Errorf("warning: %s", w)
			}
			if *update {
				if err := os.WriteFile(file, []byte(caddyfile+line+got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("got:\n%s\n\nwant:\n%s", got, want)
			}
			if err != nil && !strings.Contains(got, "Caddyfile:") {
				t.Errorf("the error does not say where it is: %s", got)
			}
			if strings.HasPrefix(filepath.Base(file), "error_") != (err != nil) {
				t.Errorf("the file's name and the outcome do not agree: %v", err)
			}
		})
	}
}

// validate does what `caddy validate` does.
func validate(t *testing.T, caddyfile string) error {
	t.Helper()
	adapted, _, err := adapt(caddyfile)
	if err != nil {
		t.Fatal(err)
	}
	var cfg caddy.Config
	if err := json.Unmarshal([]byte(adapted), &cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Admin = &caddy.AdminConfig{Disabled: true}
	return caddy.Validate(&cfg)
}

// TestValidate validates the Caddyfiles in testdata that adapt.
func TestValidate(t *testing.T) {
	t.Setenv("EU_KEY", "k1")
	t.Setenv("SECRET", "k2")
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".caddyfiletest")
		if strings.HasPrefix(name, "error_") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, _, _ := strings.Cut(string(content), line)
			if err := validate(t, caddyfile+"\n"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEnvironmentRemedies does what the errors over FlexInfer's environment
// variables say.
func TestEnvironmentRemedies(t *testing.T) {
	for _, tt := range []struct{ variable, value string }{
		{"PROXY_AUTH_ENABLED", "true"},
		{"PROXY_ADMISSION_ENABLED", "true"},
		{"FLEXINFER_PYANNOTE_UPSTREAM", "http://pyannote:8890"},
		{"FLEXINFER_KOKORO_UPSTREAM", "http://kokoro:8880"},
		{"FLEXINFER_CODEBASE_ANSWER_UPSTREAM", "http://rag:80"},
	} {
		t.Run(tt.variable, func(t *testing.T) {
			t.Setenv(tt.variable, tt.value)
			const format = "{\n\tflexinfer {\n\t\tmodel m a:80\n\t\t%s\n\t}\n}\n\n:8080 {%s\n\tflexinfer\n}\n"
			err := validate(t, fmt.Sprintf(format, "", ""))
			if err == nil {
				t.Fatal("no error")
			}
			_, site, _ := strings.Cut(err.Error(), "write in the site:")
			site, global, _ := strings.Cut(site, "\nand in the flexinfer block: ")
			if err := validate(t, fmt.Sprintf(format, global, site)); err != nil {
				t.Errorf("with the remedy %q and %q: %v", site, global, err)
			}
		})
	}
}

// FuzzAdapt adapts whole files twice.
func FuzzAdapt(f *testing.F) {
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		caddyfile, _, _ := strings.Cut(string(content), line)
		f.Add(caddyfile + "\n")
	}
	f.Fuzz(func(t *testing.T, caddyfile string) {
		if strings.Contains(caddyfile, "import") || strings.Contains(caddyfile, "{$") || strings.Contains(caddyfile, "{file") {
			return // reads files or the environment
		}
		adapted, _, err := adapt(caddyfile)
		if err != nil {
			return
		}
		if again, _, err := adapt(caddyfile); err != nil || again != adapted {
			t.Errorf("the second time it adapts to\n%s, %v\nnot to\n%s", again, err, adapted)
		}
	})
}
