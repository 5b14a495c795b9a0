package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// place sends one request of each session and returns where each went. There
// are few at a time, so that no bound on load moves one.
func place(t *testing.T, g *harness.Gateway, sessions int) []string {
	t.Helper()
	places := make([]string, sessions)
	inParallel(t, 3, sessions, func(ctx context.Context, i int) error {
		res, err := g.Try(ctx, http.MethodPost, "/v1/completions", bare("m"), "X-Session-ID", fmt.Sprint("session ", i), "X-Flexinfer-Debug", "1")
		if err == nil {
			places[i] = res.Route()["target"]
			if places[i] == "" {
				err = fmt.Errorf("no target: %s", res)
			}
		}
		return err
	})
	return places
}

// moved returns how many sessions went elsewhere, and how many of those had no
// reason to: neither was their upstream among gone, nor is the new one new.
func moved(before, after []string, changed ...*harness.Upstream) (all, needless int) {
	touched := make(map[string]bool)
	for _, u := range changed {
		touched[u.Addr] = true
	}
	for i := range before {
		if before[i] != after[i] {
			all++
			if !touched[before[i]] && !touched[after[i]] {
				needless++
			}
		}
	}
	return all, needless
}

func TestR1_SessionsStayWhenUpstreamsChange(t *testing.T) {
	t.Parallel()
	const n = 10
	// Both share the ring; the second one need not be looked at as closely.
	for routing, sessions := range map[string]int{"session-affinity": 2000, "prefix": 400} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			ups := harness.NewUpstreams(t, n+2, nil)
			spare, third := ups[n], ups[n+1]
			ups = ups[:n]
			over := func(us []*harness.Upstream) harness.Config {
				return harness.Config{Flexinfer: model("m", to(us...), "routing "+routing)}
			}
			g := harness.Start(t, over(ups))
			first := place(t, g, sessions)
			if routing == "session-affinity" {
				// More of them: chance alone takes 2000 some way off even.
				checkSpread(t, ups, place(t, g, 3*sessions))
			}

			// Neither another gateway nor another order moves any.
			shuffled := slices.Clone(ups)
			rand.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			if all, _ := moved(first, place(t, harness.Start(t, over(shuffled)), sessions)); all != 0 {
				t.Errorf("a restart in another order moved %d sessions", all)
			}
			slices.Reverse(shuffled)
			g.Reload(t, over(shuffled))
			if all, _ := moved(first, place(t, g, sessions)); all != 0 {
				t.Errorf("another order moved %d sessions", all)
			}

			steps := []struct {
				name    string
				us      []*harness.Upstream
				changed []*harness.Upstream
				share   float64 // of the sessions that have to move
			}{
				{"one less", ups[1:], ups[:1], 1.0 / n},
				{"one more", append(slices.Clone(ups), spare), []*harness.Upstream{spare}, 1.0 / (n + 1)},
				{"one replaced", append(slices.Clone(ups[1:]), third), []*harness.Upstream{ups[0], third}, 2.0 / n},
			}
			for _, step := range steps {
				g.Reload(t, over(step.us))
				all, needless := moved(first, place(t, g, sessions), step.changed...)
				if most := int((step.share + 0.1) * float64(sessions)); all > most {
					t.Errorf("%s: %d of %d sessions moved, want at most %d", step.name, all, sessions, most)
				}
				if needless > sessions/100 {
					t.Errorf("%s: %d sessions moved from one survivor to another", step.name, needless)
				}
			}
			g.Reload(t, over(ups))
			if all, _ := moved(first, place(t, g, sessions)); all != 0 {
				t.Errorf("with the upstreams as before %d sessions are elsewhere", all)
			}
		})
	}
}

// checkSpread checks that each upstream has its share within 25 %.
func checkSpread(t *testing.T, ups []*harness.Upstream, targets []string) {
	t.Helper()
	spread := make(map[string]int)
	for _, target := range targets {
		spread[target]++
	}
	even := len(targets) / len(ups)
	for _, u := range ups {
		if got := spread[u.Addr]; got < even*3/4 || got > even*5/4 {
			t.Errorf("an upstream has %d of %d sessions, even would be %d", got, len(targets), even)
		}
	}
}

