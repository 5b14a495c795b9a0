package call

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/budget"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/key"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// retryFixture returns a call on its first attempt, and its model.
func retryFixture(t *testing.T, d catalog.Declaration) (*Call, *catalog.Model) {
	t.Helper()
	keys := key.Default()
	d.Name, d.Strategy, d.StrategyName = t.Name(), first{}, "first"
	cat := catalog.New(catalog.Config{Ledger: ledger.New(ledger.Config{}), Models: []catalog.Declaration{d}})
	t.Cleanup(cat.Close)
	set := &Settings{MaxBody: 1 << 20, Keys: &keys, LeaseTTL: time.Hour, Logger: zap.NewNop()}
	return nextCall(t, set, cat), cat.Table().Models()[0]
}

func nextCall(t *testing.T, set *Settings, cat *catalog.Catalog) *Call {
	t.Helper()
	r := post(fmt.Sprintf(`{"model":%q}`, t.Name()))
	c := Begin(r, set)
	t.Cleanup(c.End)
	if err := c.Resolve(r, cat); err != nil {
		t.Fatal(err)
	}
	if c.Next(t.Context()) == nil {
		t.Fatal("no endpoint")
	}
	return c
}

// T4: a call is tried again as often as its model says, and no budget but a
// stale connection's is free.
func TestFailed(t *testing.T) {
	abc := []routing.Source{fixed{"a:1", "b:1", "c:1"}}
	service := &routing.Spec{Scheme: "http", Address: "service:1"}
	for _, tt := range []struct {
		name    string
		sources []routing.Source
		service *routing.Spec
		retries int
		floor   int // of the budget
		fails   []Failure
		went    string // with a ! where no attempt follows
	}{
		{"no retries", abc, nil, 0, 10, []Failure{Unreached}, "a !"},
		{"no retries for a stale connection either", abc, nil, 0, 10, []Failure{Stale}, "a !"},
		{"retries", abc, nil, 1, 10, []Failure{Unreached, Unreached}, "a b !"},
		{"more retries than endpoints", abc, nil, 4, 10, []Failure{Unreached, Unreached, Unreached, Unreached, Unreached}, "a b c a b !"},
		{"one endpoint", []routing.Source{fixed{"a:1"}}, nil, 2, 10, []Failure{Unreached, Stale, Unreached}, "a a a !"},
		{"declined", abc, nil, 9, 10, []Failure{Declined, Declined, Declined}, "a b c !"},
		{"declined by the only one", []routing.Source{fixed{"a:1"}}, nil, 9, 10, []Failure{Declined}, "a !"},
		{"declined by the last one", abc, nil, 9, 10, []Failure{Unreached, Stale, Declined}, "a b c !"},
		{"declined, with a service", abc, service, 9, 10, []Failure{Declined, Declined, Declined, Declined}, "a b c service !"},
		{"declined, with a service alone", []routing.Source{fixed{"a:1"}}, service, 9, 10, []Failure{Declined, Declined}, "a service !"},
		{"a budget of nothing", abc, nil, 9, 0, []Failure{Unreached}, "a !"},
		{"a budget of nothing, declined", abc, nil, 9, 0, []Failure{Declined}, "a !"},
		{"a budget of nothing, stale", abc, nil, 9, 0, []Failure{Stale, Unreached}, "a b !"},
		{"a budget of nothing, unsent", abc, nil, 9, 0, []Failure{Unsent, Unsent, Unsent, Unreached}, "a b c a !"},
		{"stale twice", abc, nil, 9, 10, []Failure{Stale, Stale}, "a b !"},
		{"stale once, then unsent", abc, nil, 9, 10, []Failure{Stale, Unsent, Unsent, Stale}, "a b c a !"},
		{"a budget of one", abc, nil, 9, 1, []Failure{Stale, Unreached, Unreached}, "a b c !"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, model := retryFixture(t, catalog.Declaration{
				Sources: tt.sources, Service: tt.service,
				Policy: &catalog.Policy{Retries: tt.retries, RetryFloor: tt.floor},
			})
			went := []string{strings.TrimSuffix(c.Lease().Endpoint().Address, ":1")}
			for i, f := range tt.fails {
				if c.gaveUp {
					t.Fatal("gave up before the last failure")
				}
				again := c.Failed(f, "test")
				lease := c.Next(t.Context())
				switch {
				case again != (lease != nil) || again == c.gaveUp:
					t.Fatalf("failure %d: again %v, gave up %v, lease %v", i, again, c.gaveUp, lease)
				case again && c.WantsFresh() != (f == Stale || f == Unsent):
					t.Errorf("failure %d: wants a fresh connection: %v", i, c.WantsFresh())
				case again:
					went = append(went, strings.TrimSuffix(lease.Endpoint().Address, ":1"))
				default:
					went = append(went, "!")
				}
			}
			if got := strings.Join(went, " "); got != tt.went {
				t.Errorf("went to %s, want %s", got, tt.went)
			}
			if c.Failed(Stale, "test") {
				t.Error("another attempt may follow where none is under way")
			}
			c.End()
			if n, _ := model.Snapshot.Total(&routing.Request{}); n != 0 {
				t.Errorf("%d calls are left", n)
			}
		})
	}
}

