package walls

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/flexinfer/caddy-flexinfer"

// pkg is what `go list` tells of a package.
type pkg struct {
	ImportPath, Dir string
	Imports         []string
	GoFiles         []string
}

// own returns the gateway's packages by their paths within the module; the
// root's is ".".
func own(t *testing.T) map[string]*pkg {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		if ee, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v\n%s", err, ee.Stderr)
		}
		t.Fatal(err)
	}
	packages := make(map[string]*pkg)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		p := new(pkg)
		if err := dec.Decode(p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages[within(p.ImportPath)] = p
	}
	for _, name := range []string{".", "caddyfile", "xcaddy", "modules/routing", "modules/gateway", "modules/strategies"} {
		if packages[name] == nil {
			t.Fatalf("there is no package %s: has the house been rebuilt? Then these walls need a look", name)
		}
	}
	return packages
}

// within returns an import path relative to the module, and others as they are.
func within(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func isCaddy(path string) bool {
	return under(path, "github.com/caddyserver/caddy/v2") || under(path, "github.com/caddyserver/certmagic")
}

// chain returns a way by which start comes to import something, through the
// module's own packages, or nil.
func chain(packages map[string]*pkg, start string, wanted func(string) bool) []string {
	seen := make(map[string]bool)
	var walk func(string) []string
	walk = func(name string) []string {
		p := packages[name]
		if p == nil || seen[name] {
			return nil
		}
		seen[name] = true
		for _, imp := range p.Imports {
			if wanted(within(imp)) {
				return []string{name, imp}
			}
			if rest := walk(within(imp)); rest != nil {
				return append([]string{name}, rest...)
			}
		}
		return nil
	}
	return walk(start)
}

func TestInnerPartsKnowNothingOfCaddy(t *testing.T) {
	packages := own(t)
	checked := 0
	for name := range packages {
		if !under(name, "modules/routing") && !under(name, "modules/internal") && !under(name, "modules/engine/sim") {
			continue
		}
		checked++
		if way := chain(packages, name, isCaddy); way != nil {
			t.Errorf("%s imports Caddy: %s", name, strings.Join(way, " → "))
		}
	}
	if checked < 5 {
		t.Errorf("only %d packages were checked", checked)
	}
}

func TestDiscoveryKnowsOnlyRouting(t *testing.T) {
	packages := own(t)
	p := packages["k8sdiscovery"]
	if p == nil {
		t.Fatal("there is no package k8sdiscovery")
	}
	for _, imp := range p.Imports {
		if path := within(imp); path != imp && path != "modules/routing" {
			t.Errorf("k8sdiscovery imports %s; of the gateway's own packages it knows modules/routing only", path)
		}
	}
	if way := chain(packages, "k8sdiscovery", isCaddy); way != nil {
		t.Errorf("k8sdiscovery imports Caddy: %s", strings.Join(way, " → "))
	}
}

func TestOnlyTheFrontKnowsTheGateway(t *testing.T) {
	for name, p := range own(t) {
		if slices.Contains(p.Imports, module+"/modules/gateway") && name != "." && name != "caddyfile" {
			t.Errorf("%s imports modules/gateway, which is for the root and caddyfile only", name)
		}
		if slices.Contains(p.Imports, module+"/caddyfile") && name != "." {
			t.Errorf("%s imports caddyfile, which is for the root only", name)
		}
		if slices.Contains(p.Imports, module) && name != "xcaddy" {
			t.Errorf("%s imports the root package, which is for builds", name)
		}
	}
}

func TestStrategiesDoNoIO(t *testing.T) {
	packages := own(t)
	for name, p := range packages {
		if !under(name, "modules/strategies") {
			continue
		}
		for _, imp := range p.Imports {
			switch {
			case under(imp, "net"), under(imp, "os"), under(imp, "io"), under(imp, "syscall"),
				under(imp, "database/sql"), imp == "log", under(imp, "log/slog"), imp == "bufio":
				t.Errorf("%s imports %s; a strategy does no I/O", name, imp)
			case under(within(imp), "modules") && !under(within(imp), "modules/routing") &&
				!under(within(imp), "modules/strategies"):
				t.Errorf("%s imports %s; a strategy is written against modules/routing, as a third party's is", name, imp)
			}
		}
	}
}

func TestTheRootOnlyImports(t *testing.T) {
	p := own(t)["."]
	for _, file := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			if d, ok := decl.(*ast.GenDecl); !ok || d.Tok != token.IMPORT {
				t.Errorf("%s declares something; the root package is imports and nothing else", file)
			}
		}
		for _, imp := range f.Imports {
			if imp.Name == nil || imp.Name.Name != "_" {
				t.Errorf("%s imports %s by name", file, imp.Path.Value)
			}
		}
	}
}

// A module that the root does not import is missing from every build.
func TestTheRootImportsEveryModule(t *testing.T) {
	packages := own(t)
	for name, p := range packages {
		if !under(name, "modules") || chain(packages, ".", func(path string) bool { return path == name }) != nil {
			continue
		}
		t.Errorf("no build has %s: nothing that the root imports imports it (%s)", name, p.Dir)
	}
}
