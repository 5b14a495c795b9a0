// Package blackbox tests the built gateway as its users see it: over HTTP, with
// real clients, simulated engines and upstreams made of plain sockets. A test
// that shows a case of the list of field failures has the case's id in its name.
package blackbox

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// model returns a model's block.
func model(name string, lines ...string) string {
	return "model " + name + " {\n\t" + strings.Join(lines, "\n\t") + "\n}\n"
}

// to returns the line that lists upstreams.
func to(us ...*harness.Upstream) string { return "to " + addrs(us...) }

func addrs(us ...*harness.Upstream) string {
	list := make([]string, len(us))
	for i, u := range us {
		list[i] = u.Addr
	}
	return strings.Join(list, " ")
}

// serve starts a gateway with the model m over the upstreams.
func serve(t *testing.T, routing string, us ...*harness.Upstream) *harness.Gateway {
	t.Helper()
	lines := []string{to(us...)}
	if routing != "" {
		lines = append(lines, "routing "+routing)
	}
	return harness.Start(t, harness.Config{Flexinfer: model("m", lines...)})
}

// chat returns the body of a chat with one message for the model m.
func chat(content string) string { return chatOf("m", content) }

func chatOf(model, content string) string {
	return fmt.Sprintf(`{"model":%s,"messages":[{"role":"user","content":%s}]}`, quote(model), quote(content))
}

// bare returns a request's body that holds nothing to route by but its model.
func bare(model string) string { return `{"model":` + quote(model) + `}` }

// quote returns s as JSON.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always can be
	}
	return string(b)
}

// upstreamOf returns which upstream gave an answer of harness.Answer.
func upstreamOf(t *testing.T, res *harness.Response) string {
	t.Helper()
	return harness.Decode[struct{ Upstream string }](t, res.Body).Upstream
}

// named returns a handler that answers as harness.Answer does, with a name for
// the upstream.
func named(name string) func(*harness.Exchange) {
	return func(x *harness.Exchange) { x.Respond(200, "application/json", fmt.Sprintf(`{"upstream":%q}`, name)) }
}

// firstAndLast answers with a stream of two events, the last once the gate is
// open.
func firstAndLast(x *harness.Exchange, gate *harness.Gate) {
	x.StartStream("text/event-stream")
	x.Chunk("data: first\n\n")
	if gate.Wait(x) {
		x.Chunk("data: last\n\n")
		x.EndStream()
	}
}

// spreadEvenly fails the test unless n requests for the model m are spread over
// the upstreams, each of which gets from least to most of them: counts that
// were left behind would show.
func spreadEvenly(t *testing.T, g *harness.Gateway, ups []*harness.Upstream, path string, n, least, most int) {
	t.Helper()
	for _, u := range ups {
		u.Forget()
	}
	inParallel(t, 4, n, func(ctx context.Context, _ int) error {
		_, err := g.Try(ctx, http.MethodPost, path, bare("m"))
		return err
	})
	for i, got := range served(ups) {
		if got < least || got > most {
			t.Errorf("upstream %d got %d of %d requests", i, got, n)
		}
	}
}

// inParallel calls do with 0 to n-1, from so many goroutines at once, and
// fails the test with the first error.
func inParallel(t *testing.T, workers, n int, do func(ctx context.Context, i int) error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(fmt.Errorf("%d: %w", i, err))
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
}

// counts is how often each upstream was picked.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[name]++
}

// served returns how many requests each upstream got.
func served(us []*harness.Upstream) []int {
	n := make([]int, len(us))
	for i, u := range us {
		n[i] = u.Served()
	}
	return n
}

func sum(body string) [sha256.Size]byte { return sha256.Sum256([]byte(body)) }