// T4: all calls for a model share its budget.
func TestBudgetIsShared(t *testing.T) {
	keys := key.Default()
	budgets := new(budget.Budgets)
	set := &Settings{MaxBody: 1 << 20, Keys: &keys, LeaseTTL: time.Hour, Logger: zap.NewNop()}
	retries := func(share float64, floor int) (n int) {
		cat := catalog.New(catalog.Config{ // as a reload makes it
			Ledger: ledger.New(ledger.Config{}), Budgets: budgets,
			Models: []catalog.Declaration{{
				Name: t.Name(), Strategy: first{}, StrategyName: "first", Sources: []routing.Source{fixed{"a:1", "b:1", "c:1"}},
				Policy: &catalog.Policy{Retries: 1, RetryShare: share, RetryFloor: floor},
			}},
		})
		defer cat.Close()
		for range 20 {
			c := nextCall(t, set, cat)
			if c.Failed(Unreached, "test") {
				n++
			}
			c.End()
		}
		return n
	}
	if n := retries(0, 7); n != 7 {
		t.Errorf("%d retries of 20 calls, want 7", n)
	}
	if n := retries(0, 7); n != 0 {
		t.Errorf("%d retries of the next 20, want none", n)
	}
	// Of 60 attempts by then, 7 of whose retries are made.
	if n := retries(0.2, 0); n != 12-7 {
		t.Errorf("%d more retries at a share of 0.2, want %d", n, 12-7)
	}
}

// No attempt follows where somebody said so.
func TestGiveUp(t *testing.T) {
	for name, giveUp := range map[string]func(*Call){"GiveUp": (*Call).GiveUp, "Accept": (*Call).Accept} {
		t.Run(name, func(t *testing.T) {
			c, _ := retryFixture(t, catalog.Declaration{
				Sources: []routing.Source{fixed{"a:1", "b:1"}}, Policy: &catalog.Policy{Retries: 5, RetryFloor: 10},
			})
			giveUp(c)
			for _, f := range []Failure{Unreached, Stale, Declined} {
				if c.Failed(f, "test") {
					t.Errorf("failure %d is followed by an attempt", f)
				}
			}
			if c.Next(t.Context()) != nil || !c.gaveUp {
				t.Error("one attempt too many")
			}
		})
	}
}

// An answer counts how often it is closed.
type closed struct {
	io.Reader
	times int
}

func (c *closed) Close() error { c.times++; return nil }

// An answer that is held for want of a better one is closed once if it is not
// wanted, and not at all by the call if it is.
func TestHeld(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(c *Call, first, second *http.Response)
		want [2]int // how often each is closed
	}{
		{"ended", func(c *Call, first, _ *http.Response) { c.Hold(first) }, [2]int{1, 0}},
		{"accepted another", func(c *Call, first, _ *http.Response) {
			c.Hold(first)
			c.Accept()
			c.Accept()
		}, [2]int{1, 0}},
		{"replaced", func(c *Call, first, second *http.Response) {
			c.Hold(first)
			c.Hold(second)
		}, [2]int{1, 1}},
		{"given", func(c *Call, first, _ *http.Response) {
			c.Hold(first)
			if c.Held() != first || c.Held() != nil {
				t.Error("another answer was held, or is still")
			}
			c.Accept()
		}, [2]int{0, 0}},
		{"replaced, then given", func(c *Call, first, second *http.Response) {
			c.Hold(first)
			c.Hold(second)
			if c.Held() != second {
				t.Error("another answer was held")
			}
		}, [2]int{1, 0}},
		{"given, then another", func(c *Call, first, second *http.Response) {
			c.Hold(first)
			c.Held()
			c.Hold(second)
		}, [2]int{0, 1}},
		{"given up", func(c *Call, first, _ *http.Response) {
			c.Hold(first)
			c.GiveUp()
		}, [2]int{1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := retryFixture(t, catalog.Declaration{Sources: []routing.Source{fixed{"a:1"}}, Policy: new(catalog.Policy)})
			var bodies [2]closed
			tt.do(c, &http.Response{Body: &bodies[0]}, &http.Response{Body: &bodies[1]})
			c.End()
			c.End()
			if got := [2]int{bodies[0].times, bodies[1].times}; got != tt.want {
				t.Errorf("closed %v times, want %v", got, tt.want)
			}
			if c.Held() != nil {
				t.Error("an answer is held after the end")
			}
		})
	}
}
