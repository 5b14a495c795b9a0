package metrics

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Counters survive the registry of a configuration, and registering twice in
// one does no harm.
func TestRegister(t *testing.T) {
	m := Acquire("kept")
	defer m.Release()
	for i := range 3 {
		reg := prometheus.NewPedanticRegistry()
		for range 2 {
			if err := Register(reg); err != nil {
				t.Fatal(err)
			}
		}
		m.Begin()
		m.End(StatusSuccess, time.Second)
		if got := testutil.ToFloat64(requests.WithLabelValues("kept", "success")); got != float64(i+1) {
			t.Errorf("after %d configurations the count is %v", i+1, got)
		}
		if _, err := reg.Gather(); err != nil {
			t.Error(err)
		}
	}
}

// M1: a model's series go with it, and not before.
func TestRelease(t *testing.T) {
	a, b := Acquire("gone"), Acquire("gone")
	if a != b {
		t.Fatal("two recorders for one model")
	}
	a.Admit("t:1")
	a.Strategy("prefix").Decided(routing.Key{Hash: 1, Source: routing.SourceCanonical}, false, "t:1")
	series := func() int {
		n := 0
		for _, vec := range perModel {
			ch := make(chan prometheus.Metric, 100)
			vec.Collect(ch)
			close(ch)
			for range ch {
				n++
			}
		}
		return n
	}
	before := series()
	a.Release()
	if got := series(); got != before {
		t.Errorf("%d series after the first release, %d before", got, before)
	}
	b.Release()
	if got := series(); got >= before {
		t.Errorf("%d series after the last release, %d before", got, before)
	}
}

// A target's hits go with the last table that has it. A request that still
// picks it then brings no series back.
func TestRetire(t *testing.T) {
	m := Acquire("moving")
	s := m.Strategy("prefix")
	key := routing.Key{Hash: 1, Source: routing.SourceCanonical}
	series := func() int { return testutil.CollectAndCount(targetHits) }
	none := series()
	m.Admit("t:1") // by one configuration …
	m.Admit("t:1") // … and by the next
	s.Decided(key, false, "t:1")
	m.Retire("t:1")
	s.Decided(key, false, "t:1")
	if got := testutil.ToFloat64(targetHits.WithLabelValues("moving", "prefix", "t:1")); got != 2 {
		t.Errorf("%v hits, want 2", got)
	}
	m.Retire("t:1")
	s.Decided(key, false, "t:1")
	if got := series(); got != none {
		t.Errorf("%d series are left of a target that has gone", got-none)
	}
	m.Admit("t:1")
	s.Decided(key, false, "t:1")
	if got := testutil.ToFloat64(targetHits.WithLabelValues("moving", "prefix", "t:1")); got != 1 {
		t.Errorf("%v hits of a target that came back, want 1", got)
	}
	m.Release()
	s.Decided(key, true, "")
	m.Strategy("other").Decided(key, true, "")
	if got := series(); got != none {
		t.Errorf("%d series are left of a model that has gone", got-none)
	}
}

func TestKeyCardinality(t *testing.T) {
	m := Acquire("cardinal")
	defer m.Release()
	s := m.Strategy("prefix")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range uint64(maxKeys + 1000) {
				s.Decided(routing.Key{Hash: i * 0x9e3779b97f4a7c15, Source: routing.SourceCanonical}, false, "t:1")
			}
		})
	}
	wg.Wait()
	if got := testutil.ToFloat64(cardinality.WithLabelValues("cardinal", "prefix", "canonical")); got != maxKeys {
		t.Errorf("cardinality %v, want %d", got, maxKeys)
	}
	if got := testutil.ToFloat64(cardinalityOverflow.WithLabelValues("cardinal", "prefix", "canonical")); got != 1 {
		t.Errorf("overflow %v, want 1", got)
	}
}
