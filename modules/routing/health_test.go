package routing

import (
	"slices"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/health"
)

// ailing are endpoints under a clock that the test moves.
type ailing struct {
	*Snapshot
	now time.Duration
}

var certain = &health.Config{EjectAfter: 1}

func newAiling(ids ...string) *ailing {
	a := &ailing{now: time.Hour}
	l, h := newLedger(), health.NewRegistry(health.Settings{Now: func() time.Duration { return a.now }})
	es := make([]*Endpoint, len(ids))
	for i, id := range ids {
		es[i] = NewEndpoint(l, h, "m", Spec{ID: id, Scheme: "http", Address: id + ":80", Weight: i + 1})
	}
	a.Snapshot = New("m", es, nil, nil)
	return a
}

func (a *ailing) eject(i int) { a.At(i).Health().Failed(certain, true, nil) }

// usable returns the IDs of what may be picked, and checks the totals.
func usable(t *testing.T, s *Snapshot, tried ...string) string {
	t.Helper()
	req, ids, load, weight := &Request{Tried: tried}, "", 0, 0
	for i := range s.Len() {
		if s.Usable(req, i) {
			ids += s.At(i).ID
			load += s.Load(i)
			weight += s.At(i).Weight
		}
	}
	l, n := s.Total(req)
	if w := s.TotalWeight(req); l != load || n != len(ids) || w != weight {
		t.Errorf("%s: load %d, %d usable, weight %d", ids, l, n, w)
	}
	return ids
}

func TestUsable(t *testing.T) {
	s := newAiling("a", "b", "c", "d")
	for i := range s.Len() {
		s.Acquire(i)
	}
	check := func(fit, busy, all string, tried ...string) {
		t.Helper()
		for level, want := range []string{fit, busy, all} {
			if got := usable(t, s.Tolerating(Level(level)), tried...); got != want {
				t.Errorf("level %d, tried %q: %s usable, want %s", level, tried, got, want)
			}
		}
		if got := usable(t, s.Snapshot, tried...); got != fit {
			t.Errorf("tried %q: %s usable, want %s", tried, got, fit)
		}
	}
	check("abcd", "abcd", "abcd")
	s.eject(1)
	s.At(2).Health().Busy(nil, 0)
	check("ad", "acd", "abcd")
	check("d", "cd", "bcd", "a")
	s.eject(0)
	s.eject(3)
	check("", "c", "abcd")
	s.now += time.Second
	check("c", "c", "abcd")
}

// A lease is a trial, and a dry run is none.
func TestTrials(t *testing.T) {
	s := newAiling("a", "b")
	s.eject(1)
	s.now += time.Minute
	if got := usable(t, s.Snapshot); got != "ab" {
		t.Fatalf("%s usable", got)
	}
	s.DryRun().Acquire(1)
	s.DryRun().TryAcquire(1, 0)
	if s.TryAcquire(1, 7) != nil {
		t.Error("a lease although the load is not what was seen")
	}
	if got := usable(t, s.Snapshot); got != "ab" {
		t.Error("no trial after a dry run, or after none")
	}
	for _, acquire := range []func() *Lease{func() *Lease { return s.TryAcquire(1, 0) }, func() *Lease { return s.Acquire(1) }} {
		lease := acquire()
		if got := usable(t, s.Snapshot); got != "a" {
			t.Error("more than one trial")
		}
		lease.Release()
		s.now += time.Minute
	}
	s.At(1).Health().Succeeded()
	if !s.At(1).Health().Healthy() {
		t.Error("a trial that succeeds does not bring it back")
	}
}

// first picks the first usable endpoint, and counts how often it was asked.
type first struct{ asked int }

func (f *first) Pick(req *Request, s *Snapshot) Decision {
	f.asked++
	for i := range s.Len() {
		if s.Usable(req, i) {
			return Decision{Lease: s.Acquire(i)}
		}
	}
	return Decision{}
}

// R6: the fittest is picked, when all are ejected all are tried, and when there is
// none nothing is.
func TestPick(t *testing.T) {
	s := newAiling("a", "b", "c")
	check := func(want string, asked int, tried ...string) {
		t.Helper()
		f, got := new(first), "-"
		if d := Pick(f, &Request{Tried: tried}, s.Snapshot); d.Lease != nil {
			got = d.Lease.Endpoint().ID
		}
		if got != want || f.asked != asked {
			t.Errorf("tried %q: picks %s after %d questions, want %s after %d", tried, got, f.asked, want, asked)
		}
	}
	check("a", 1)
	s.eject(0)
	check("b", 1)
	s.At(1).Health().Busy(nil, 5*time.Second)
	check("c", 1)
	check("b", 2, "c")
	s.eject(2)
	check("b", 2)
	s.eject(1)
	check("a", 3)
	check("c", 3, "a", "b")
	check("-", 3, "a", "b", "c")

	f := new(first)
	if d := Pick(f, &Request{}, newAiling().Snapshot); d.Lease != nil || f.asked != 1 {
		t.Error("asks again where nothing is")
	}
}

// Whose a key is does not depend on health.
func TestOwnerStays(t *testing.T) {
	s := newAiling("a", "b", "c", "d")
	var before, after []int
	for hash := range uint64(200) {
		before = append(before, s.Owner(hash))
	}
	s.eject(2)
	for hash := range uint64(200) {
		after = append(after, s.Owner(hash))
	}
	if !slices.Equal(before, after) {
		t.Error("owners change")
	}
}

func TestSnapshotMayEject(t *testing.T) {
	s := newAiling("a", "b", "c", "d")
	suspect := func(i int) {
		s.At(i).Health().Failed(certain, false, func() bool { return s.MayEject(0.5) })
	}
	s.eject(0) // does not count
	suspect(1)
	suspect(2)
	if s.MayEject(0.5) || !s.MayEject(0.75) || s.MayEject(-1) {
		t.Error("two of four are ejected, and one that does not count")
	}
	suspect(3)
	if got := usable(t, s.Tolerating(Busy)); got != "d" {
		t.Errorf("%s usable, want the one that must not be ejected", got)
	}
	if got := usable(t, s.Snapshot); got != "" {
		t.Errorf("%s is fit", got)
	}
	if one := newAiling("a"); one.MayEject(0.5) || one.MayEject(0) {
		t.Error("the only one may be ejected")
	}
}

// What nothing knows the health of is fit.
func TestNoHealth(t *testing.T) {
	s := NewSnapshot("m", Spec{Scheme: "http", Address: "a:1"}, Spec{Scheme: "http", Address: "b:1"})
	s.At(0).Health().Failed(certain, true, nil)
	if !s.Usable(&Request{}, 0) || !s.At(0).Health().Healthy() {
		t.Error("not fit")
	}
}
