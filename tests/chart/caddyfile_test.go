package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// all has something in each part of the Caddyfile.
const all = `
kubernetes: {namespaces: [models, other], apiGroup: ai.flexinfer, gpuGroups: true, syncTimeout: 20s}
extraGlobal: |
  metrics
  servers {
  	trusted_proxies static private_ranges
  }
extraFlexinfer: |
  routing prefix

  model bge-m3 {
  	endpoints models/bge-m3:http
  }
extraSite: |
  log

  @denied ` + "`{env.LLM_API_KEY} == \"\"`" + `
  respond @denied 401
extraProxy: header_up -Authorization
observability: {tracing: {enabled: true}}
`

func TestCaddyfile(t *testing.T) {
	const want = `{
	admin localhost:2019
	persist_config off
	shutdown_delay {$PROXY_SHUTDOWN_DRAIN_DELAY:5s}
	grace_period {$PROXY_GRACEFUL_SHUTDOWN_TIMEOUT:10m}
	metrics
	servers {
		trusted_proxies static private_ranges
	}

	flexinfer {
		kubernetes {
			namespace models other
			api_group ai.flexinfer
			gpu_groups on
			sync_timeout 20s
		}
		routing prefix

		model bge-m3 {
			endpoints models/bge-m3:http
		}
	}
}

:8080 {
	tracing
	log

	@denied ` + "`{env.LLM_API_KEY} == \"\"`" + `
	respond @denied 401
	flexinfer {
		header_up -Authorization
	}
}
`
	if got := render(t, all).config.Data["Caddyfile"]; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := render(t, `kubernetes: {namespaces: ["*"]}`).config.Data["Caddyfile"]; !strings.Contains(got, "\t\t\tnamespace *\n") {
		t.Errorf("all namespaces:\n%s", got)
	}
	const own = ":8080 {\n\tflexinfer 10.0.0.5:8000\n}\n"
	if got := render(t, "caddyfile: |\n  "+strings.ReplaceAll(strings.TrimSpace(own), "\n", "\n  ")+"\nextraSite: log").config.Data["Caddyfile"]; got != own {
		t.Errorf("a whole one: got\n%s", got)
	}
}

// The gateway takes what the chart writes, and would write it so itself.
func TestCaddyfileIsValid(t *testing.T) {
	cases := []string{``, `kubernetes: {namespaces: ["*"]}`, all}
	examples, err := filepath.Glob("../../examples/kubernetes/values*.yaml")
	if err != nil || len(examples) < 2 {
		t.Fatalf("values among the examples: %v, %v", examples, err)
	}
	for _, file := range examples {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, string(b))
	}
	for _, values := range cases {
		o := render(t, values)
		var env []string
		for name, value := range o.environment(t) {
			env = append(env, name+"="+value)
		}
		caddyfile := o.config.Data["Caddyfile"]
		if out, err := harness.Command(t, caddyfile, env, "fmt", "--diff"); err != nil {
			t.Errorf("%s\nfmt: %v\n%s", values, err, out.Stdout)
		}
		out, err := harness.Command(t, caddyfile, env, "adapt", "--adapter", "caddyfile", "--config")
		if err != nil {
			t.Errorf("%s\nadapt: %v\n%s", values, err, out.Stderr)
			continue
		}
		app := harness.Decode[struct {
			Apps struct {
				HTTP struct {
					GracePeriod   time.Duration `json:"grace_period"`
					ShutdownDelay time.Duration `json:"shutdown_delay"`
				}
			}
		}](t, []byte(out.Stdout)).Apps.HTTP
		if app.GracePeriod != 10*time.Minute || app.ShutdownDelay != 5*time.Second {
			t.Errorf("%s\nthe drain: %v", values, app)
		}
	}
}

// Another Caddyfile makes other pods; nothing else of the configuration does.
func TestChecksum(t *testing.T) {
	sum := func(values string) string {
		return render(t, values).deployment.Spec.Template.Annotations["checksum/config"]
	}
	first := sum(``)
	if again := sum(`proxy: {service: {port: 81}}`); again != first {
		t.Errorf("the same Caddyfile: %s, %s", first, again)
	}
	if other := sum(`extraSite: log`); other == first {
		t.Error("another Caddyfile has the same sum")
	}
}