// No key is not a key of its own: such calls spread as if there were no
// affinity.
func TestR2_KeylessCallsSpread(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 64<<10)
	tests := []struct {
		name, body string
		headers    []string
		keyed      bool
	}{
		{"absent", bare("m"), nil, false},
		{"empty header", bare("m"), []string{"X-Session-ID", ""}, false},
		{"blank header", bare("m"), []string{"X-Session-ID", "  ", "X-Conversation-ID", " "}, false},
		{"empty", `{"model":"m","session_id":""}`, nil, false},
		{"blank", `{"model":"m","session_id":" \t","cache_key":" "}`, nil, false},
		{"null", `{"model":"m","session_id":null,"prefix":null,"messages":null}`, nil, false},
		{"number", `{"model":"m","session_id":7,"cache_key":7,"prefix":7}`, nil, false},
		{"object", `{"model":"m","session_id":{"a":1},"cache_key":[],"prefix":{}}`, nil, false},
		{"64 KB", `{"model":"m","session_id":"` + huge + `"}`, nil, true},
		{"twice", bare("m"), []string{"X-Session-ID", "a", "X-Session-ID", "b"}, true},
	}
	for routing, requests := range map[string]int{"session-affinity": 400, "prefix": 160} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			ups := harness.NewUpstreams(t, 4, nil)
			g := serve(t, routing, ups...)
			for _, tt := range tests {
				for _, u := range ups {
					u.Forget()
				}
				inParallel(t, 4, requests, func(ctx context.Context, _ int) error {
					res, err := g.Try(ctx, http.MethodPost, "/v1/completions", tt.body, tt.headers...)
					if err == nil && res.Status != http.StatusOK {
						err = fmt.Errorf("%s: %s", tt.name, res)
					}
					return err
				})
				got := served(ups)
				if !tt.keyed && (slices.Max(got) > requests*3/8 || slices.Min(got) < requests/8) {
					t.Errorf("%s: %d requests went %v", tt.name, requests, got)
				}
			}
		})
	}
}

// No upstream has more in flight than its bound, however hot a prefix is.
func TestR3_HotPrefixStaysWithinTheBound(t *testing.T) {
	t.Parallel()
	tests := []struct{ upstreams, concurrency, requests int }{
		{3, 10, 300}, {3, 60, 900}, {200, 100, 1000}, {200, 400, 2400},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d upstreams, %d at once", tt.upstreams, tt.concurrency), func(t *testing.T) {
			ups := harness.NewUpstreams(t, tt.upstreams, func(x *harness.Exchange) {
				select { // as long as it takes an engine
				case <-time.After(5 * time.Millisecond):
				case <-x.Gone():
				}
				harness.Answer(x)
			})
			g := serve(t, "prefix {\n\t\tload_factor 1.25\n\t\tload_floor 4\n\t}", ups...)
			hot := new(counts)
			inParallel(t, tt.concurrency, tt.requests, func(ctx context.Context, i int) error {
				key := fmt.Sprint("rare-", i)
				if i%4 == 0 {
					key = "hot"
				}
				res, err := g.Try(ctx, http.MethodPost, "/v1/completions", bare("m"), "X-Flexinfer-Cache-Key", key, "X-Flexinfer-Debug", "1")
				if err == nil && res.Status != http.StatusOK {
					err = fmt.Errorf("the answer is %s", res)
				}
				if err == nil && key == "hot" {
					hot.add(res.Route()["target"])
				}
				return err
			})
			// ⌈1.25 × mean⌉, where the mean is at most that of all requests.
			bound := max(4, (5*tt.concurrency+4*tt.upstreams-1)/(4*tt.upstreams))
			for i, u := range ups {
				if n := u.MaxInflight(); n > bound {
					t.Errorf("upstream %d had %d requests in flight, its bound is %d", i, n, bound)
				}
			}
			// A quarter of the calls needs room on about a quarter of the
			// upstreams; it goes to not many more.
			if needed := (tt.concurrency/4 + bound - 1) / bound; len(hot.n) > 2*needed+tt.upstreams/10+2 {
				t.Errorf("the hot prefix was on %d upstreams, where about %d had room for it", len(hot.n), needed)
			}
			g.WaitIdle(t)
		})
	}
}

