package health

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A world is a registry under a clock that the test moves.
type world struct {
	*Registry
	now     time.Duration
	changes []string
}

func newWorld() *world {
	w := &world{now: time.Hour}
	w.Registry = NewRegistry(Settings{
		Now: func() time.Duration { return w.now },
		OnChange: func(id string, healthy bool, reason string) {
			sign := "-"
			if healthy {
				sign = "+"
			}
			w.changes = append(w.changes, sign+id+" "+reason)
		},
	})
	return w
}

var cfg = &Config{EjectAfter: 3, EjectFor: 10 * time.Second, EjectForMax: 5 * time.Minute}

func yes() bool { return true }
func no() bool  { return false }

// script plays a story of one letter per event, and returns the level after
// each, as f, b and e:
//
//	S success   F failure   D dial failure   N failure that may not eject
//	B busy      P pick      p passing probe  x failing probe
//	n nothing: a client's error, or one that left
//	. 1 s goes by           , 10 s go by     t a failure on trial: PF
func (w *world) script(s *State, story string) string {
	var levels []byte
	for _, c := range story {
		switch c {
		case 'S':
			s.Succeeded()
		case 'F':
			s.Failed(cfg, false, yes)
		case 'N':
			s.Failed(cfg, false, no)
		case 'D':
			s.Failed(cfg, true, no)
		case 'B':
			s.Busy(cfg, 0)
		case 'P':
			s.Picked()
		case 't':
			s.Picked()
			s.Failed(cfg, false, yes)
		case 'p':
			s.Probed(probe, true)
		case 'x':
			s.Probed(probe, false)
		case '.':
			w.now += time.Second
		case ',':
			w.now += 10 * time.Second
		case 'n':
		default:
			continue
		}
		levels = append(levels, "fbe"[s.Level(0)])
	}
	return string(levels)
}

var probe = Probe{Path: "/health", Interval: 10 * time.Second, Timeout: 2 * time.Second, Passes: 2, Fails: 3}

func TestLevels(t *testing.T) {
	many := strings.Repeat
	tests := []struct {
		name, story, want string
		healthy           bool
	}{
		{"a run of failures ejects", "FFF", "ffe", false},
		{"a success breaks the run", "FFSFF", "fffff", true},
		{"out for a time, then on trial", "FFF........,", "ffeeeeeeeeef", false},
		{"T2: what is no outcome breaks no run", "FnFnnF", "fffffe", false},
		{"T2: busy breaks no run either", "FBFBF", "fbbbe", false},
		{"T2: one trial and no answer that tells", "FFF,PnP.P", "ffefeeefe", false},
		{"a trial that succeeds", "FFF,PS", "ffefef", true},
		{"a trial that fails, out for longer", "FFF,t,.,", "ffefeeef", false},
		{"trials are ever rarer", "FFF,P.P..P....P", "ffefefeefeeeefe", false},
		{"a success from before is none", "FFFS,S", "ffeeff", false},
		{"a failure from before does not count again", "FFFFFF,", "ffeeeef", false},
		{"a call that had no other way brings it back", "FFFPS", "ffeef", true},
		{"one that fails does not keep it out for longer", "FFFPFF,", "ffeeeef", false},
		{"a dial failure needs no leave", "DDD", "ffe", false},
		{"the last failure decides", "FFD", "ffe", false},
		{"what may not be ejected is busy for a moment", "NNN.N.", "ffbfbf", true},
		{"busy for a moment", "B.", "bf", true},
		{"T2: 50 busy signals at once", many("B", 50) + ".", many("b", 50) + "f", true},
		{"a long run of busy signals", many("B.", 19) + "B", many("bf", 19) + "e", false},
		{"busy signals with a success among them", many("B.", 15) + "S" + many("B.", 15), many("bf", 15) + "f" + many("bf", 15), true},
		{"busy on trial is no failure", many("B.", 19) + "B,PB.", many("bf", 19) + "efeef", false},
		{"T3: probes that flap", "xpxpxpxp", "ffffffff", true},
		{"T3: one slow probe", "ppxpp", "fffff", true},
		{"probes eject", "xxx", "ffe", false},
		{"T3: one pass is not enough, two are", "xxx,p,p", "ffeeeef", true},
		{"passes in a row", "xxxpxpxpp", "ffeeeeeef", true},
		{"no call brings it back while there are probes", "xxxPS,PS", "ffeeeeee", false},
		{"nor does one keep it out", "xxxPFFF,pp", "ffeeeeeeef", true},
		{"probes that cease leave it to calls", "xxx,,,,PS", "ffeeeefef", true},
		{"a word of old does not add up", "xx,,,,,x", "ffffffff", true},
		{"back from what could not be reached", "DDDpp", "ffeef", true},
		{"passes from before do not count", "ppDDDp", "ffffee", false},
		{"failures are left to calls", "FFFpp,pp", "ffeeefff", false},
		{"a restart that probes saw", "FFFxxx,pp", "ffeeeeeef", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			s := w.State("a")
			got := w.script(s, tt.story)
			if got != tt.want {
				t.Errorf("%s\ngot  %s\nwant %s", tt.story, got, tt.want)
			}
			if s.Healthy() != tt.healthy {
				t.Errorf("healthy: %v", !tt.healthy)
			}
		})
	}
}

