package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// claiming returns models that claim the label chat, one for each upstream,
// called a, b, c … Their engines know them as engine-a and so on.
func claiming(ups []*harness.Upstream, priorities ...int) string {
	var b strings.Builder
	for i, u := range ups {
		name := string(rune('a' + i))
		lines := []string{"to " + u.Addr + " {\n\t\tmodel engine-" + name + "\n\t}", "service_label chat"}
		if i < len(priorities) {
			lines = append(lines, "priority "+strconv.Itoa(priorities[i]))
		}
		b.WriteString(model(name, lines...))
	}
	return b.String()
}

// ownModel checks that each upstream got only requests for its own model.
func ownModel(t *testing.T, ups []*harness.Upstream) {
	t.Helper()
	for i, u := range ups {
		want := `"model":"engine-` + string(rune('a'+i)) + `"`
		for _, r := range u.Requests() {
			if !strings.Contains(string(r.Body), want) {
				t.Errorf("upstream %d got %s", i, r.Body)
			}
		}
	}
}

func outcomes(t *testing.T, g *harness.Gateway, strategy string) map[string]float64 {
	t.Helper()
	got := make(map[string]float64)
	for _, s := range g.Metrics(t).Series("flexinfer_proxy_label_group_route_decisions_total") {
		if s.Labels["label"] == "chat" && s.Labels["strategy"] == strategy {
			got[s.Labels["outcome"]] = s.Value
		}
	}
	return got
}

func ask(t *testing.T, g *harness.Gateway, n int, headers func(i int) []string) {
	t.Helper()
	inParallel(t, 4, n, func(ctx context.Context, i int) error {
		var h []string
		if headers != nil {
			h = headers(i)
		}
		res, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", chatOf("chat", "hi "+strconv.Itoa(i)), h...)
		if err != nil || res.Status != http.StatusOK {
			return fmt.Errorf("%v %w", res, err)
		}
		return nil
	})
}

func TestLabelGroupModes(t *testing.T) {
	t.Parallel()
	session := func(i int) []string { return []string{"X-Session-ID", strconv.Itoa(i % 40)} }
	prefix := func(i int) []string { return []string{"X-Flexinfer-Cache-Key", "doc-" + strconv.Itoa(i%40)} }
	for _, tt := range []struct {
		mode, outcome string
		headers       func(int) []string
		pinned        bool
	}{
		{"round-robin", "default_rr", nil, false},
		{"least-loaded", "least_loaded", nil, false},
		{"session", "hashed_session", session, true},
		{"session-or-rr", "hashed_session", session, true},
		{"prefix", "hashed_prefix", prefix, true},
		{"prefix", "hashed_session", session, true},
		{"prefix-or-rr", "fallback_no_key", session, false},
		{"prefix-session-or-rr", "hashed_prefix", prefix, true},
	} {
		t.Run(tt.mode+" "+tt.outcome, func(t *testing.T) {
			t.Parallel()
			ups := harness.NewUpstreams(t, 3, nil)
			g := harness.Start(t, harness.Config{Flexinfer: claiming(ups) + "label_groups " + tt.mode})
			ask(t, g, 240, tt.headers)
			for i, n := range served(ups) {
				if n < 30 {
					t.Errorf("model %d got %d of 240", i, n)
				}
			}
			ownModel(t, ups)
			if got := outcomes(t, g, tt.mode); got[tt.outcome] != 240 || len(got) != 1 {
				t.Errorf("outcomes %v, want all %s", got, tt.outcome)
			}
			if tt.pinned {
				before := served(ups)
				for range 3 { // 40 keys, each at home
					for _, u := range ups {
						u.Forget()
					}
					ask(t, g, 240, tt.headers)
					for i, n := range served(ups) {
						if n != before[i] {
							t.Errorf("model %d got %d, and %d before", i, n, before[i])
						}
					}
				}
			}
			g.WaitIdle(t)
		})
	}
}

// Burst: least-loaded counts a call before it is sent.
func TestLabelGroupLeastLoadedBurst(t *testing.T) {
	t.Parallel()
	p := newPaced(t, 4)
	g := harness.Start(t, harness.Config{Flexinfer: claiming(p.ups) + "label_groups least-loaded"})
	done := make(chan struct{})
	go func() {
		defer close(done)
		inParallel(t, 40, 40, func(ctx context.Context, _ int) error {
			_, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", chatOf("chat", "hi"))
			return err
		})
	}()
	harness.Eventually(t, harness.Patience, "40 calls are under way", func() bool { return len(p.arrived()) == 40 })
	for i, u := range p.ups {
		if n := u.Inflight(); n != 10 {
			t.Errorf("model %d has %d of 40 calls", i, n)
		}
	}
	p.step(t, 40)
	<-done
	g.WaitIdle(t)
}

// The highest priority that serves takes all, and the next as soon as it does
// not.
func TestLabelGroupPriority(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, nil)
	g := harness.Start(t, harness.Config{Flexinfer: claiming(ups, 0, 0, 100) + "health {\n\teject_after 1\n\teject_for 1m\n}\nretries 0"})
	ask(t, g, 20, nil)
	if got := served(ups); got[2] != 20 {
		t.Errorf("served %v", got)
	}
	if got := outcomes(t, g, "round-robin"); got["priority_pick"] != 20 {
		t.Errorf("outcomes %v", got)
	}
	ups[2].Close()
	harness.Eventually(t, harness.Patience, "the gateway finds it gone", func() bool {
		g.Post(t, "/v1/chat/completions", chatOf("c", "hi"))
		return g.Metrics(t).Value("flexinfer_proxy_upstream_healthy", "model", "c") == 0
	})
	ask(t, g, 20, nil)
	if got := served(ups); got[0] != 10 || got[1] != 10 {
		t.Errorf("served %v", got)
	}
	if got := outcomes(t, g, "round-robin"); got["default_rr"] != 20 {
		t.Errorf("outcomes %v", got)
	}
	// All by themselves they are still asked for by their names.
	if res := g.Post(t, "/v1/chat/completions", chatOf("b", "hi")); res.Status != http.StatusOK {
		t.Errorf("a member by its name: %s", res)
	}
	ownModel(t, ups)
}

// A label comes before a model of that name, and the series of a member that
// leaves go with it.
func TestLabelGroupNames(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, nil)
	other := harness.NewUpstream(t, nil)
	cfg := harness.Config{Flexinfer: claiming(ups) + model("chat", to(other))}
	g := harness.Start(t, cfg)
	ask(t, g, 30, nil)
	if other.Served() != 0 {
		t.Error("a model comes before a label")
	}
	e := g.Explain(t, "/v1/chat/completions", chatOf("chat", "hi"))
	if e.Target == "" {
		t.Errorf("explained as %+v", e)
	}
	if got := outcomes(t, g, "round-robin"); got["default_rr"] != 30 {
		t.Errorf("an explanation counts: %v", got)
	}
	cfg.Flexinfer = claiming(ups[:1])
	g.Reload(t, cfg)
	for _, s := range g.Metrics(t).Series("flexinfer_proxy_label_group_route_target_hits_total") {
		if s.Labels["model"] != "a" {
			t.Errorf("still there: %s", s)
		}
	}
	ask(t, g, 3, nil)
	if got := outcomes(t, g, "round-robin"); got["fallback_single"] != 3 {
		t.Errorf("outcomes %v", got)
	}
}
