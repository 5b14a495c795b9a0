package blackbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// ways are those in which a client leaves.
var ways = []struct {
	name string
	how  func(cancel, cut func())
}{
	{"the request is cancelled", func(cancel, _ func()) { cancel() }},
	{"the connection is cut", func(_, cut func()) { cut() }},
}

// A phase is how far a request has got when its client leaves.
type phase struct {
	name string

	// body returns what the client sends. It may end early, in a wait.
	body func(ctx context.Context) (io.Reader, int64)

	// reaches says that an upstream gets the request, answers that the client
	// gets the head of an answer.
	reaches, answers bool
}

func phases() []phase {
	body := `{"model":"m","stream":true,"padding":"` + strings.Repeat("x", 20_000) + `"}`
	whole := func(context.Context) (io.Reader, int64) { return strings.NewReader(body), int64(len(body)) }
	return []phase{
		{name: "before the body", body: func(ctx context.Context) (io.Reader, int64) {
			return &stuck{ctx: ctx, r: strings.NewReader("")}, int64(len(body))
		}},
		{name: "in the upload", body: func(ctx context.Context) (io.Reader, int64) {
			return &stuck{ctx: ctx, r: strings.NewReader(body[:10_000])}, int64(len(body))
		}},
		{name: "in an upload of unknown length", body: func(ctx context.Context) (io.Reader, int64) {
			return &stuck{ctx: ctx, r: strings.NewReader(body[:10_000])}, -1
		}},
		{name: "before the headers", body: whole, reaches: true},
		{name: "in the stream", body: whole, reaches: true, answers: true},
	}
}

// stuck is a body that stops before its end.
type stuck struct {
	ctx context.Context
	r   io.Reader
}

func (s *stuck) Read(p []byte) (int, error) {
	if n, err := s.r.Read(p); n > 0 || err != io.EOF {
		return n, err
	}
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// watcher is an upstream that answers until the gateway gives up, and tells
// when it gets a request and when that is given up.
type watcher struct {
	*harness.Upstream
	got, gone atomic.Int64
}

func newWatchers(t *testing.T, n int) []*watcher {
	t.Helper()
	ws := make([]*watcher, n)
	for i := range ws {
		w := new(watcher)
		ws[i] = w
		w.Upstream = harness.NewUpstream(t, func(x *harness.Exchange) {
			gone := x.Gone()
			if strings.HasSuffix(x.Target, "/stream") {
				x.StartStream("text/event-stream")
				x.Chunk("data: {}\n\n")
			}
			w.got.Add(1)
			<-gone
			w.gone.Add(1)
		})
	}
	return ws
}

// A client that leaves, however and whenever it does, ends its request
// upstream within a second. Nothing is sent a second time, and every count is
// back at 0 in two.
func TestL1_ClientsThatLeave(t *testing.T) {
	t.Parallel()
	for _, protocol := range harness.Protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			ups := newWatchers(t, 2)
			g := harness.Start(t, harness.Config{
				Flexinfer: model("m", to(ups[0].Upstream, ups[1].Upstream), "routing least-loaded") + "retries 3", TLS: true,
			})
			for _, phase := range phases() {
				for _, way := range ways {
					t.Run(phase.name+", "+way.name, func(t *testing.T) { leaveEarly(t, g, ups, protocol, phase, way.how) })
				}
			}
			m := g.Metrics(t)
			if n := m.Value("flexinfer_proxy_upstream_retries_total"); n != 0 {
				t.Errorf("%v retries were made for clients that had left", n)
			}
			if n := m.Value("flexinfer_proxy_requests_total", "status", "upstream_error"); n != 0 {
				t.Errorf("%v requests of clients that left count as errors of the upstream", n)
			}
			for _, s := range m.Series("flexinfer_proxy_upstream_healthy") {
				if s.Value != 1 {
					t.Errorf("an upstream is taken for unhealthy because clients left: %s", s)
				}
			}
		})
	}
}

func leaveEarly(t *testing.T, g *harness.Gateway, ups []*watcher, protocol string, phase phase, leave func(cancel, cut func())) {
	t.Helper()
	const clients = 6
	count := func(of func(*watcher) int64) (n int64) {
		for _, u := range ups {
			n += of(u)
		}
		return n
	}
	got := func() int64 { return count(func(w *watcher) int64 { return w.got.Load() }) }
	gone := func() int64 { return count(func(w *watcher) int64 { return w.gone.Load() }) }
	connections := func() int64 { return count(func(w *watcher) int64 { return int64(w.Connections()) }) }
	gotBefore, goneBefore, madeBefore := got(), gone(), connections()

	path := "/v1/hold"
	if phase.answers {
		path = "/v1/stream"
	}
	ctx, endBodies := context.WithCancel(t.Context())
	t.Cleanup(endBodies)
	var leaving []func()
	ended := make(chan error, clients)
	for range clients {
		client, cut := g.NewProtocolClient(t, protocol)
		// A cut connection does not end the wait of a body.
		body, length := phase.body(ctx)
		requestCtx, cancel := context.WithCancel(ctx)
		t.Cleanup(cancel)
		req, err := http.NewRequestWithContext(requestCtx, http.MethodPost, g.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Content-Type", "application/json")
		answered := make(chan struct{})
		go func() { ended <- read(client, req, answered) }()
		if phase.answers {
			harness.Receive(t, answered, "the client has the head of its answer")
		}
		leaving = append(leaving, func() { leave(cancel, cut) })
	}
	if phase.reaches {
		harness.Eventually(t, harness.Patience, "the upstreams have the requests", func() bool { return got()-gotBefore == clients })
	} else {
		time.Sleep(100 * time.Millisecond) // the uploads get under way, which nothing tells
	}

	left := time.Now()
	for _, leave := range leaving {
		leave()
	}
	if phase.reaches && !harness.Within(time.Second, func() bool { return gone()-goneBefore == clients }) {
		t.Errorf("%s after the clients left, %d of %d requests are closed upstream", time.Since(left), gone()-goneBefore, clients)
	}
	g.WaitIdle(t)
	endBodies()
	for range clients {
		if err := harness.Receive(t, ended, "the client gives up"); err == nil {
			t.Error("a request that was left ended well")
		}
	}
	want := int64(0)
	if phase.reaches {
		want = clients
	}
	if n := got() - gotBefore; n != want {
		t.Errorf("the upstreams got %d requests of %d clients, want %d", n, clients, want)
	}
	if n := connections() - madeBefore; n > want {
		t.Errorf("%d connections were made to the upstreams for %d requests", n, want)
	}
}

// read makes a request and reads its answer, which should not come to its end.
func read(client *http.Client, req *http.Request, answered chan<- struct{}) error {
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	close(answered)
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	_, err = io.Copy(io.Discard, res.Body)
	return err
}
