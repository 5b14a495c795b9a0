package strategies

import (
	"fmt"
	"slices"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func TestBound(t *testing.T) {
	tests := []struct {
		name    string
		b       BoundedLoad
		weights []int
		loads   []int
		tried   []string
		want    []int // the greatest load that each endpoint may rise to
	}{
		{"floor", BoundedLoad{}, even(3), nil, nil, []int{4, 4, 4}},
		{"floor of 1, mean below 1", BoundedLoad{LoadFloor: 1}, even(4), nil, nil, []int{1, 1, 1, 1}},
		// (32+1)/4 × 1.25 = 10.3
		{"factor", BoundedLoad{}, even(4), []int{8, 8, 8, 8}, nil, []int{11, 11, 11, 11}},
		// (31+1)/4 × 1.25 = 10, not 11 by an error of rounding
		{"whole number", BoundedLoad{}, even(4), []int{8, 8, 8, 7}, nil, []int{10, 10, 10, 10}},
		{"factor of 1", BoundedLoad{LoadFactor: new(1.0)}, even(4), []int{8, 8, 8, 7}, nil, []int{8, 8, 8, 8}},
		{"factor of 2", BoundedLoad{LoadFactor: new(2.0)}, even(2), []int{10, 5}, nil, []int{16, 16}},
		{"high floor", BoundedLoad{LoadFloor: 50}, even(2), []int{10, 5}, nil, []int{50, 50}},
		// the mean is over those that are usable: (20+1)/2 × 1.25 = 13.1
		{"tried", BoundedLoad{}, even(3), []int{10, 10, 90}, []string{"c"}, []int{14, 14, 14}},
		// (39+1) × 1.25 = 50, by weight
		{"weights", BoundedLoad{}, []int{1, 3, 1}, []int{9, 21, 9}, nil, []int{10, 30, 10}},
		{"one endpoint", BoundedLoad{}, even(1), []int{100}, nil, []int{127}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture("", tt.weights, tt.loads...)
			l := tt.b.limit(request(tt.tried...), f.Snapshot, prefixFactor)
			for i, want := range tt.want {
				if !l.admits(i, want-1) || l.admits(i, want) {
					got := want
					for l.admits(i, got) {
						got++
					}
					for !l.admits(i, got-1) {
						got--
					}
					t.Errorf("endpoint %d may rise to %d, want %d", i, got, want)
				}
			}
		})
	}
}

func TestBoundOff(t *testing.T) {
	for _, s := range []routing.Strategy{
		&Prefix{BoundedLoad: BoundedLoad{LoadFactor: new(0.0)}},
		&SessionAffinity{BoundedLoad: BoundedLoad{LoadFactor: new(0.0)}},
	} {
		f := newFixture("", even(5))
		first := picks(s, f, 1, keyed(11, 12))
		for range 300 {
			if d := s.Pick(keyed(11, 12), f.Snapshot); id(d) != first || d.Reason != "" {
				t.Fatalf("%T: %s after %s", s, id(d), first)
			}
		}
	}
}

// A key goes to the endpoints in the order of the ring, each filled to its
// bound, and comes home as soon as there is room.
func TestOverflow(t *testing.T) {
	s := &SessionAffinity{}
	f := newFixture("", even(4))
	var order []int
	walk := f.Successors(77)
	for i, ok := walk.Next(); ok; i, ok = walk.Next() {
		order = append(order, i)
	}
	var got []int
	var first *routing.Lease
	for n := range 14 {
		d := s.Pick(keyed(0, 77), f.Snapshot)
		i := slices.Index(order, int(id(d)[0]-'a'))
		got = append(got, i)
		if (d.Reason == "bound") != (i > 0) || d.Key.Hash != 77 {
			t.Errorf("call %d: successor %d, reason %q, key %v", n, i, d.Reason, d.Key)
		}
		if first == nil {
			first = d.Lease
		}
	}
	// The bound is 4 until 2 × mean is above: (8+1)/4 × 2 = 4.5.
	if want := []int{0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("successors %v, want %v", got, want)
	}
	first.Release()
	if d := s.Pick(keyed(0, 77), f.Snapshot); id(d) != string(rune('a'+order[0])) {
		t.Errorf("goes to %s when there is room at home", id(d))
	}
}

