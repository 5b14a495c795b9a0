package blackbox

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// streams is an upstream whose streams go on when the test says so. The path's
// last part names the stream.
type streams struct {
	*harness.Upstream
	gates map[string]*harness.Gate
}

func newStreams(t *testing.T, names ...string) *streams {
	t.Helper()
	s := &streams{gates: make(map[string]*harness.Gate)}
	for _, name := range names {
		s.gates[name] = harness.NewGate(t)
	}
	s.Upstream = harness.NewUpstream(t, func(x *harness.Exchange) {
		gate := s.gates[x.Target[strings.LastIndexByte(x.Target, '/')+1:]]
		if gate == nil {
			harness.Answer(x)
			return
		}
		firstAndLast(x, gate)
	})
	return s
}

// finish lets a stream go on to its end.
func (s *streams) finish(name string) { s.gates[name].Open() }

// A clientStream is what a client has of a stream.
type clientStream struct {
	res  *http.Response
	body *bufio.Reader
}

// openStream opens the stream of that name and reads its first event.
func openStream(t *testing.T, g *harness.Gateway, client *http.Client, name string) *clientStream {
	t.Helper()
	return openStreamOf(t, g, client, "m", name)
}

func openStreamOf(t *testing.T, g *harness.Gateway, client *http.Client, model, name string) *clientStream {
	t.Helper()
	req, err := g.NewRequest(t.Context(), http.MethodPost, "/v1/"+name, `{"stream":true,"model":`+quote(model)+`}`)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatalf("the stream %s: %v", name, err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	s := &clientStream{res, bufio.NewReader(res.Body)}
	for _, want := range []string{"data: first\n", "\n"} {
		if line, err := s.body.ReadString('\n'); err != nil || line != want {
			t.Fatalf("the stream %s begins with %q, %v", name, line, err)
		}
	}
	return s
}

// rest reads the stream to its end.
func (s *clientStream) rest() (string, error) {
	b, err := io.ReadAll(s.body)
	return string(b), err
}

// A gateway that is told to stop says so at once, serves what comes while
// shutdown_delay lasts, lets every stream end, whichever configuration it began
// under, and exits with 0.
func TestX2_StreamsOfAllConfigurationsEndBeforeTheExit(t *testing.T) {
	t.Parallel()
	for _, protocol := range harness.Protocols {
		for _, order := range [][]string{{"older", "newer"}, {"newer", "older"}} {
			t.Run(protocol+", the "+order[0]+" ends first", func(t *testing.T) {
				t.Parallel()
				up := newStreams(t, "older", "newer")
				cfg := harness.Config{Flexinfer: model("m", to(up.Upstream)), Global: "shutdown_delay 2s\ngrace_period 20s", TLS: true}
				g := harness.Start(t, cfg)
				open := make(map[string]*clientStream)
				client, _ := g.NewProtocolClient(t, protocol)
				open["older"] = openStream(t, g, client, "older")
				cfg.Flexinfer += "retries 1"
				g.Reload(t, cfg)
				later, _ := g.NewProtocolClient(t, protocol)
				open["newer"] = openStream(t, g, later, "newer")

				g.Signal(t, syscall.SIGTERM)
				harness.Eventually(t, time.Second, "/readyz says that the gateway drains", func() bool {
					res, err := g.TryFresh(t.Context(), http.MethodGet, "/readyz", "")
					return err == nil && res.Status == http.StatusServiceUnavailable
				})
				// On a connection that is there, and on one that is new.
				fresh, _ := g.NewProtocolClient(t, protocol)
				for name, c := range map[string]*http.Client{"kept": later, "new": fresh} {
					req, err := g.NewRequest(t.Context(), http.MethodPost, "/v1/chat/completions", chat("one more"))
					if err != nil {
						t.Fatal(err)
					}
					if res, err := harness.DoWith(c, req); err != nil || res.Status != http.StatusOK {
						t.Errorf("a request on a %s connection while the gateway drains: %v %v", name, res, err)
					}
				}
				waitClosed(t, g)
				for _, name := range order {
					if g.Ended() {
						t.Fatalf("the gateway ended before the %s stream", name)
					}
					up.finish(name)
					if rest, err := open[name].rest(); err != nil || rest != "data: last\n\n" {
						t.Errorf("the %s stream ended with %q, %v", name, rest, err)
					}
				}
				if code := g.ExitCode(t, 10*time.Second); code != 0 {
					t.Errorf("the exit code is %d", code)
				}
			})
		}
	}
}

// The grace period begins with the signal also for a stream that an earlier
// configuration began longer ago than that.
func TestX2_StreamOfLongBeforeHasItsGracePeriodToo(t *testing.T) {
	t.Parallel()
	// Over HTTP/3 Caddy cuts what is left when the grace period of a reload is over.
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			const grace = 1500 * time.Millisecond
			up := newStreams(t, "ends", "goes-on")
			cfg := harness.Config{Flexinfer: model("m", to(up.Upstream)), Global: fmt.Sprintf("grace_period %s", grace), TLS: true}
			g := harness.Start(t, cfg)
			client, _ := g.NewProtocolClient(t, protocol)
			ends, goesOn := openStream(t, g, client, "ends"), openStream(t, g, client, "goes-on")
			g.Reload(t, cfg)
			g.Logs().Wait(t, "server shutdown", func(e harness.Entry) bool { return e.Text("level") == "error" })

			begun := time.Now()
			g.Signal(t, syscall.SIGTERM)
			waitClosed(t, g)
			time.Sleep(grace / 3) // the gateway has to do nothing in this time
			up.finish("ends")
			if rest, err := ends.rest(); err != nil || rest != "data: last\n\n" {
				t.Errorf("a stream in the grace period ended with %q, %v", rest, err)
			}
			if rest, err := goesOn.rest(); err == nil || rest != "" {
				t.Errorf("a stream that outlasts the grace period ended with %q, %v", rest, err)
			}
			if took := time.Since(begun); took < grace*9/10 || took > 5*grace {
				t.Errorf("the gateway ended after %s, the grace period is %s", took, grace)
			}
			if code := g.ExitCode(t, 10*time.Second); code != 0 {
				t.Errorf("the exit code is %d", code)
			}
		})
	}
}