// The time out doubles up to its most, with jitter, and is forgotten.
func TestBackoff(t *testing.T) {
	w := newWorld()
	s := w.State("a")
	out := func() time.Duration {
		t.Helper()
		from := w.now
		for s.Level(0) == Ejected {
			w.now += 100 * time.Millisecond
		}
		return w.now - from
	}
	w.script(s, "FFF")
	for _, most := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		most *= time.Second
		if got := out(); got > most || got < most*9/10 {
			t.Errorf("out for %v, want at most a tenth less than %v", got, most)
		}
		w.script(s, "t")
	}
	out()
	w.script(s, "PS")
	w.now += 4 * time.Minute
	w.script(s, "FFF")
	if got := out(); got < 270*time.Second {
		t.Errorf("after 4 min: out for %v", got)
	}
	w.script(s, "PS")
	w.now += 5 * time.Minute
	w.script(s, "FFF")
	if got := out(); got > 10*time.Second {
		t.Errorf("after 5 min: out for %v", got)
	}
	want := []string{"-a failures", "+a call", "-a failures", "+a call", "-a failures"}
	if !slices.Equal(w.changes, want) {
		t.Errorf("changes %q", w.changes)
	}
}

// L5: an endpoint that is back, of which little is known, does not count as the
// idlest and is not flooded, by whatever way it came.
func TestSlowStart(t *testing.T) {
	for _, story := range []string{"FFF,PS", "xxxpp"} {
		w := newWorld()
		s := w.State("a")
		w.script(s, story)
		for second, most := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512} {
			if s.Level(most-1) != Fit || s.Level(most) != Busy {
				t.Errorf("%s: after %d s it takes not %d", story, second, most)
			}
			w.now += time.Second
		}
		if s.Level(1<<20) != Fit {
			t.Errorf("%s: it never ends", story)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct{ said, want time.Duration }{
		{0, time.Second},
		{-1, time.Second},
		{500 * time.Millisecond, 500 * time.Millisecond},
		{3 * time.Second, 3 * time.Second},
		{time.Hour, 5 * time.Second},
	} {
		w := newWorld()
		s := w.State("a")
		s.Busy(nil, tt.said)
		w.now += tt.want - 1
		if s.Level(0) != Busy {
			t.Errorf("Retry-After %v: over too early", tt.said)
		}
		if w.now++; s.Level(0) != Fit {
			t.Errorf("Retry-After %v: not over", tt.said)
		}
		s.Busy(nil, 3*time.Second)
		s.Busy(nil, time.Second) // does not shorten
		if w.now += 2 * time.Second; s.Level(0) != Busy {
			t.Error("a later busy signal ended an earlier one")
		}
	}
}

func TestMayEject(t *testing.T) {
	for _, tt := range []struct {
		share      float64
		ejected, n int
		want       bool
	}{
		{0.5, 0, 1, false}, {0.5, 0, 2, true}, {0.5, 1, 2, false}, {0.5, 0, 3, true}, {0.5, 1, 3, false},
		{0.5, 1, 4, true}, {0.5, 2, 4, false}, {0, 0, 2, true}, {0, 1, 2, false}, {-1, 0, 9, false},
		{1, 0, 1, true}, {1, 2, 3, true}, {0.29, 28, 100, true}, {0.29, 29, 100, false}, {0.5, 0, 0, false},
	} {
		if got := MayEject(tt.share, tt.ejected, tt.n); got != tt.want {
			t.Errorf("share %v, %d of %d: %v", tt.share, tt.ejected, tt.n, got)
		}
	}
}

// mayEject is asked when it matters, and for one endpoint at a time.
func TestMayEjectIsAsked(t *testing.T) {
	w := newWorld()
	asked := 0
	ask := func() bool { asked++; return true }
	s := w.State("a")
	s.Failed(cfg, false, ask)
	s.Failed(cfg, false, ask)
	if asked != 0 {
		t.Error("asked before the run is long enough")
	}
	s.Failed(cfg, false, ask)
	if asked != 1 || !s.Suspect() {
		t.Error("not asked, or not ejected")
	}
	d := w.State("d")
	w.script(d, "DDD")
	if d.Suspect() || d.Healthy() {
		t.Error("what could not be reached counts as suspect")
	}
	w.now += time.Minute
	if w.script(d, "t"); d.Suspect() {
		t.Error("what could not be reached became a suspect on trial")
	}

	// Two that fail at once, and one may be ejected.
	for range 100 {
		w := newWorld()
		states := []*State{w.State("a"), w.State("b")}
		var wg sync.WaitGroup
		for _, s := range states {
			wg.Go(func() {
				for range 3 {
					s.Failed(cfg, false, func() bool { return !states[0].Suspect() && !states[1].Suspect() })
				}
			})
		}
		wg.Wait()
		if states[0].Healthy() == states[1].Healthy() {
			t.Fatal("not exactly one is ejected")
		}
	}
}

// T5: an endpoint that comes back while anything refers to it finds its state;
// what nobody refers to is forgotten, and counts as no trouble.
func TestRegistry(t *testing.T) {
	w := newWorld()
	a := w.State("a")
	w.script(a, "FFF")
	if w.State("a") != a || w.State("a").Healthy() || w.State("b") == a {
		t.Error("another state")
	}
	if a.Troubled().Load() != 1 {
		t.Error("no trouble")
	}
	runtime.KeepAlive(a)
	a = nil
	for i := 0; w.troubled.Load() != 0; i++ {
		if i == 100 {
			t.Fatal("trouble that is forgotten counts")
		}
		runtime.GC()
		runtime.Gosched()
	}
	if !w.State("a").Healthy() {
		t.Error("a new state is that of old")
	}
}

// With time alone everything is quick again.
func TestSweep(t *testing.T) {
	w := newWorld()
	busy, back, out := w.State("busy"), w.State("back"), w.State("out")
	w.script(busy, "B")
	w.script(out, "FFF")
	w.script(back, "FFF,PS")
	for _, tt := range []struct {
		after time.Duration
		want  int64
	}{{0, 2}, {9 * time.Second, 2}, {time.Second, 1}, {time.Hour, 1}} {
		w.now += tt.after
		w.Sweep()
		if got := w.troubled.Load(); got != tt.want {
			t.Errorf("%v in trouble, want %v", got, tt.want)
		}
	}
	if out.Healthy() || busy.view.Load() != nil || back.view.Load() != nil {
		t.Error("wrong ones in trouble")
	}
}

func TestNil(t *testing.T) {
	var r *Registry
	s := r.State("a")
	s.Failed(cfg, true, nil)
	s.Busy(cfg, 0)
	s.Picked()
	s.Succeeded()
	if s != nil || s.Level(1<<30) != Fit || !s.Healthy() || s.Suspect() || s.Troubled().Load() != 0 {
		t.Error("a nil state is not fit")
	}
}

// Nothing that calls and probes do at once leaves a state that its count of
// troubles does not know.
func TestConcurrent(t *testing.T) {
	r := NewRegistry(Settings{})
	c := &Config{EjectFor: time.Microsecond, EjectForMax: time.Millisecond}
	states := []*State{r.State("a"), r.State("b")}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 2000 {
				s := states[(i+k)%2]
				switch (i * k) % 7 {
				case 0:
					s.Failed(c, k%2 == 0, yes)
				case 1:
					s.Busy(c, 1)
				case 2:
					s.Picked()
				case 3:
					s.Succeeded()
				case 4:
					s.Probed(probe, k%3 == 0)
				case 5:
					r.Sweep()
				default:
					s.Level(k % 5)
				}
			}
		})
	}
	wg.Wait()
	troubled := int64(0)
	for _, s := range states {
		if s.view.Load() != nil {
			troubled++
		}
	}
	if got := r.troubled.Load(); got != troubled {
		t.Errorf("%d count as troubled, %d are", got, troubled)
	}
}

func BenchmarkSucceeded(b *testing.B) {
	s := NewRegistry(Settings{}).State("a")
	for b.Loop() {
		s.Succeeded()
	}
}

func BenchmarkLevel(b *testing.B) {
	for _, name := range []string{"fit", "ejected"} {
		b.Run(name, func(b *testing.B) {
			s := NewRegistry(Settings{}).State("a")
			if name == "ejected" {
				for range 3 {
					s.Failed(nil, true, nil)
				}
			}
			for b.Loop() {
				s.Level(0)
			}
		})
	}
}
