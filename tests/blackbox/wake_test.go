package blackbox

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// A sleeper is an engine that a box starts and stops on request.
type sleeper struct {
	addr, box   string       // where the engine and the box listen
	probes      atomic.Int64 // while it is awake
	starts      atomic.Int64
	stops       atomic.Int64
	inflight    atomic.Int64
	maxInflight atomic.Int64

	mu     sync.Mutex
	engine *http.Server // nil while it sleeps
	served []string     // bodies in the order of their beginning
	hold   chan struct{}
}

// newSleeper starts a box whose engine sleeps. When it is started started is
// called, in the background, which may wake it.
func newSleeper(t *testing.T, started func(*sleeper)) *sleeper {
	t.Helper()
	s := &sleeper{addr: harness.FreeAddr(t)}
	box := http.NewServeMux()
	box.HandleFunc("POST /start", func(w http.ResponseWriter, _ *http.Request) {
		s.starts.Add(1)
		w.WriteHeader(http.StatusAccepted)
		if started != nil {
			go started(s)
		}
	})
	box.HandleFunc("POST /stop", func(http.ResponseWriter, *http.Request) {
		s.stops.Add(1)
		s.sleep()
	})
	ln, err := net.Listen("tcp", harness.Loopback(0))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: box}
	go func() { _ = server.Serve(ln) }()
	s.box = ln.Addr().String()
	t.Cleanup(func() {
		_ = server.Close()
		s.sleep()
	})
	return s
}

func (s *sleeper) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine != nil {
		return
	}
	ln, err := net.Listen("tcp", s.addr)
	if err != nil {
		panic(err)
	}
	s.engine = &http.Server{Handler: s}
	go func(e *http.Server) { _ = e.Serve(ln) }(s.engine)
}

func (s *sleeper) sleep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine != nil {
		_ = s.engine.Close()
		s.engine = nil
	}
}