// Never above the bound, whatever the keys, at every single pick.
func TestStrictBound(t *testing.T) {
	for _, n := range []int{3, 10, 200} {
		for _, s := range []*SessionAffinity{
			{}, {BoundedLoad: BoundedLoad{LoadFactor: new(1.0), LoadFloor: 1}}, {BoundedLoad: BoundedLoad{LoadFactor: new(1.25)}},
		} {
			l := s.limit(request(), nil, sessionFactor)
			snap := snapshot(3, n)
			var open []*routing.Lease
			for call := range 30 * n {
				before, _ := snap.Total(request())
				d := s.Pick(keyed(0, mix(9, uint64(call%7))), snap)
				bound := max(l.floor, ceil(l.factor*float64(before+1)/float64(n)))
				if load := d.Lease.Endpoint().Load(); load > bound {
					t.Fatalf("n=%d: load %d above the bound of %d", n, load, bound)
				}
				open = append(open, d.Lease)
				if call%3 == 2 {
					open[call/3].Release()
				}
			}
		}
	}
}

// R1: sessions stay with their endpoint when another comes, goes or is
// replaced, and whatever the order of discovery.
func TestSessionsSurviveChanges(t *testing.T) {
	const n, sessions = 10, 2000
	s := &SessionAffinity{}
	all := newFixture("", even(n+1))
	es := make([]*routing.Endpoint, n+1)
	for i := range es {
		es[i] = all.At(i)
	}
	where := func(snap *routing.Snapshot) []string {
		ids := make([]string, sessions)
		for i := range ids {
			d := s.Pick(keyed(0, uint64(i+1)), snap)
			ids[i] = id(d)
			d.Lease.Release()
		}
		return ids
	}
	moved := func(a, b []string) (moved int) {
		for i := range a {
			if a[i] != b[i] {
				moved++
			}
		}
		return moved
	}
	first := routing.New("m", es[:n], nil, nil)
	before := where(first)
	counts := map[string]int{}
	for _, id := range before {
		counts[id]++
	}
	for id, c := range counts {
		if c < sessions/n*3/4 || c > sessions/n*5/4 {
			t.Errorf("%d of %d sessions on %s of %d", c, sessions, id, n)
		}
	}
	other := slices.Clone(es[:n])
	slices.Reverse(other)
	if m := moved(before, where(routing.New("m", other, nil, nil))); m != 0 {
		t.Errorf("another order moves %d sessions", m)
	}
	limit := sessions/n + sessions/10
	if m := moved(before, where(routing.New("m", es, nil, first))); m > limit {
		t.Errorf("one more moves %d sessions, limit %d", m, limit)
	}
	for i := range n {
		less := slices.Delete(slices.Clone(es[:n]), i, i+1)
		after := where(routing.New("m", less, nil, first))
		for j := range before {
			if before[j] != after[j] && before[j] != es[i].ID {
				t.Fatalf("session moved from %s to %s when %s went", before[j], after[j], es[i].ID)
			}
		}
		replaced := append(less, es[n])
		if m := moved(before, where(routing.New("m", replaced, nil, first))); m > 2*limit {
			t.Errorf("a replacement moves %d sessions", m)
		}
	}
}

// L7: loads carry over to the snapshot after, and count where they were taken.
func TestLoadsCarryOver(t *testing.T) {
	f := newFixture("", even(3), 5, 0, 0)
	next := routing.New("m", []*routing.Endpoint{f.endpoint("a", 1), f.endpoint("b", 1)}, nil, f.Snapshot)
	if next.Load(0) != 5 {
		t.Errorf("load %d, want 5", next.Load(0))
	}
	for range 5 {
		if got := id((&LeastLoaded{}).Pick(request(), next)); got != "b" {
			t.Errorf("picks %s", got)
		}
	}
	for _, l := range f.held[0] {
		l.Activate()
		l.Release()
	}
	if next.Load(0) != 0 {
		t.Errorf("load %d after all were released", next.Load(0))
	}
}

// The key that took part is in the decision, with its source.
func TestDecisionKey(t *testing.T) {
	f := newFixture("", even(3))
	for _, tt := range []struct {
		s    routing.Strategy
		req  *routing.Request
		want string
	}{
		{&Prefix{}, keyed(5, 6), "canonical 0000000000000005"},
		{&Prefix{}, keyed(0, 6), "session-fallback 0000000000000006"},
		{&SessionAffinity{}, keyed(5, 6), "session-messages 0000000000000006"},
		{&LeastLoaded{}, keyed(5, 6), "none "},
	} {
		d := tt.s.Pick(tt.req, f.Snapshot)
		if got := fmt.Sprint(d.Key.Source, " ", d.Key); got != tt.want {
			t.Errorf("%T: key %s, want %s", tt.s, got, tt.want)
		}
	}
}
