package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// attack sends chats with a load generator, over each client so many a second,
// while do runs. Every one of them has to succeed.
func attack(t *testing.T, g *harness.Gateway, clients map[string]*http.Client, perSecond int, do func()) {
	t.Helper()
	target := vegeta.NewStaticTargeter(
		chatTarget(g, chat("short")), chatTarget(g, chat(strings.Repeat("long ", 20_000))), chatTarget(g, `{"model":"m","stream":true}`),
	)
	var running sync.WaitGroup
	var attackers []*vegeta.Attacker
	for name, client := range clients {
		client := &http.Client{Transport: harness.Resend{Transport: client.Transport.(*http.Transport)}, Timeout: harness.Patience}
		a := vegeta.NewAttacker(vegeta.Client(client), vegeta.Workers(4), vegeta.MaxWorkers(16))
		attackers = append(attackers, a)
		running.Go(func() {
			sent, failed := 0, 0
			for res := range a.Attack(target, vegeta.ConstantPacer{Freq: perSecond, Per: time.Second}, 0, name) {
				sent++
				if res.Error == "" && res.Code == http.StatusOK && !strings.HasSuffix(string(res.Body), "cut") {
					continue
				}
				if failed++; failed < 5 {
					t.Errorf("%s, request %d: %d %s %.100q", name, res.Seq, res.Code, res.Error, res.Body)
				}
			}
			if sent == 0 {
				t.Errorf("%s: nothing was sent", name)
			}
			t.Logf("%s: %d requests, %d failed", name, sent, failed)
		})
	}
	do()
	for _, a := range attackers {
		a.Stop()
	}
	running.Wait()
}

func chatTarget(g *harness.Gateway, body string) vegeta.Target {
	return vegeta.Target{
		Method: http.MethodPost, URL: g.URL + "/v1/chat/completions", Body: []byte(body),
		Header: http.Header{"Content-Type": {"application/json"}},
	}
}

// Of 100 reloads under load half fail late. No request fails, no stream is cut,
// those of a model that a reload takes away neither, counters go on and counts
// in flight are kept; and nothing is left behind: no goroutine, no memory, no
// descriptor, no connection to an engine.
//
// It has the machine to itself: a TLS handshake that is under way when its
// configuration ends is broken off, with stock Caddy too, although the client
// may think that it is done. On a crowded machine one in some thousand requests
// meets that twice.
func TestX4_ReloadsUnderLoad(t *testing.T) {
	const reloads = 100
	names := make([]string, reloads)
	for i := range names {
		names[i] = fmt.Sprintf("stream%d", i)
	}
	ups := []*streams{newStreams(t, names...), newStreams(t, names...)}
	taken := harness.NewUpstream(t, nil)
	both := to(ups[0].Upstream, ups[1].Upstream)
	configs := []harness.Config{
		{Flexinfer: model("m", both, "routing prefix") + model("comes-and-goes", both), TLS: true},
		{Flexinfer: model("m", both, "routing least-loaded") + "retries 1", TLS: true},
	}
	late := configs[0]
	late.Extra = fmt.Sprintf(":%s {\n\tbind 127.0.0.1\n\tflexinfer\n}\n", portOf(taken.Addr))
	unknown := configs[1]
	unknown.Flexinfer += "routing nonsense"
	bad := []harness.Config{late, unknown}

	g := harness.Start(t, configs[0])
	clients := make(map[string]*http.Client)
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		clients[protocol], _ = g.NewProtocolClient(t, protocol)
	}
	// reload reloads and then fails to. Both close connections: what is sent
	// again because of the one has to be through before the other.
	const pause = 100 * time.Millisecond
	reload := func(i int) {
		time.Sleep(pause)
		g.Reload(t, configs[i%2])
		time.Sleep(pause)
		if res := g.Load(t, "text/caddyfile", g.Caddyfile(bad[i%2])); res.Status < 400 {
			t.Fatalf("a bad configuration was loaded: %s", res)
		}
	}
	settle := func() {
		for _, c := range clients {
			c.CloseIdleConnections()
		}
		g.WaitIdle(t)
	}
	left := func() footprint {
		return footprint{g.Goroutines(t), g.Descriptors(t), ups[0].OpenConnections() + ups[1].OpenConnections(), g.Heap(t) >> 10}
	}

	attack(t, g, clients, 40, func() {
		for i := range 10 {
			reload(i)
		}
	})
	settle()
	time.Sleep(graceOfTests + time.Second) // old servers give up
	begun := left()

	var held []*clientStream
	before := g.Metrics(t).Counters()
	attack(t, g, clients, 40, func() {
		for i := range reloads / 2 {
			// The configuration in force has both models, the next one has not.
			if i%2 == 1 {
				client, _ := g.NewProtocolClient(t, []string{"HTTP/1.1", "HTTP/2"}[i/2%2])
				held = append(held, openStreamOf(t, g, client, "comes-and-goes", names[i]))
			}
			reload(i)
			after := g.Metrics(t).Counters()
			for series, v := range before {
				if now, ok := after[series]; ok && now < v {
					t.Errorf("reload %d: %s went from %v to %v", i, series, v, now)
				} else if !ok && !strings.Contains(series, `"comes-and-goes"`) && !strings.Contains(series, `strategy=`) {
					t.Errorf("reload %d: %s is gone", i, series)
				}
			}
			before = after
			if n := inflight(g.Inflight(t)); i%2 == 0 && n < len(held) {
				t.Errorf("reload %d: of %d streams the ledger counts %d calls", i, len(held), n)
			}
		}
	})
	for _, u := range ups {
		for _, name := range names {
			u.finish(name)
		}
	}
	for i, s := range held {
		if rest, err := s.rest(); err != nil || rest != "data: last\n\n" {
			t.Errorf("stream %d ended with %q, %v", i, rest, err)
		}
	}
	settle()
	var ended footprint
	if !harness.Within(harness.Patience, func() bool { ended = left(); return ended.within(begun) }) {
		t.Errorf("%d reloads left behind: %+v, before them: %+v", reloads, ended, begun)
	}
}

// graceOfTests is the grace period that the harness configures.
const graceOfTests = 2 * time.Second

// A footprint is what a process holds.
type footprint struct {
	goroutines, descriptors, connections int
	heap                                 int64 // KiB
}

// within reports whether f is as much as begun but for noise.
func (f footprint) within(begun footprint) bool {
	const noise = 15
	return f.goroutines <= begun.goroutines+noise && f.descriptors <= begun.descriptors+noise &&
		f.connections <= begun.connections+noise && f.heap <= begun.heap+begun.heap/4+2<<10
}

func inflight(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
