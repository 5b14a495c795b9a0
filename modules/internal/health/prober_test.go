package health

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// engines answer probes by host, in no time unless slow says so.
type engines struct {
	mu     sync.Mutex
	answer map[string]func(*http.Request) (int, error)
	asked  map[string]int
}

func (e *engines) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	e.asked[r.URL.Host]++
	answer := e.answer[r.URL.Host]
	e.mu.Unlock()
	status, err := answer(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

func says(status int) func(*http.Request) (int, error) {
	return func(*http.Request) (int, error) { return status, nil }
}

func hangs(r *http.Request) (int, error) {
	<-r.Context().Done()
	return 0, r.Context().Err()
}

func (e *engines) set(host string, answer func(*http.Request) (int, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer[host] = answer
}

func (e *engines) times(host string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[host]
}

func newEngines() *engines {
	return &engines{answer: make(map[string]func(*http.Request) (int, error)), asked: make(map[string]int)}
}

func newTestProber(e *engines) *Prober {
	p := NewProber(nil, nil)
	for _, c := range p.clients {
		c.Transport = e
	}
	return p
}

func target(r *Registry, host string, p Probe) Target {
	return Target{ID: host, Scheme: "http", Base: host, Probe: p, State: r.State(host)}
}

func TestProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, e := NewRegistry(Settings{}), newEngines()
		e.set("good", says(204))
		e.set("bad", says(503))
		e.set("moved", says(302))
		e.set("hung", hangs)
		p := newTestProber(e)
		defer p.Close()
		var targets []Target
		for _, host := range []string{"good", "bad", "moved", "hung"} {
			targets = append(targets, target(r, host, probe), target(r, host, probe)) // two models
		}
		p.Follow(t.Context(), targets)
		time.Sleep(35 * time.Second)
		for host, want := range map[string]bool{"good": true, "bad": false, "moved": false, "hung": false} {
			if r.State(host).Healthy() != want {
				t.Errorf("%s: healthy is %v", host, !want)
			}
			if n := e.times(host); n < 3 || n > 4 {
				t.Errorf("%s: %d probes in 35 s, want one each 10", host, n)
			}
		}

		// T3: what is ejected goes on being probed, and comes back.
		e.set("bad", says(200))
		time.Sleep(20 * time.Second)
		if !r.State("bad").Healthy() {
			t.Error("not back after two intervals")
		}

		// An endpoint that leaves is not probed, one with other words is,
		// and one that stays goes on.
		e.set("new", says(200))
		changed := target(r, "bad", probe)
		changed.Base = "new"
		gone := e.times("moved")
		p.Follow(t.Context(), []Target{changed, targets[0]})
		before := e.times("good")
		time.Sleep(30 * time.Second)
		if e.times("moved") != gone {
			t.Error("an endpoint that left is probed")
		}
		if e.times("new") < 2 || e.times("good") < before+2 {
			t.Error("an endpoint is not probed any more")
		}
	})
}

// T3: reloads, in the middle of probes and more often than probes are due,
// change no state; nor do they lose a run of fails or ask more often.
func TestProberReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, e := NewRegistry(Settings{}), newEngines()
		e.set("slow", hangs)
		e.set("bad", says(500))
		e.set("good", says(200))
		var keep []Target
		for _, host := range []string{"slow", "bad", "good"} {
			keep = append(keep, target(r, host, probe))
		}
		old, stop := newTestProber(e), func() {}
		for range 30 {
			next := newTestProber(e)
			ctx, cancel := context.WithCancel(t.Context())
			next.Follow(ctx, keep)
			stop()
			old.Close()
			old, stop = next, cancel
			time.Sleep(1500 * time.Millisecond) // less than a timeout
		}
		stop()
		old.Close()
		if !r.State("slow").Healthy() {
			t.Error("probes that were cancelled count")
		}
		if r.State("bad").Healthy() || !r.State("good").Healthy() {
			t.Error("runs of probes are lost")
		}
		for _, host := range []string{"bad", "good"} {
			if n := e.times(host); n < 4 || n > 6 {
				t.Errorf("%s: %d probes in 45 s", host, n)
			}
		}
	})
}