// ServeHTTP is the engine.
func (s *sleeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		s.probes.Add(1)
		return
	}
	body, _ := io.ReadAll(r.Body)
	n := s.inflight.Add(1)
	defer s.inflight.Add(-1)
	for most := s.maxInflight.Load(); n > most && !s.maxInflight.CompareAndSwap(most, n); most = s.maxInflight.Load() {
	}
	s.mu.Lock()
	s.served = append(s.served, string(body))
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"ok":true}`)
}

func (s *sleeper) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.served)
}

// config returns the block of the model m.
func (s *sleeper) config(inflight int, idle string, more ...string) string {
	return model("m", append([]string{
		"to " + s.addr + " {", "\tmax_inflight " + strconv.Itoa(inflight), "}",
		"activate http {",
		"\tstart POST http://" + s.box + "/start",
		"\tready GET http://" + s.addr + "/health",
		"\tstop POST http://" + s.box + "/stop",
		"\tidle_timeout " + idle, "}",
	}, more...)...)
}

// asleep waits until the gateway has found out that the model sleeps.
func asleep(t *testing.T, g *harness.Gateway) {
	t.Helper()
	g.Logs().Wait(t, "model is asleep", func(e harness.Entry) bool { return e.Text("model") == "m" })
}

// background makes a call in the background.
func background(ctx context.Context, t *testing.T, g *harness.Gateway, content string) <-chan *harness.Response {
	t.Helper()
	done := make(chan *harness.Response, 1)
	go func() {
		res, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", chat(content))
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		done <- res
	}()
	return done
}

// Q3: many calls wake a model once, and it never gets more than it may have.
func TestQ3_ManyCallsWakeOnce(t *testing.T) {
	t.Parallel()
	const calls = 200
	s := newSleeper(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: s.config(8, "10m") + "queue {\n\tmax_size 200\n}"})
	asleep(t, g)
	answers := make([]<-chan *harness.Response, calls)
	for i := range answers {
		answers[i] = background(t.Context(), t, g, strconv.Itoa(i))
	}
	queued(t, g, calls)
	if n := s.starts.Load(); n != 1 {
		t.Errorf("it was started %d times", n)
	}
	s.wake()
	for _, a := range answers {
		if res := harness.Receive(t, a, "an answer"); res == nil || res.Status != http.StatusOK {
			t.Fatalf("an answer is %v", res)
		}
	}
	if n := s.starts.Load(); n != 1 {
		t.Errorf("it was started %d times", n)
	}
	if n := s.maxInflight.Load(); n > 8 {
		t.Errorf("it had %d calls at a time", n)
	}
	if n := len(s.bodies()); n != calls {
		t.Errorf("it got %d calls for %d", n, calls)
	}
	queued(t, g, 0)
	g.WaitIdle(t)
}

// Calls that come and leave do not have the model started each time.
func TestQ3_CallsThatLeaveWakeOnce(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: s.config(8, "10m")})
	asleep(t, g)
	begun := time.Now()
	for range 20 {
		ctx, leave := context.WithCancel(t.Context())
		answer := background(ctx, t, g, "x")
		queued(t, g, 1)
		leave()
		<-answer
		queued(t, g, 0)
	}
	// The request is made once in 5 s, however slow this machine is.
	if n, most := s.starts.Load(), 1+int64(time.Since(begun)/(5*time.Second)); n > most {
		t.Errorf("it was started %d times in %s", n, time.Since(begun))
	}
}

func TestWaitingCallsGoInTheirOrder(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: s.config(1, "10m")})
	asleep(t, g)
	var answers []<-chan *harness.Response
	var want []string
	for i := range 20 {
		answers = append(answers, background(t.Context(), t, g, strconv.Itoa(i)))
		want = append(want, chat(strconv.Itoa(i)))
		queued(t, g, i+1)
	}
	s.wake()
	for _, a := range answers {
		harness.Receive(t, a, "an answer")
	}
	if got := s.bodies(); !slices.Equal(got, want) {
		t.Errorf("they went as %q", got)
	}
}

func TestQueueIsFull(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: s.config(8, "10m") + "queue {\n\tmax_size 3\n}"})
	asleep(t, g)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var answers []<-chan *harness.Response
	for i := range 3 {
		c := t.Context()
		if i == 1 {
			c = ctx
		}
		answers = append(answers, background(c, t, g, strconv.Itoa(i)))
	}
	queued(t, g, 3)
	res := g.Post(t, "/v1/chat/completions", chat("one too many"))
	if e := res.Refusal(t); res.Status != http.StatusServiceUnavailable || e.Error.Code != "queue_full" {
		t.Errorf("it is answered %s", res)
	}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || n < 1 {
		t.Errorf("Retry-After is %q", res.Header.Get("Retry-After"))
	}

	leave() // makes room
	queued(t, g, 2)
	answers[1] = background(t.Context(), t, g, "later")
	queued(t, g, 3)
	s.wake()
	for _, a := range answers {
		if res := harness.Receive(t, a, "an answer"); res == nil || res.Status != http.StatusOK {
			t.Errorf("an answer is %v", res)
		}
	}
	if n := len(s.bodies()); n != 3 {
		t.Errorf("it got %d calls", n)
	}
}

// A call that nobody has room for is told so when its time is over.
func TestWaitIsOver(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, (*sleeper).wake)
	s.hold = make(chan struct{})
	g := harness.Start(t, harness.Config{Flexinfer: s.config(1, "10m") + "queue {\n\ttimeout 1s\n\tcold_start_timeout 1s\n}"})
	asleep(t, g)
	first := background(t.Context(), t, g, "first")
	harness.Eventually(t, harness.Patience, "the call is under way", func() bool { return s.inflight.Load() == 1 })
	res := g.Post(t, "/v1/chat/completions", chat("second"))
	if e := res.Refusal(t); res.Status != http.StatusGatewayTimeout || e.Error.Code != "timeout" {
		t.Errorf("it is answered %s", res)
	}
	queued(t, g, 0)
	close(s.hold)
	if res := harness.Receive(t, first, "the first answer"); res == nil || res.Status != http.StatusOK {
		t.Errorf("the first is answered %v", res)
	}
}

func TestModelDoesNotWake(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: s.config(8, "10m", "cold_start_timeout 1s") + "queue {\n\ttimeout 10s\n}"})
	asleep(t, g)
	res := g.Post(t, "/v1/chat/completions", chat("x"))
	if e := res.Refusal(t); res.Status != http.StatusServiceUnavailable || e.Error.Code != "activation_failed" {
		t.Errorf("it is answered %s", res)
	}
	queued(t, g, 0)
	s.wake()
	g.Logs().Wait(t, "model is serving", func(harness.Entry) bool { return true })
	if res := g.Chat(t, chat("x")); res.Status != http.StatusOK {
		t.Errorf("it is answered %s", res)
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: strings.Replace(s.config(8, "10m"), "/start", "/nowhere", 1) + "queue {\n\tbackoff 1 10ms 10ms\n}"})
	asleep(t, g)
	res := g.Post(t, "/v1/chat/completions", chat("x"))
	if e := res.Refusal(t); res.Status != http.StatusServiceUnavailable || e.Error.Code != "activation_failed" ||
		!strings.Contains(e.Error.Message, "the start request was answered with 404") || strings.Contains(e.Error.Message, s.box) {
		t.Errorf("it is answered %s", res)
	}
	g.Logs().Wait(t, "a start request failed", func(e harness.Entry) bool { return strings.Contains(e.Text("error"), s.box) })
}

func TestIdleModelIsStoppedAndWokenAgain(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, (*sleeper).wake)
	g := harness.Start(t, harness.Config{Flexinfer: s.config(8, "500ms\n\tinterval 100ms")})
	asleep(t, g)
	for round := range int64(3) {
		if res := g.Chat(t, chat("x")); res.Status != http.StatusOK {
			t.Fatalf("it is answered %s", res)
		}
		if n := s.starts.Load(); n != round+1 {
			t.Errorf("it was started %d times", n)
		}
		harness.Eventually(t, harness.Patience, "the model is stopped", func() bool { return s.stops.Load() == round+1 })
	}

	s.hold = make(chan struct{})
	answer := background(t.Context(), t, g, "long")
	harness.Eventually(t, harness.Patience, "the call is under way", func() bool { return s.inflight.Load() == 1 })
	// Before each probe it is seen whether the model is idle, and 100 ms lie between two.
	until := s.probes.Load() + 15
	harness.Eventually(t, harness.Patience, "it is probed for thrice the time after which it is idle", func() bool {
		return s.probes.Load() >= until || s.stops.Load() > 3
	})
	if n := s.stops.Load(); n != 3 {
		t.Error("it is stopped with a call under way")
	}
	close(s.hold)
	if res := harness.Receive(t, answer, "the answer"); res == nil || res.Status != http.StatusOK {
		t.Errorf("the answer is %v", res)
	}
}
