package readme

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every Caddyfile of the README is one that a gateway would start with.
func TestCaddyfiles(t *testing.T) {
	bin := gateway(t)
	n := 0
	for _, b := range blocks(t) {
		if b.language != "caddyfile" {
			continue
		}
		n++
		path := filepath.Join(t.TempDir(), "Caddyfile")
		if err := os.WriteFile(path, []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(bin, "validate", "--config", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", &b, err, out)
		}
	}
	if n == 0 {
		t.Error("no Caddyfile was looked at")
	}
}

func gateway(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("GATEWAY_BIN"); bin != "" {
		return bin
	}
	if testing.Short() {
		t.Skip("builds the gateway")
	}
	bin := filepath.Join(t.TempDir(), "gateway")
	cmd := exec.Command("go", "build", "-o", bin, "./xcaddy")
	cmd.Dir = filepath.Dir(readme)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the gateway: %v\n%s", err, out)
	}
	return bin
}

// text returns the README.
func text(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sources returns the text of the Go files in a directory, without tests.
func sources(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(readme), dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no Go files (%v)", dir, err)
	}
	var b strings.Builder
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(src)
	}
	return b.String()
}

// submatches returns the first groups of all matches, each once.
func submatches(re, s string) []string {
	var found []string
	for _, m := range regexp.MustCompile(re).FindAllStringSubmatch(s, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// check sees that the README has each of the names, in code.
func check(t *testing.T, what string, names []string, least int) {
	t.Helper()
	if len(names) < least {
		t.Errorf("found only %d names of %s in the code: %v", len(names), what, names)
	}
	readme := text(t)
	for _, name := range names {
		if !regexp.MustCompile("(?:[`{ \t.]|^)" + regexp.QuoteMeta(name) + "(?:[` \t=,}]|$)").MatchString(readme) {
			t.Errorf("the README does not have the %s %s", what, name)
		}
	}
}

func TestMetrics(t *testing.T) {
	made := submatches(`(?:counter|gauge|histogram)\("(\w+)"`, sources(t, "modules/internal/metrics"))
	live := submatches(`NewDesc\("flexinfer_proxy_(\w+)"`, sources(t, "modules/app"))
	check(t, "metric", append(made, live...), 10)

	// And none that there is not.
	section := regexp.MustCompile("(?s)\\| `flexinfer_proxy_….*?\n\n").FindString(text(t))
	for row := range strings.SplitSeq(section, "\n") {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, name := range submatches("`(\\w+)`", first) {
			if !slices.Contains(made, name) && !slices.Contains(live, name) {
				t.Errorf("the README has a metric %s, the code does not", name)
			}
		}
	}
}

func TestLogFields(t *testing.T) {
	check(t, "log field", submatches(`extra\.Set\(zap\.\w+\("(\w+)"`, sources(t, "modules/gateway")), 8)
}

func TestPlaceholders(t *testing.T) {
	check(t, "placeholder", submatches("`(\\{http\\.flexinfer\\.\\w+\\})`", sources(t, "modules/gateway")), 4)
}

func TestEnvironment(t *testing.T) {
	src := sources(t, "modules/app")
	check(t, "variable", submatches(`"((?:PROXY|FLEXINFER)_\w+)":\s+\{set:`, src), 5)
}

// The first words of the lines of the Syntax comments are the options.
func TestOptions(t *testing.T) {
	var names []string
	for _, f := range []string{"global.go", "model.go"} {
		path := filepath.Join(filepath.Dir(readme), "caddyfile", f)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range file.Comments {
			_, syntax, ok := strings.Cut(group.Text(), "Syntax:\n")
			if !ok {
				continue
			}
			for line := range strings.SplitSeq(syntax, "\n") {
				if line != "" && !strings.HasPrefix(line, "\t") {
					break // the syntax is over
				}
				if words := strings.Fields(line); len(words) > 0 && regexp.MustCompile(`^\w+$`).MatchString(words[0]) {
					names = append(names, words[0])
				}
			}
		}
	}
	slices.Sort(names)
	check(t, "option", slices.Compact(names), 15)
}

func TestStrategies(t *testing.T) {
	ids := submatches(`ID:\s+"flexinfer\.strategies\.(\w+)"`, sources(t, "modules/strategies"))
	for i := range ids {
		ids[i] = strings.ReplaceAll(ids[i], "_", "-")
	}
	check(t, "strategy", ids, 7)
}

// Links to files lead somewhere.
func TestLinks(t *testing.T) {
	for _, file := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(readme), file))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, link := range submatches(`\]\(([^)#]+)[^)]*\)`, string(b)) {
			if strings.HasPrefix(link, "http") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(readme), link)); err != nil {
				t.Errorf("%s links to %s: %v", file, link, err)
			}
		}
	}
}
