package strategies

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// fixture is a snapshot with endpoints a, b, c … of given weights and loads.
type fixture struct {
	*routing.Snapshot
	ledger *ledger.Ledger
	held   [][]*routing.Lease
}

func newFixture(service string, weights []int, loads ...int) *fixture {
	f := &fixture{ledger: ledger.New(ledger.Config{})}
	var es []*routing.Endpoint
	for i, w := range weights {
		es = append(es, f.endpoint(string(rune('a'+i)), w))
	}
	var svc *routing.Endpoint
	if service != "" {
		svc = f.endpoint(service, 1)
	}
	f.Snapshot = routing.New("m", es, svc, nil)
	f.held = make([][]*routing.Lease, len(es))
	for i, n := range loads {
		for range n {
			f.held[i] = append(f.held[i], f.Acquire(i))
		}
	}
	return f
}

func (f *fixture) endpoint(id string, weight int) *routing.Endpoint {
	return routing.NewEndpoint(f.ledger, nil, "m", routing.Spec{ID: id, Scheme: "http", Address: id + ":80", Weight: weight})
}

func even(n int) []int { return slices.Repeat([]int{1}, n) }

// id is what a pick is called in the tables below.
func id(d routing.Decision) string {
	if d.Lease == nil {
		return "-"
	}
	return d.Lease.Endpoint().ID
}

func request(tried ...string) *routing.Request {
	return &routing.Request{Model: "m", Keys: routing.FixedKeys{}, Tried: tried}
}

func keyed(prefix, session uint64) *routing.Request {
	k := routing.FixedKeys{}
	if prefix != 0 {
		k.Prefix = routing.Key{Hash: prefix, Source: routing.SourceCanonical}
	}
	if session != 0 {
		k.Session = routing.Key{Hash: session, Source: routing.SourceSessionMessages}
	}
	return &routing.Request{Model: "m", Keys: k}
}

// picks returns the IDs of n picks, which stay in flight.
func picks(s routing.Strategy, f *fixture, n int, req *routing.Request) string {
	got := ""
	for range n {
		got += id(s.Pick(req, f.Snapshot))
	}
	return got
}

func TestInTurn(t *testing.T) {
	tests := []struct {
		strategy routing.Strategy
		service  string
		weights  []int
		tried    []string
		n        int
		want     string
	}{
		{&RoundRobin{}, "", even(3), nil, 7, "abcabca"},
		{&RoundRobin{}, "s", even(3), nil, 4, "abca"},
		{&RoundRobin{}, "", []int{7, 7}, nil, 4, "abab"},
		{&RoundRobin{}, "", []int{2, 1}, nil, 6, "abaaba"},
		{&RoundRobin{}, "", []int{3, 1}, nil, 8, "aabaaaba"},
		{&RoundRobin{}, "", []int{100, 50}, nil, 6, "abaaba"},
		{&RoundRobin{}, "", even(3), []string{"b"}, 6, "ac"},
		{&RoundRobin{}, "", even(3), []string{"a", "c"}, 3, "b"},
		{&RoundRobin{}, "", even(2), []string{"b", "a"}, 2, "-"},
		{&RoundRobin{}, "", nil, nil, 1, "-"},
		{&RoundRobin{}, "", even(1), nil, 2, "aa"},
		{&Default{}, "s", even(3), nil, 3, "sss"},
		{&Default{}, "", even(3), nil, 4, "abca"},
		{&Default{}, "s", even(3), []string{"s"}, 4, "abc"},
		{&Default{}, "s", nil, nil, 1, "s"},
		{&Default{}, "", nil, nil, 1, "-"},
		{&LeastLoaded{}, "", even(3), nil, 7, "abcabca"}, // R5: idle ones in turn
		{&LeastLoaded{}, "s", even(3), []string{"b"}, 4, "ac"},
		{&LeastLoaded{}, "", even(2), []string{"b", "a"}, 1, "-"},
		{&LeastLoaded{}, "", nil, nil, 1, "-"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%T %s%v %v", tt.strategy, tt.service, tt.weights, tt.tried), func(t *testing.T) {
			f := newFixture(tt.service, tt.weights)
			got := picks(tt.strategy, f, tt.n, request(tt.tried...))
			if tt.tried != nil { // drawn by lot among the others
				if len(got) != tt.n || strings.Trim(got, tt.want) != "" {
					t.Errorf("picks %s, want %d of %s", got, tt.n, tt.want)
				}
				return
			}
			if got != tt.want {
				t.Errorf("picks %s, want %s", got, tt.want)
			}
		})
	}
}

