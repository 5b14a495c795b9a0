package call

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/key"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// first is a strategy that picks the first usable endpoint.
type first struct{}

func (first) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	for i := range s.Len() {
		if s.Usable(req, i) {
			return routing.Decision{Lease: s.Acquire(i), Key: req.PrefixKey()}
		}
	}
	return routing.Decision{}
}

// fixed is a source that never changes.
type fixed []string

func (f fixed) Models() ([]routing.Model, <-chan struct{}) {
	var m routing.Model
	for _, a := range f {
		m.Endpoints = append(m.Endpoints, routing.Spec{Scheme: "http", Address: a})
	}
	return []routing.Model{m}, nil
}

func fixture(t *testing.T, retries int) (*Settings, *catalog.Catalog) {
	t.Helper()
	keys := key.Default()
	cat := catalog.New(catalog.Config{
		Ledger: ledger.New(ledger.Config{}),
		Models: []catalog.Declaration{{
			Name: t.Name(), Aliases: []string{"alias"}, Adapters: []string{"adapter"},
			Strategy: first{}, StrategyName: "first", Sources: []routing.Source{fixed{"a:1", "b:1", "c:1"}},
			Policy: &catalog.Policy{Retries: retries, RetryFloor: 10},
		}},
	})
	t.Cleanup(cat.Close)
	return &Settings{MaxBody: 1 << 20, Keys: &keys, LeaseTTL: time.Hour, Logger: zap.NewNop()}, cat
}

func post(body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

// Attempts go to other endpoints first, each counts once, and nothing is left
// in the end.
func TestAttempts(t *testing.T) {
	set, cat := fixture(t, 3)
	r := post(`{"model":"alias","messages":[]}`)
	c := Begin(r, set)
	if err := c.Resolve(r, cat); err != nil {
		t.Fatal(err)
	}
	snap := c.Model().Snapshot
	var went []string
	for range 4 {
		lease := c.Next(t.Context())
		if lease == nil {
			t.Fatal("no endpoint")
		}
		c.Dial()
		went = append(went, lease.Endpoint().Address)
		if n, _ := snap.Total(&routing.Request{}); n != 1 {
			t.Errorf("%d calls are counted during one attempt", n)
		}
		c.Failed(Unreached, "test")
	}
	if got, want := fmt.Sprint(went), "[a:1 b:1 c:1 a:1]"; got != want {
		t.Errorf("went to %s, want %s", got, want)
	}
	if c.Next(t.Context()) != nil {
		t.Error("one attempt too many")
	}
	c.End()
	c.End()
	if n, _ := snap.Total(&routing.Request{}); n != 0 {
		t.Errorf("%d calls are left", n)
	}
}

// Only the bytes of the model's name change, and only where another is known.
func TestOutgoing(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	tests := []struct{ name, sent, want string }{
		{"declared", `{ "model" : "NAME", "n": 1.0 }`, `{ "model" : "NAME", "n": 1.0 }`},
		{"alias", `{ "model" : "alias", "n": 1.0 }`, `{ "model" : "NAME", "n": 1.0 }`},
		{"escaped alias", `{"\u006dodel":"\u0061lias"}`, `{"\u006dodel":"NAME"}`},
		{"last of two", `{"model":"x","model":"alias"}`, `{"model":"x","model":"NAME"}`},
		{"adapter", `{"model":"adapter"}`, `{"model":"adapter"}`},
		{"long", `{"p":"` + long + `","model":"alias","q":"` + long + `"}`, `{"p":"` + long + `","model":"NAME","q":"` + long + `"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			set, cat := fixture(t, 0)
			name := strings.NewReplacer("NAME", t.Name())
			r := post(name.Replace(tt.sent))
			c := Begin(r, set)
			defer c.End()
			if err := c.Resolve(r, cat); err != nil {
				t.Fatal(err)
			}
			c.Rewind(r)
			got, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || string(got) != name.Replace(tt.want) || r.ContentLength != int64(len(got)) {
				t.Errorf("%d bytes, announced %d, error %v: %.100s", len(got), r.ContentLength, err, got)
			}
		})
	}
}

// A client may leave at any moment while a matcher or a lone policy looks at
// its request. Nobody else's request sees anything of it.
func TestClientLeavesJoinedCall(t *testing.T) {
	set, cat := fixture(t, 0)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 300 {
				fill := strings.Repeat(fmt.Sprint(worker%10), (i%3)*3000)
				body := fmt.Sprintf(`{"model":"alias","messages":[{"role":"user","content":"%s"}],"end":"%d-%d"}`, fill, worker, i)
				ctx, cancel := context.WithCancel(t.Context())
				r := post(body).WithContext(ctx)
				c := Join(r, set)
				go cancel()
				if err := c.Resolve(r, cat); err != nil {
					t.Error(err)
				}
				c.PrefixKey()
				c.Next(t.Context())
				c.Dial()
				c.Rewind(r)
				got, err := io.ReadAll(r.Body)
				r.Body.Close()
				if want := strings.Replace(body, "alias", t.Name(), 1); err != nil || string(got) != want {
					t.Errorf("another body: %.200s", got)
				}
				if i%2 == 0 {
					c.End() // a handler took the call over
				}
			}
		})
	}
	wg.Wait()
	res, _ := cat.Table().Resolve("alias")
	deadline := time.Now().Add(10 * time.Second)
	for {
		n, _ := res.Model.Snapshot.Total(&routing.Request{})
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d calls are left", n)
		}
	}
}

// A body that was never read is of no use once its memory serves another.
func TestLateAttemptReadsNothing(t *testing.T) {
	buf, err := readBody(strings.NewReader("SECRET OF A"), -1, 100)
	if err != nil {
		t.Fatal(err)
	}
	late := &attemptBody{buf: buf, rest: [][]byte{buf.b}}
	buf.release()
	other, err := readBody(strings.NewReader("SECRET OF B"), -1, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer other.release()
	if got, err := io.ReadAll(late); err == nil {
		t.Errorf("read %q", got)
	}
}