// The probe as the endpoint gets it.
func TestAsk(t *testing.T) {
	var got *http.Request
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		if r.URL.Path == "/base/away" {
			http.Redirect(w, r, "/base/health", http.StatusFound)
		}
	})
	plain := httptest.NewServer(handler)
	defer plain.Close()
	h2c := httptest.NewUnstartedServer(handler)
	h2c.Config.Protocols = new(http.Protocols)
	h2c.Config.Protocols.SetUnencryptedHTTP2(true)
	h2c.Start()
	defer h2c.Close()
	secure := httptest.NewUnstartedServer(handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()

	r := NewRegistry(Settings{})
	tests := []struct {
		scheme, url, path string
		uri               string
		major             int
		pass              bool
	}{
		{"http", plain.URL, "/health?deep=1", "/base/health?deep=1", 1, true},
		{"http", plain.URL, "health", "/base/health", 1, true},
		{"http", plain.URL, "/away", "/base/away", 1, false},
		{"h2c", h2c.URL, "/health", "/base/health", 2, true},
	}
	p := NewProber(nil, nil)
	for _, tt := range tests {
		_, base, _ := strings.Cut(tt.url, "://")
		err := p.ask(t.Context(), &Target{
			Scheme: tt.scheme, Base: base + "/base", Header: http.Header{"Authorization": {"Bearer x"}},
			Probe: Probe{Path: tt.path}.normal(), State: r.State("a"),
		})
		if (err == nil) != tt.pass || got.RequestURI != tt.uri || got.ProtoMajor != tt.major || got.Header.Get("Authorization") != "Bearer x" {
			t.Errorf("%s %s: error %v, request %v %v", tt.scheme, tt.path, err, got.Proto, got.RequestURI)
		}
	}

	// A certificate that only calls may be set up to trust counts for nothing.
	distrusted := make(chan error, 1)
	p = NewProber(func(_ string, err error) { distrusted <- err }, nil)
	_, base, _ := strings.Cut(secure.URL, "://")
	quick := Probe{Path: "/health", Interval: time.Millisecond, Fails: 1}
	p.Follow(t.Context(), []Target{{ID: "s", Scheme: "https", Base: base, Probe: quick, State: r.State("s")}})
	if err := <-distrusted; err == nil || errors.Is(err, context.Canceled) || !r.State("s").Healthy() {
		t.Errorf("error %v, healthy %v", err, r.State("s").Healthy())
	}
	p.Close()
	p.clients["https"] = secure.Client()
	if err := p.ask(t.Context(), &Target{Scheme: "https", Base: base, Probe: quick.normal(), State: r.State("s")}); err != nil {
		t.Errorf("https: error %v", err)
	}
}

// Several kinds of probes: any has it out, the last brings it back.
func TestTwoProbes(t *testing.T) {
	w := newWorld()
	s := w.State("a")
	other := probe
	other.Path = "/other"
	for range 3 {
		s.Probed(probe, false)
		s.Probed(other, true)
	}
	if s.Healthy() {
		t.Fatal("not ejected")
	}
	for range 3 {
		s.Probed(probe, false)
		s.Probed(other, false)
	}
	for range 2 {
		s.Probed(probe, true)
	}
	if s.Healthy() {
		t.Error("back although one kind still fails")
	}
	for range 2 {
		s.Probed(other, true)
	}
	if !s.Healthy() {
		t.Error("still out")
	}
	// One that nobody makes any more does not keep it out.
	for range 3 {
		s.Probed(other, false)
	}
	w.now += other.stale()
	for range 2 {
		s.Probed(probe, true)
	}
	if !s.Healthy() || len(s.probes) != 1 {
		t.Errorf("out for a probe that is no more; %d kinds", len(s.probes))
	}
}

func TestClaim(t *testing.T) {
	w := newWorld()
	s := w.State("a")
	if s.Claim(probe) != 0 {
		t.Fatal("the first is not due")
	}
	if wait := s.Claim(probe); wait > probe.Interval || wait < probe.Interval*9/10 {
		t.Errorf("the second in %v", wait)
	}
	s.Abandon(probe)
	if s.Claim(probe) != 0 {
		t.Error("not due after one that told nothing")
	}
	w.now += probe.Interval
	if s.Claim(probe) != 0 {
		t.Error("not due after its interval")
	}
}