// In as many turns as the weights add up to, each endpoint has its share, and
// never waits much longer than its share says: at most until each other one
// that is due at the same time has had its turn.
func TestWeightedTurns(t *testing.T) {
	weights := []int{5, 1, 1, 3, 7, 20}
	f := newFixture("", weights)
	sum := 37
	counts, last := make([]int, len(weights)), make([]int, len(weights))
	for turn := range 3 * sum {
		i := int(id((&RoundRobin{}).Pick(request(), f.Snapshot))[0] - 'a')
		if gap := turn - last[i]; gap > sum/weights[i]+len(weights) {
			t.Errorf("endpoint %d of weight %d waited %d turns of %d", i, weights[i], gap, sum)
		}
		counts[i]++
		last[i] = turn
	}
	for i, w := range weights {
		if counts[i] != 3*w {
			t.Errorf("endpoint %d has %d turns, want %d", i, counts[i], 3*w)
		}
	}
}

func TestLeastLoadedFillsUp(t *testing.T) {
	f := newFixture("", even(3), 2, 0, 1)
	got := picks(&LeastLoaded{}, f, 3, request())
	if got != "bcb" && got != "bbc" {
		t.Errorf("picks %s", got)
	}
	if loads := []int{f.Load(0), f.Load(1), f.Load(2)}; !slices.Equal(loads, []int{2, 2, 2}) {
		t.Errorf("loads %v", loads)
	}
	for _, held := range f.held[0] {
		held.Release()
	}
	if got := picks(&LeastLoaded{}, f, 2, request()); got != "aa" {
		t.Errorf("picks %s", got)
	}
}

// share counts the picks of each endpoint over a dry run, in which the loads
// stay as they are.
func share(s routing.Strategy, f *fixture, n int, req *routing.Request) []float64 {
	dry := f.DryRun()
	got := make([]float64, f.Len())
	for range n {
		if i := id(s.Pick(req, dry)); i != "-" {
			got[i[0]-'a'] += 1 / float64(n)
		}
	}
	return got
}