// waitClosed waits until the gateway takes no new connection.
func waitClosed(t *testing.T, g *harness.Gateway) {
	t.Helper()
	harness.Eventually(t, harness.Patience, "the listener is closed", func() bool {
		_, err := g.TryFresh(t.Context(), http.MethodGet, "/healthz", "")
		return err != nil
	})
}

// A stream that is longer than the grace period is broken off. Its client can
// tell that from its end.
func TestX2_GracePeriodBreaksStreamsOff(t *testing.T) {
	t.Parallel()
	for _, protocol := range harness.Protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			const grace = time.Second
			up := newStreams(t, "older", "newer")
			cfg := harness.Config{Flexinfer: model("m", to(up.Upstream)), Global: fmt.Sprintf("grace_period %s", grace), TLS: true}
			g := harness.Start(t, cfg)
			client, _ := g.NewProtocolClient(t, protocol)
			open := map[string]*clientStream{"older": openStream(t, g, client, "older")}
			g.Reload(t, cfg)
			later, _ := g.NewProtocolClient(t, protocol)
			open["newer"] = openStream(t, g, later, "newer")

			begun := time.Now()
			g.Signal(t, syscall.SIGTERM)
			for name, s := range open {
				if rest, err := s.rest(); err == nil || rest != "" {
					t.Errorf("the %s stream ended with %q, %v: its client takes it for whole", name, rest, err)
				}
				if took := time.Since(begun); took < grace/2 || took > 10*grace {
					t.Errorf("the %s stream ended after %s, the grace period is %s", name, took, grace)
				}
			}
			if code := g.ExitCode(t, 10*time.Second); code != 0 {
				t.Errorf("the exit code is %d", code)
			}
		})
	}
}

// Shutdowns are counted: that one began from the signal on, and how it ended
// in what is pushed at the very end. What comes too late for the push, once the
// grace period is over, is in the log.
func TestShutdownMetrics(t *testing.T) {
	t.Parallel()
	const total, seconds = "flexinfer_proxy_shutdowns_total", "flexinfer_proxy_shutdown_duration_seconds"
	for _, result := range []string{"completed", "timeout"} {
		t.Run(result, func(t *testing.T) {
			t.Parallel()
			otlp := harness.NewCollector(t)
			up := newStreams(t, "stream")
			cfg := harness.Config{
				Flexinfer: model("m", to(up.Upstream)), Env: otlp.Env(),
				Global: "shutdown_delay 1s\ngrace_period 1s\nmetrics {\n\totlp\n}",
			}
			g := harness.Start(t, cfg)
			m := g.Metrics(t)
			if n := len(m.Series(total)); n != 3 || m.Value(total) != 0 {
				t.Errorf("before the shutdown there are %d series of a sum of %v", n, m.Value(total))
			}
			if got, want := fmt.Sprint(m.Buckets(seconds)), "[0.1 0.5 1 2 5 10 30 60 120 300 600]"; got != want {
				t.Errorf("%s has the buckets %s, want %s", seconds, got, want)
			}
			// A call of an earlier configuration for a model that is gone counts too.
			openStream(t, g, g.Client, "stream")
			cfg.Flexinfer = model("n", to(harness.NewUpstream(t, nil)))
			g.Reload(t, cfg)

			g.Signal(t, syscall.SIGTERM)
			harness.Eventually(t, time.Second, "the shutdown is counted", func() bool {
				res, err := g.TryFresh(t.Context(), http.MethodGet, "/metrics", "")
				return err == nil && strings.Contains(string(res.Body), total+`{result="started"} 1`)
			})
			if result == "completed" {
				waitClosed(t, g)
				up.finish("stream")
			}
			if code := g.ExitCode(t, 10*time.Second); code != 0 {
				t.Errorf("the exit code is %d", code)
			}
			logged := g.Logs().Entries("drained")
			if len(logged) != 1 || logged[0].Text("result") != result || logged[0]["duration"].(float64) < 1 {
				t.Fatalf("the log says %v", logged)
			}
			if result == "timeout" {
				return
			}
			for label, want := range map[string]float64{"started": 1, "completed": 1, "timeout": 0} {
				if got := otlp.Value(total, "result", label); got != want {
					t.Errorf("the last push has %s{result=%q} %v, want %v", total, label, got, want)
				}
			}
			if n := otlp.Value(seconds); n != 1 {
				t.Errorf("the last push has %v observations of %s, want 1", n, seconds)
			}
		})
	}
}

// What is sent to a gateway that no longer listens fails at once, so that a
// client can go elsewhere.
func TestDrainedGatewayRefusesConnections(t *testing.T) {
	t.Parallel()
	up := newStreams(t, "stream")
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up.Upstream)), Global: "grace_period 20s"})
	s := openStream(t, g, g.Client, "stream")
	g.Signal(t, syscall.SIGTERM)
	waitClosed(t, g)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if res, err := g.TryFresh(ctx, http.MethodPost, "/v1/chat/completions", chat("late")); err == nil || ctx.Err() != nil {
		t.Errorf("a request after the listener was closed: %v %v", res, err)
	}
	up.finish("stream")
	if rest, err := s.rest(); err != nil || rest != "data: last\n\n" {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	if code := g.ExitCode(t, 10*time.Second); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
}
