package routing

import "testing"

// rooms are endpoints that take one call each, but for the last, which takes two.
func rooms() *ailing {
	a := newAiling("a", "b", "c")
	specs := make([]*Endpoint, 3)
	for i := range specs {
		specs[i] = a.At(i)
		specs[i].MaxInflight = 1 + i/2
	}
	a.Snapshot = New("m", specs, nil, nil)
	return a
}

func TestMaxInflight(t *testing.T) {
	s := rooms()
	if s.Acquire(0) == nil || s.Acquire(0) != nil || s.TryAcquire(0, 1) != nil {
		t.Error("an endpoint takes another number of calls than one")
	}
	if got := usable(t, s.Snapshot); got != "bc" {
		t.Errorf("%s usable", got)
	}
	last := s.TryAcquire(2, 0)
	if last == nil || s.TryAcquire(2, 1) == nil || s.TryAcquire(2, 2) != nil {
		t.Error("an endpoint takes another number of calls than two")
	}
	last.Release()
	if got := usable(t, s.Snapshot); got != "bc" {
		t.Errorf("%s usable after one has ended", got)
	}
}

// A call waits for an endpoint that is fit, or busy, rather than go to one that
// is ejected.
func TestPickWaitsForRoom(t *testing.T) {
	s := rooms()
	check := func(what, want string, full, room bool, tried ...string) {
		t.Helper()
		got := "-"
		d := Pick(new(first), &Request{Tried: tried}, s.Snapshot)
		if d.Lease != nil {
			got = d.Lease.Endpoint().ID
			d.Lease.Release()
		}
		if got != want || d.Full != full {
			t.Errorf("%s: picks %s, full: %v; want %s, %v", what, got, d.Full, want, full)
		}
		if got := s.HasRoom(); got != room {
			t.Errorf("%s: room: %v", what, got)
		}
	}
	check("idle", "a", false, true)
	a := s.Acquire(0)
	check("the first has no room", "b", false, true)
	s.eject(1)
	s.At(2).Health().Busy(nil, 0)
	check("the second is ejected, the third busy", "c", false, true)
	s.Acquire(2)
	s.Acquire(2)
	check("nor has the third", "-", true, false)
	check("all but the ejected were tried", "b", false, false, "a", "c")
	a.Release()
	check("the first has", "a", false, true)
	check("but was tried", "-", true, true, "a")
	s.eject(0)
	s.eject(2)
	check("all are ejected", "a", false, true)
}