func TestRandomShares(t *testing.T) {
	tests := []struct {
		name     string
		strategy routing.Strategy
		weights  []int
		loads    []int
		tried    []string
		want     []float64
	}{
		{"k=1 is strict", &SoftKChoice{K: 1}, even(4), []int{3, 1, 2, 5}, nil, []float64{0, 1, 0, 0}},
		{"k=1, ties at random", &SoftKChoice{K: 1}, even(4), []int{1, 1, 2, 1}, nil, []float64{1. / 3, 1. / 3, 0, 1. / 3}},
		{"weight/(1+load)", &SoftKChoice{}, even(4), []int{3, 1, 9, 9}, nil, []float64{1. / 3, 2. / 3, 0, 0}},
		{"k=3", &SoftKChoice{K: 3}, even(4), []int{0, 1, 2, 9}, nil, []float64{6. / 11, 3. / 11, 2. / 11, 0}},
		{"weights", &SoftKChoice{}, []int{3, 1, 1}, []int{2, 0, 9}, nil, []float64{.5, .5, 0}},
		{"weights do not choose the k", &SoftKChoice{}, []int{1, 1, 100}, []int{0, 0, 1}, nil, []float64{.5, .5, 0}},
		{"ties for the last place", &SoftKChoice{}, even(5), []int{0, 4, 4, 4, 4}, nil, []float64{5. / 6, 1. / 24, 1. / 24, 1. / 24, 1. / 24}},
		{"all tied", &SoftKChoice{}, even(4), nil, nil, []float64{.25, .25, .25, .25}},
		{"k above n", &SoftKChoice{K: 9}, even(2), []int{0, 1}, nil, []float64{2. / 3, 1. / 3}},
		{"k of many", &SoftKChoice{K: 12}, even(12), nil, nil, slices.Repeat([]float64{1. / 12}, 12)},
		{"tried", &SoftKChoice{}, even(4), []int{0, 1, 3, 3}, []string{"a"}, []float64{0, 2. / 3, 1. / 6, 1. / 6}},
		{"none left", &SoftKChoice{}, even(2), nil, []string{"a", "b"}, []float64{0, 0}},
		{"two of three", &PowerOfTwo{}, even(3), []int{0, 1, 2}, nil, []float64{2. / 3, 1. / 3, 0}},
		{"two of four, idle", &PowerOfTwo{}, even(4), nil, nil, []float64{.25, .25, .25, .25}},
		{"one of one", &PowerOfTwo{}, even(1), nil, nil, []float64{1}},
		{"two of two", &PowerOfTwo{}, even(2), []int{1, 0}, nil, []float64{0, 1}},
		{"two, one tried", &PowerOfTwo{}, even(2), []int{1, 0}, []string{"b"}, []float64{1, 0}},
		{"two, all tried", &PowerOfTwo{}, even(2), nil, []string{"b", "a"}, []float64{0, 0}},
		{"session without key", &SessionAffinity{}, even(3), []int{0, 1, 2}, nil, []float64{2. / 3, 1. / 3, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const n = 40_000
			got := share(tt.strategy, newFixture("", tt.weights, tt.loads...), n, request(tt.tried...))
			for i, want := range tt.want {
				// Five standard deviations: one false alarm in a million.
				if off := math.Abs(got[i] - want); off > 5*math.Sqrt(want*(1-want)/n)+1e-9 {
					t.Errorf("endpoint %d has %.4f of the picks, want %.4f", i, got[i], want)
				}
			}
		})
	}
}

// A seeded source gives the same picks again.
func TestSeeded(t *testing.T) {
	seeded := func() source {
		x := uint64(0)
		return func() uint64 { x++; return mix(42, x) }
	}
	for _, s := range []func() routing.Strategy{
		func() routing.Strategy { return &SoftKChoice{random: seeded()} },
		func() routing.Strategy { return &PowerOfTwo{random: seeded()} },
		func() routing.Strategy { return &SessionAffinity{random: seeded()} },
	} {
		a := picks(s(), newFixture("", even(6)), 50, request())
		if b := picks(s(), newFixture("", even(6)), 50, request()); a != b {
			t.Errorf("%T: %s, then %s", s(), a, b)
		}
	}
}

// R2: calls without a key spread as they would with load alone; no strategy
// sends them all to one endpoint.
func TestKeyless(t *testing.T) {
	for _, s := range []routing.Strategy{
		&SessionAffinity{}, &SessionAffinity{Keyless: "least-loaded"}, &SessionAffinity{Keyless: "service"},
		&Prefix{}, &Prefix{Keyless: "least-loaded"}, &Prefix{Keyless: "service"},
	} {
		f := newFixture("", even(4))
		for range 400 {
			d := s.Pick(request(), f.Snapshot)
			if d.Reason != "keyless" || d.Key.Usable() {
				t.Fatalf("%T: reason %q, key %v", s, d.Reason, d.Key)
			}
		}
		for i := range 4 {
			if n := f.Load(i); n < 95 || n > 105 {
				t.Errorf("%+v: %d of 400 calls on one endpoint of four", s, n)
			}
		}
	}
	for _, tt := range []struct {
		s    routing.Strategy
		want string
	}{
		{&Prefix{}, "s"},
		{&Prefix{Keyless: "service"}, "s"},
		{&Prefix{Keyless: "least-loaded"}, "a"},
		{&SessionAffinity{Keyless: "service"}, "s"},
		{&SessionAffinity{Keyless: "least-loaded"}, "a"},
	} {
		f := newFixture("s", even(4), 0, 1, 1, 1)
		d := tt.s.Pick(request(), f.Snapshot)
		if id(d) != tt.want || d.Lease.IsService() != (tt.want == "s") {
			t.Errorf("%+v goes to %s, want %s", tt.s, id(d), tt.want)
		}
		if tt.want == "s" {
			if got := id(tt.s.Pick(request("s"), f.Snapshot)); got == "s" || got == "-" {
				t.Errorf("%+v goes to %s when the service was tried", tt.s, got)
			}
		}
	}
}

