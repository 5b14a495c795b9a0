package ring

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// fleet returns n nodes named as pods are, in order.
func fleet(seed uint64, n int) []Node {
	r := rand.New(rand.NewPCG(seed, 0))
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{fmt.Sprintf("%08x-%04x-4000-8000-%012x", r.Uint32(), r.Uint32N(1<<16), r.Uint64N(1<<48)), 1}
	}
	sortNodes(nodes)
	return nodes
}

func sortNodes(nodes []Node) {
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
}

func with(nodes []Node, more ...Node) []Node {
	nodes = append(slices.Clone(nodes), more...)
	sortNodes(nodes)
	return nodes
}

func without(nodes []Node, i int) []Node { return slices.Delete(slices.Clone(nodes), i, i+1) }

// keys returns k keys from a source of their own.
func keys(k int) []uint64 {
	r := rand.New(rand.NewPCG(1, 2))
	ks := make([]uint64, k)
	for i := range ks {
		ks[i] = r.Uint64()
	}
	return ks
}

// moved counts the keys whose owner differs between two rings, and those of
// them that moved although their owner is in both.
func moved(a, b *Ring, ks []uint64) (all, needless int) {
	stays := map[string]bool{}
	for _, m := range b.members {
		stays[m.id] = true
	}
	isNew := map[string]bool{}
	for _, m := range b.members {
		isNew[m.id] = true
	}
	for _, m := range a.members {
		delete(isNew, m.id)
	}
	for _, k := range ks {
		was, is := a.members[a.Owner(k)].id, b.members[b.Owner(k)].id
		if was == is {
			continue
		}
		all++
		if stays[was] && !isNew[is] {
			needless++
		}
	}
	return all, needless
}

func equal(t *testing.T, got, want *Ring) {
	t.Helper()
	if !slices.Equal(got.members, want.members) || !slices.Equal(got.points, want.points) ||
		!slices.Equal(got.index, want.index) || got.shift != want.shift {
		t.Fatal("the ring built from an older one is not the one built from scratch")
	}
}

// R1: one change among n moves at most 1/n + 10 % of the keys, and only those
// that the change is about.
func TestRemap(t *testing.T) {
	ks := keys(20_000)
	for _, n := range []int{3, 10, 100, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			nodes := fleet(uint64(n), n)
			r := New(nodes, nil)
			limit := int(float64(len(ks)) * (1/float64(n) + 0.1))
			for round := range 5 {
				i := (round*7919 + 1) % n
				for what, other := range map[string][]Node{
					"remove":  without(nodes, i),
					"add":     with(nodes, fleet(uint64(1000*n+round), 1)...),
					"replace": with(without(nodes, i), fleet(uint64(2000*n+round), 1)...),
				} {
					limit := limit
					if what == "replace" {
						limit += len(ks) / n // two changes in one
					}
					all, needless := moved(r, New(other, nil), ks)
					if all > limit || needless != 0 {
						t.Errorf("%s: moved %d of %d keys (limit %d), %d of them needlessly", what, all, len(ks), limit, needless)
					}
				}
			}
		})
	}
}

// shares returns each node's number of keys by its expected number.
func shares(r *Ring, nodes []Node, k int) []float64 {
	counts := make([]float64, len(nodes))
	for _, k := range keys(k) {
		counts[r.Owner(k)]++
	}
	weight := 0
	for _, n := range nodes {
		weight += n.Weight
	}
	for i := range counts {
		counts[i] /= float64(k) * float64(nodes[i].Weight) / float64(weight)
	}
	return counts
}

func TestSpread(t *testing.T) {
	for _, n := range []int{3, 10, 100, 1000} {
		for seed := range uint64(5) {
			nodes := fleet(seed, n)
			s := shares(New(nodes, nil), nodes, 2000*n)
			if lo, hi := slices.Min(s), slices.Max(s); lo < 0.75 || hi > 1.25 {
				t.Errorf("%d nodes, fleet %d: shares of %.2f to %.2f of even", n, seed, lo, hi)
			} else {
				t.Logf("%d nodes, fleet %d: shares of %.2f to %.2f of even", n, seed, lo, hi)
			}
		}
	}
}

func TestWeights(t *testing.T) {
	tests := []struct {
		weights []int
		points  []int
	}{
		{[]int{1, 1, 1}, []int{512, 512, 512}},
		{[]int{100, 100}, []int{512, 512}},
		{[]int{1, 2, 3, 4}, []int{512, 1024, 1536, 2048}},
		{[]int{10, 20, 5}, []int{1024, 2048, 512}},
		{[]int{1, 100}, []int{128, 12800}},
		{[]int{33, 66, 99, 1}, []int{33 * 128, 66 * 128, 99 * 128, 128}},
		{[]int{32, 1}, []int{1 << 14, 512}},
		{[]int{0, 1}, []int{512, 512}},
	}
	for _, tt := range tests {
		nodes := fleet(9, len(tt.weights))
		for i := range nodes {
			nodes[i].Weight = tt.weights[i]
		}
		r := New(nodes, nil)
		for i, m := range r.members {
			if m.points != tt.points[i] {
				t.Errorf("weights %v: node %d has %d points, want %d", tt.weights, i, m.points, tt.points[i])
			}
			nodes[i].Weight = max(1, nodes[i].Weight)
		}
		for i, s := range shares(r, nodes, 200_000) {
			if s < 0.75 || s > 1.25 {
				t.Errorf("weights %v: node %d has %.2f of its share", tt.weights, i, s)
			}
		}
	}
}

