package blackbox

import (
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A call that finds its model dead has it woken, and waits for it: long before
// the next probe would have found out.
func TestCallThatFindsItsModelDead(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, (*sleeper).wake)
	g := harness.Start(t, harness.Config{Flexinfer: strings.Replace(s.config(8, "10m"), "idle_timeout", "interval 10m\n\tidle_timeout", 1)})
	if res := g.Post(t, "/v1/chat/completions", chat("first")); res.Status != http.StatusOK {
		t.Fatalf("the call that wakes it: %s", res)
	}
	for i := int64(2); i < 5; i++ {
		s.sleep() // it crashes
		if res := g.Post(t, "/v1/chat/completions", chat("again")); res.Status != http.StatusOK {
			t.Errorf("the call that finds it dead: %s", res)
		}
		if n := s.starts.Load(); n != i {
			t.Errorf("%d start requests, want %d", n, i)
		}
	}
	g.WaitIdle(t)
}

// Calls that wait for a label go to whichever of its models serves first, and a
// reload that gives the label to another takes them along.
func TestCallsMoveWithTheirLabel(t *testing.T) {
	t.Parallel()
	a, b := newSleeper(t, nil), newSleeper(t, nil)
	claims := func(name string, s *sleeper) string {
		return strings.Replace(s.config(8, "10m", "service_label chat"), "model m ", "model "+name+" ", 1)
	}
	cfg := harness.Config{Flexinfer: claims("a", a) + claims("b", b)}
	g := harness.Start(t, cfg)
	begin := func() <-chan *harness.Response {
		waiting := func() float64 {
			m := g.Metrics(t)
			return m.Value("flexinfer_proxy_queue_depth", "model", "a") + m.Value("flexinfer_proxy_queue_depth", "model", "b")
		}
		answer := make(chan *harness.Response, 1)
		go func() {
			res, err := g.Try(t.Context(), http.MethodPost, "/v1/chat/completions", chatOf("chat", "hi"))
			if err != nil {
				t.Error(err)
			}
			answer <- res
		}()
		harness.Eventually(t, harness.Patience, "the call waits", func() bool { return waiting() == 1 })
		return answer
	}
	first := begin()
	b.wake() // by somebody else
	if res := <-first; res == nil || res.Status != http.StatusOK || len(b.bodies()) != 1 {
		t.Errorf("the call that waited for the other: %v", res)
	}
	b.sleep()
	cfg.Flexinfer = claims("a", a)
	g.Reload(t, cfg)
	second := begin()
	c := newSleeper(t, (*sleeper).wake)
	cfg.Flexinfer = claims("c", c)
	g.Reload(t, cfg)
	if res := <-second; res == nil || res.Status != http.StatusOK || len(c.bodies()) != 1 {
		t.Errorf("the call whose label went to another: %v", res)
	}
	g.WaitIdle(t)
}

// A call that waits in vain for another attempt is told so once, as one that
// waits for its first.
func TestRetryThatWaitsInVain(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, nil) // nobody starts it
	g := harness.Start(t, harness.Config{
		Flexinfer: strings.Replace(s.config(8, "10m", "cold_start_timeout 1s"), "idle_timeout", "interval 10m\n\tidle_timeout", 1) + "queue {\n\ttimeout 1s\n}",
	})
	s.wake()
	harness.Eventually(t, harness.Patience, "it serves", func() bool {
		return g.Post(t, "/v1/chat/completions", chat("first")).Status == http.StatusOK
	})
	s.sleep()
	begun := g.Metrics(t).Value("flexinfer_proxy_queued_requests_total", "model", "m")
	res := g.Post(t, "/v1/chat/completions", chat("again"))
	if code := res.Refusal(t).Error.Code; res.Status < 500 || code != "timeout" && code != "activation_failed" {
		t.Errorf("the call that finds it dead: %s", res)
	}
	if n := g.Metrics(t).Value("flexinfer_proxy_queued_requests_total", "model", "m") - begun; n != 1 {
		t.Errorf("it waited %v times", n)
	}
	g.WaitIdle(t)
}