// R6: no endpoint, no pick; and a right one after the next has come.
func TestEmpty(t *testing.T) {
	for _, a := range all {
		s := a.new()
		f := newFixture("", nil)
		if d := s.Pick(keyed(1, 2), f.Snapshot); d != (routing.Decision{}) {
			t.Errorf("%s: %+v", a.name, d)
		}
		next := routing.New("m", []*routing.Endpoint{f.endpoint("z", 1)}, nil, f.Snapshot)
		if got := id(s.Pick(keyed(1, 2), next)); got != "z" {
			t.Errorf("%s picks %s", a.name, got)
		}
		if d := s.Pick(&routing.Request{Keys: routing.FixedKeys{}, Tried: []string{"z"}}, next); d.Lease != nil {
			t.Errorf("%s picks what was tried", a.name)
		}
		req := keyed(1, 2)
		req.Tried = []string{"z"}
		if d := s.Pick(req, next); d != (routing.Decision{}) {
			t.Errorf("%s: %+v", a.name, d)
		}
	}
}

// A dry run counts nothing, and repeats itself where nothing is random.
func TestDryRun(t *testing.T) {
	for _, a := range all {
		s, f := a.new(), newFixture("", even(5), 1, 2, 3, 4, 5)
		if p, ok := s.(*Prefix); ok { // with a key that is split
			for i := range 10 {
				p.Pick(keyed(7, uint64(100+i)), f.Snapshot)
			}
		}
		before := fmt.Sprint(f.Load(0), f.Load(1), f.Load(2), f.Load(3), f.Load(4), f.Turn())
		random := a.name == "soft-k-choice" || a.name == "power-of-two"
		first := ""
		for range 50 {
			d := s.Pick(keyed(7, 9), f.DryRun())
			if got := id(d); !random && first != "" && got != first {
				t.Errorf("%s: %s, then %s", a.name, first, got)
			} else {
				first = got
			}
			d.Lease.Activate()
			d.Lease.Release()
		}
		if d := s.Pick(keyed(8, 9), f.DryRun()); d.Lease == nil {
			t.Errorf("%s: no pick", a.name)
		}
		f.Turn() // one more than before
		after := fmt.Sprint(f.Load(0), f.Load(1), f.Load(2), f.Load(3), f.Load(4), f.Turn()-2)
		if before != after {
			t.Errorf("%s: loads and turns %s, then %s", a.name, before, after)
		}
	}
}

// A dead endpoint gets its share of first attempts and no more: what is
// repeated takes no turn.
func TestRetriesTakeNoTurn(t *testing.T) {
	for _, st := range []routing.Strategy{new(RoundRobin), new(LeastLoaded)} {
		s := routing.NewSnapshot("m", routing.Spec{Scheme: "http", Address: "dead:1"}, routing.Spec{Scheme: "http", Address: "live:1"})
		dead := 0
		for range 40 {
			d := st.Pick(&routing.Request{Keys: routing.FixedKeys{}}, s)
			d.Lease.Release()
			if d.Lease.Endpoint().Address != "dead:1" {
				continue
			}
			dead++
			again := st.Pick(&routing.Request{Keys: routing.FixedKeys{}, Tried: []string{d.Lease.Endpoint().ID}}, s)
			again.Lease.Release()
			if again.Lease.Endpoint().Address != "live:1" {
				t.Errorf("%T: repeated at %s", st, again.Lease.Endpoint().Address)
			}
		}
		if dead != 20 {
			t.Errorf("%T: %d of 40 calls began at the dead endpoint, want 20", st, dead)
		}
	}
}