// A heavier node takes keys from the others; none of them swap keys.
func TestWeightRaised(t *testing.T) {
	nodes := fleet(4, 10)
	for i := range nodes {
		nodes[i].Weight = 1 + i%3
	}
	heavier := slices.Clone(nodes)
	heavier[4].Weight++
	before, after := New(nodes, nil), New(heavier, nil)
	for _, k := range keys(10_000) {
		if was, is := before.Owner(k), after.Owner(k); was != is && is != 4 {
			t.Fatalf("key moved from node %d to %d when node 4 gained weight", was, is)
		}
	}
}

// A ring built from any older one equals one built from scratch.
func TestIncremental(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	nodes := fleet(1, 40)
	var prev *Ring
	next := uint64(100)
	fresh := func(n int) []Node { next++; return fleet(next, n) }
	for range 300 {
		switch next := New(nodes, prev); {
		case r.IntN(10) == 0:
			prev = nil
		default:
			equal(t, next, New(nodes, nil))
			prev = next
		}
		for range 1 + r.IntN(3) {
			switch op := r.IntN(4); {
			case op == 0 || len(nodes) == 0:
				nodes = with(nodes, fresh(1+r.IntN(3))...)
			case op == 1:
				nodes = without(nodes, r.IntN(len(nodes)))
			case op == 2:
				nodes = slices.Clone(nodes)
				nodes[r.IntN(len(nodes))].Weight = 1 + r.IntN(3)
			default:
				nodes = with(without(nodes, r.IntN(len(nodes))), fresh(1)...)
			}
		}
		if r.IntN(50) == 0 {
			nodes = nil // R6: the last endpoint leaves
		}
	}
	big := fleet(2, 1000)
	equal(t, New(with(without(big, 500), fleet(3, 1)...), New(big, nil)), New(with(without(big, 500), fleet(3, 1)...), nil))
}

func TestOwnerIsFirstPoint(t *testing.T) {
	for _, n := range []int{1, 2, 5, 64, 300} {
		r := New(fleet(uint64(n), n), nil)
		points := r.points[:len(r.points)-lookahead]
		if !slices.IsSorted(points) {
			t.Fatal("points are not in order")
		}
		for _, k := range append(keys(20_000), 0, 1, ^uint64(0)) {
			at, _ := slices.BinarySearch(points, place(k)&^nodeMask)
			if want := int(points[at%len(points)] & nodeMask); r.Owner(k) != want {
				t.Fatalf("owner of %x is %d, want %d", k, r.Owner(k), want)
			}
		}
		// The places before and behind every point, among them the ends.
		for _, p := range append(slices.Clone(points), 0, ^uint64(0)) {
			for _, place := range []uint64{p - 1<<nodeBits, p, p + 1<<nodeBits} {
				at, _ := slices.BinarySearch(points, place&^nodeMask)
				if got := r.points[r.find(place)]; got&nodeMask != points[at%len(points)]&nodeMask {
					t.Fatalf("wrong point for place %x", place)
				}
			}
		}
	}
}

func TestWalk(t *testing.T) {
	for _, n := range []int{1, 2, 3, 32, 33, 64, 65, 100, 300} {
		nodes := fleet(uint64(n), n)
		nodes[0].Weight = 50 // its points crowd out the others'
		r := New(nodes, nil)
		for _, k := range keys(200) {
			w := r.Walk(k)
			var order []int
			seen := map[int]bool{}
			for i, ok := w.Next(); ok; i, ok = w.Next() {
				if seen[i] {
					t.Fatalf("n=%d: node %d twice", n, i)
				}
				seen[i] = true
				order = append(order, i)
			}
			if len(order) != n || order[0] != r.Owner(k) {
				t.Fatalf("n=%d: visited %d nodes beginning with %d, owner is %d", n, len(order), order[0], r.Owner(k))
			}
			// Without its owner the key goes to the second, and so on.
			gone := nodes
			for i := range min(3, n-1) {
				at, _ := slices.BinarySearchFunc(gone, nodes[order[i]], func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
				gone = without(gone, at)
				if i == 0 && k%16 == 0 || n < 5 {
					less := New(gone, nil)
					if n > 1 && less.members[0].points == r.members[0].points &&
						less.members[less.Owner(k)].id != nodes[order[i+1]].ID {
						t.Fatalf("n=%d: the walk's node %d does not inherit the key", n, i+1)
					}
				}
			}
		}
	}
}

func TestEmpty(t *testing.T) {
	for _, r := range []*Ring{New(nil, nil), new(Ring), New(nil, New(fleet(1, 3), nil))} {
		if r.Owner(42) != -1 || r.Len() != 0 {
			t.Error("an empty ring has an owner")
		}
		if w := r.Walk(42); true {
			if _, ok := w.Next(); ok {
				t.Error("a walk over an empty ring yields a node")
			}
		}
		if got := New(fleet(1, 3), r); got.Owner(42) < 0 {
			t.Error("no owner after the first node came")
		}
	}
}

func TestAllocs(t *testing.T) {
	r := New(fleet(1, 100), nil)
	ks := keys(64)
	if n := testing.AllocsPerRun(100, func() {
		for _, k := range ks {
			w := r.Walk(k)
			for range 50 {
				w.Next()
			}
			r.Owner(k)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// poor hashes, such as small numbers, spread as good ones do.
func TestPoorHashes(t *testing.T) {
	r := New(fleet(1, 10), nil)
	counts := make([]int, 10)
	for k := range uint64(10_000) {
		counts[r.Owner(k)]++
	}
	if slices.Min(counts) < 750 || slices.Max(counts) > 1250 {
		t.Errorf("counts %v", counts)
	}
}