// Rare prefixes keep their upstream while a hot one is about.
func TestR3_RarePrefixesKeepTheirPlace(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 8, nil)
	g := serve(t, "prefix", ups...)
	var stop atomic.Bool
	var heat sync.WaitGroup
	for range 6 {
		heat.Go(func() {
			for !stop.Load() {
				_, _ = g.Try(t.Context(), http.MethodPost, "/v1/completions", bare("m"), "X-Flexinfer-Cache-Key", "hot")
			}
		})
	}
	first := make(map[string]string)
	stayed, all := 0, 0
	for range 10 {
		for i := range 50 {
			key := fmt.Sprint("rare-", i)
			up := upstreamOf(t, g.Post(t, "/v1/completions", bare("m"), "X-Flexinfer-Cache-Key", key))
			if first[key] == "" {
				first[key] = up
				continue
			}
			all++
			if first[key] == up {
				stayed++
			}
		}
	}
	stop.Store(true)
	heat.Wait()
	if stayed < all*95/100 {
		t.Errorf("%d of %d calls with a rare prefix stayed where they were", stayed, all)
	}
}

// One at a time, calls that hit no cache spread over all upstreams.
func TestR5_TiesSpread(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"least-loaded", "power-of-two", "soft-k-choice", "round-robin", "prefix", "session-affinity"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			ups := harness.NewUpstreams(t, 4, nil)
			g := serve(t, routing, ups...)
			for i := range 400 {
				g.Chat(t, chat(fmt.Sprint("a new chat ", i)))
			}
			if got := served(ups); slices.Min(got) < 50 || slices.Max(got) > 160 {
				t.Errorf("400 requests went %v", got)
			}
		})
	}
}

// One system prompt for everybody is the commonest application. Its chats are
// spread over the engines, and each stays where it is.
func TestSharedSystemPrompt(t *testing.T) {
	t.Parallel()
	const chats, turns, engines, workers = 200, 6, 8, 64
	ups := harness.NewUpstreams(t, engines, func(x *harness.Exchange) {
		select { // as long as it takes an engine
		case <-time.After(time.Duration(5+rand.IntN(10)) * time.Millisecond):
		case <-x.Gone():
		}
		harness.Answer(x)
	})
	g := serve(t, "prefix", ups...)
	var stayed, later atomic.Int64
	inParallel(t, workers, chats, func(ctx context.Context, i int) error {
		var c conversation
		c.say("system", "You are the assistant of everybody. "+strings.Repeat("Be kind. ", 100))
		before := ""
		for turn := range turns {
			c.say("user", fmt.Sprintf("chat %d, turn %d", i, turn))
			res, err := g.Try(ctx, http.MethodPost, "/v1/chat/completions", `{"model":"m","messages":[`+strings.Join(c.messages, ",")+`]}`, harness.Debug...)
			if err != nil {
				return err
			}
			target := res.Route()["target"]
			if before != "" {
				later.Add(1)
				if before == target {
					stayed.Add(1)
				}
			}
			before = target
			c.say("assistant", "Yes.")
		}
		return nil
	})
	if s, l := stayed.Load(), later.Load(); s < l*9/10 {
		t.Errorf("%d of %d later turns stayed where their chat was, want 90 %%", s, l)
	}
	for i, n := range served(ups) {
		if n < chats*turns/engines*7/10 {
			t.Errorf("engine %d got %d of %d turns, less than 0.7 of the mean", i, n, chats*turns)
		}
	}
	g.WaitIdle(t)
}
