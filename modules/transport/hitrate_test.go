package transport

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// An engine counts how often it is asked, and answers after a while.
type engine struct {
	takes   time.Duration
	metrics string

	mu    sync.Mutex
	asked map[string]int // by URL
}

// RoundTrip implements [http.RoundTripper].
func (e *engine) RoundTrip(req *http.Request) (*http.Response, error) {
	e.mu.Lock()
	if e.asked == nil {
		e.asked = make(map[string]int)
	}
	e.asked[req.URL.String()+" "+req.Header.Get("Authorization")]++
	e.mu.Unlock()
	select {
	case <-time.After(e.takes):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(e.metrics))}, nil
}

func hitRateEndpoints() (a, b *routing.Endpoint) {
	header := http.Header{"Authorization": {"Bearer x"}}
	snap := routing.NewSnapshot("m",
		routing.Spec{Scheme: "h2c", Address: "a:1", Path: "/base%2F1", Header: header},
		routing.Spec{Scheme: "https", Address: "b:1"})
	a, b = snap.At(0), snap.At(1)
	if a.Address != "a:1" {
		a, b = b, a
	}
	return a, b
}

const rates = "# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total 8\n" +
	"# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total 3\n"

// Many who ask at once ask once, and each gets the answer.
func TestHitRatesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hitRates
		rt := &engine{takes: time.Second / 2, metrics: rates}
		a, b := hitRateEndpoints()
		first := h.ask(rt, a)
		if got := first.value(false); got != "" {
			t.Errorf("%q at once", got)
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				rate := h.ask(rt, a)
				if rate != first {
					t.Error("asked on its own")
				}
				if got := rate.value(true); got != "0.3750" {
					t.Errorf("rate %q", got)
				}
			})
		}
		if other := h.ask(rt, b); other == first {
			t.Error("two endpoints share an answer")
		} else if got := other.value(true); got != "0.3750" {
			t.Errorf("rate %q", got)
		}
		wg.Wait()
		if got := first.value(false) + first.value(true); got != "0.37500.3750" {
			t.Errorf("%q once it is there", got)
		}

		time.Sleep(hitRateAge)
		next := h.ask(rt, a)
		if next == first {
			t.Error("an old answer is given again")
		}
		if len(h.of) != 1 {
			t.Errorf("%d answers are kept, want that of one endpoint", len(h.of))
		}
		if got := next.value(true); got != "0.3750" {
			t.Errorf("rate %q", got)
		}
		rt.mu.Lock()
		defer rt.mu.Unlock()
		if n := rt.asked["http://a:1/base%2F1/metrics Bearer x"]; n != 2 || len(rt.asked) != 2 || rt.asked["https://b:1/metrics "] != 1 {
			t.Errorf("asked %v", rt.asked)
		}
	})
}

// Who waits for an engine that does not answer waits not for long.
func TestHitRateTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hitRates
		a, _ := hitRateEndpoints()
		began := time.Now()
		rate := h.ask(&engine{takes: time.Hour, metrics: rates}, a)
		if got := rate.value(true); got != "" || time.Since(began) != hitRateTimeout {
			t.Errorf("%q after %v", got, time.Since(began))
		}
	})
	var none *hitRate
	if got := none.value(true); got != "" {
		t.Errorf("%q of nobody", got)
	}
}
