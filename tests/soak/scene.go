package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// The models. What may happen to their requests differs.
const (
	steady  = "steady"  // engines that nothing happens to
	closing = "closing" // upstreams that close each connection after an answer
	mortal  = "mortal"  // engines of which one is killed now and then
	chaos   = "chaos"   // upstreams that misbehave
	passing = "passing" // is in some configurations only, over the steady engines
)

// scene is all that takes part.
type scene struct {
	*options
	tb     *tb
	report *report

	gateway  *harness.Gateway
	configs  []harness.Config
	bad      []harness.Config
	deaths   *deaths
	upstream []*harness.Upstream // whose notes are to be thrown away
}

// idle is how long the gateway keeps idle client connections. That long the
// HTTP/2 server also holds on to what a client leaves behind that vanishes with
// a stream open: the connection, and with it its configuration.
const idle = 15 * time.Second

// quick are flags for engines that take a tenth of a second for an answer.
var quick = []string{"--ttft", "10ms", "--prefill-tokens-per-second", "0", "--tokens-per-second", "200", "--max-num-seqs", "512", "--max-model-len", "1000000", "--kv-blocks", "65536"}

// set starts the engines, the upstreams and the gateway.
func (s *scene) set() {
	engines := harness.StartEngines(s.tb, 3, append(quick, "--model", steady, "--model", passing)...)
	survivor := harness.StartEngines(s.tb, 1, append(quick, "--model", mortal)...)
	s.deaths = &deaths{tb: s.tb, addr: harness.FreeAddr(s.tb)}
	s.deaths.start()
	closers := harness.NewUpstreams(s.tb, 2, closeAfterAnswer)
	rascals := harness.NewUpstreams(s.tb, 3, misbehave(s.seed))
	taken := harness.NewUpstream(s.tb, nil)
	s.upstream = append(append(closers, rascals...), taken)

	config := func(routing, more string) harness.Config {
		var b strings.Builder
		for name, to := range map[string]string{
			steady: harness.Addrs(engines), closing: addrs(closers), chaos: addrs(rascals),
			mortal: s.deaths.addr + " " + harness.Addrs(survivor),
		} {
			fmt.Fprintf(&b, "model %s {\n\tto %s\n\trouting %s\n}\n", name, to, routing)
		}
		return harness.Config{Flexinfer: b.String() + more, Global: fmt.Sprintf("servers {\n\ttimeouts {\n\t\tidle %s\n\t}\n}", idle), TLS: true}
	}
	also := fmt.Sprintf("model %s {\n\tto %s\n}\n", passing, harness.Addrs(engines))
	s.configs = []harness.Config{
		config("least-loaded", also), config("prefix", ""), config("session-affinity", also+"max_body 8MiB"),
		config("soft-k-choice", "ledger {\n\tbucket 1s\n\tttl 300s\n}"), config("round-robin", also),
	}
	late := config("prefix", also)
	late.Extra = fmt.Sprintf(":%s {\n\tbind 127.0.0.1\n\tflexinfer\n}\n", taken.Addr[strings.LastIndexByte(taken.Addr, ':')+1:])
	s.bad = []harness.Config{late, config("prefix", also+"routing nonsense")}
	s.gateway = harness.Start(s.tb, s.configs[0])
}

func addrs(us []*harness.Upstream) string {
	list := make([]string, len(us))
	for i, u := range us {
		list[i] = u.Addr
	}
	return strings.Join(list, " ")
}

// random returns the random numbers of one of those who take part.
func (s *scene) random(part, i int) *rand.Rand {
	return rand.New(rand.NewPCG(s.seed, uint64(part)<<32|uint64(i))) //nolint:gosec // which is to be repeatable
}

// play lets all take part for a time, and returns when every request has ended.
func (s *scene) play(ctx context.Context, d time.Duration, progress func()) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var running sync.WaitGroup
	part := 0
	run := func(n int, f func(ctx context.Context, r *rand.Rand, i int)) {
		part++
		for i := range n {
			r := s.random(part, i)
			running.Go(func() { f(ctx, r, i) })
		}
	}
	run(s.clients, s.chat)
	run(4, s.readSlowly)
	run(8, s.vanish)
	run(8, s.provoke)
	run(1, s.reloads)
	run(1, s.kills)
	run(1, s.watchCounters)
	if progress != nil {
		run(1, func(ctx context.Context, _ *rand.Rand, _ int) {
			for wait(ctx, min(max(d/60, 5*time.Second), 30*time.Second)) {
				progress()
			}
		})
	}
	running.Wait()
}

// wait waits, and reports whether there is more to be done.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// around returns a time around d.
func around(r *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(r.Int64N(int64(d)))
}

// reloads gives the gateway new configurations, half of which it refuses.
func (s *scene) reloads(ctx context.Context, r *rand.Rand, _ int) {
	for i := 0; wait(ctx, around(r, s.reload)); i++ {
		cfg, want := s.configs[r.IntN(len(s.configs))], http.StatusOK
		if i%2 == 1 {
			cfg, want = s.bad[i/2%len(s.bad)], http.StatusBadRequest
		}
		res := s.gateway.Load(s.tb, "text/caddyfile", s.gateway.Caddyfile(cfg))
		if (res.Status < 300) != (want < 300) {
			s.report.fail("a reload was answered with %s", res)
		}
		s.report.reload(want < 300)
		for _, u := range s.upstream {
			u.Forget()
		}
	}
}

// watchCounters sees that no counter goes back.
func (s *scene) watchCounters(ctx context.Context, _ *rand.Rand, _ int) {
	before := s.gateway.Metrics(s.tb).Counters()
	for wait(ctx, 500*time.Millisecond) {
		after := s.gateway.Metrics(s.tb).Counters()
		for series, v := range before {
			// The series of a model go and come with it.
			if now, ok := after[series]; ok && now < v && !strings.Contains(series, `model="`+passing+`"`) {
				s.report.back(series, v, now)
			}
		}
		before = after
	}
}
