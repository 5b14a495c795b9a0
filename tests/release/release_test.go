package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	return strings.Fields(string(out))
}

func caddyVersion(t *testing.T) string {
	t.Helper()
	return goList(t, "-m", "-f", "{{.Version}}", "github.com/caddyserver/caddy/v2")[0]
}

func TestEveryoneNamesTheSameCaddy(t *testing.T) {
	want := caddyVersion(t)
	for file, re := range map[string]string{
		"Dockerfile":              `(?m)^ARG CADDY_VERSION=(\S+)$`,
		"README.md":               `xcaddy build (v\S+)`,
		"CONTRIBUTING.md":         `xcaddy build (v\S+)`,
		"CHANGELOG.md":            `Built on Caddy (v[\d.]*\d)`,
		"tests/thirdparty/go.mod": `github.com/caddyserver/caddy/v2 (v\S+)`,
	} {
		found := regexp.MustCompile(re).FindAllStringSubmatch(read(t, file), -1)
		if len(found) == 0 {
			t.Errorf("%s names no version of Caddy", file)
		}
		for _, m := range found {
			if got := "v" + strings.TrimPrefix(m[1], "v"); got != want {
				t.Errorf("%s: Caddy %s, go.mod has %s", file, got, want)
			}
		}
	}
}

// instructions returns the Dockerfile's instructions, each in one line.
func instructions(t *testing.T) []string {
	t.Helper()
	text := strings.ReplaceAll(read(t, "Dockerfile"), "\\\n", "")
	var found []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !strings.HasPrefix(line, "#") {
			found = append(found, line)
		}
	}
	return found
}

func TestDockerfile(t *testing.T) {
	lines := instructions(t)
	known := []string{"ARG", "FROM", "ENV", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "CMD"}
	for _, line := range lines {
		if word, _, _ := strings.Cut(line, " "); !slices.Contains(known, word) {
			t.Errorf("unexpected instruction: %s", line)
		}
	}
	for _, want := range []string{
		"FROM caddy:${CADDY_VERSION}-builder AS builder",
		"ENV XCADDY_SETCAP=0",
		"FROM caddy:${CADDY_VERSION}",
		"COPY --from=builder /usr/bin/caddy /usr/bin/caddy",
		"USER 1000:1000",
		"EXPOSE 8080",
		`CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("the Dockerfile lacks: %s", want)
		}
	}
	// An ARG before the first FROM is not known after it unless named again.
	first := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "FROM ") })
	if !slices.Contains(lines[first:], "ARG CADDY_VERSION") {
		t.Error("the builder does not know CADDY_VERSION")
	}
}

// What the root package needs of this module is in the image's builder.
func TestDockerfileCopiesTheSources(t *testing.T) {
	var copied []string
	for _, line := range instructions(t) {
		fields := strings.Fields(line)
		if fields[0] != "COPY" || strings.HasPrefix(fields[1], "--") {
			continue
		}
		for _, source := range fields[1 : len(fields)-1] {
			if _, err := os.Stat(filepath.Join(root, source)); err != nil {
				t.Errorf("the Dockerfile copies what is not there: %v", err)
			}
			copied = append(copied, source)
		}
	}
	module := goList(t, "-m")[0]
	for _, pkg := range goList(t, "-deps", ".") {
		dir, own := strings.CutPrefix(pkg, module)
		if !own {
			continue
		}
		top, _, _ := strings.Cut(strings.TrimPrefix(dir, "/"), "/")
		if top == "" {
			continue // the root's own files, below
		}
		if !slices.Contains(copied, top) {
			t.Errorf("the Dockerfile does not copy %s, which has %s", top, pkg)
		}
	}
	for _, file := range slices.Concat(goList(t, "-f", `{{join .GoFiles " "}}`, "."), []string{"go.mod", "go.sum"}) {
		if !slices.Contains(copied, file) {
			t.Errorf("the Dockerfile does not copy %s", file)
		}
	}
}
