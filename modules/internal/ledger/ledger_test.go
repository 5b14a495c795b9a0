package ledger

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// A clock is set by hand.
type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Duration      { return time.Duration(c.now.Load()) }
func (c *clock) advance(d time.Duration) { c.now.Add(int64(d)) }

// A prunings collects what OnPrune is told.
type prunings struct {
	mu   sync.Mutex
	said []string
}

func (p *prunings) note(model, target string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = append(p.said, fmt.Sprintf("%s %s %d", model, target, n))
}

func (p *prunings) want(t *testing.T, want ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.said, want) {
		t.Errorf("pruned %q, want %q", p.said, want)
	}
}

func fixture(c Config) (*Ledger, *clock, *prunings) {
	clk, pruned := new(clock), new(prunings)
	c.Now, c.OnPrune = clk.Now, pruned.note
	return New(c), clk, pruned
}

// check compares an entry's counts, and that its buckets add up to them.
func check(t *testing.T, e *Entry, active, reserved, load int) {
	t.Helper()
	if a, r, l := e.Active(), e.Reserved(), e.Load(); a != active || r != reserved || l != load {
		t.Errorf("active %d, reserved %d, load %d; want %d, %d, %d", a, r, l, active, reserved, load)
	}
	var calls, reservations int
	for b := e.account.buckets.Load(); b != nil; b = b.older.Load() {
		calls += b.calls.sum()
		reservations += b.reservations.sum()
	}
	if calls != active || reservations != reserved {
		t.Errorf("buckets hold %d active, %d reserved; want %d, %d", calls, reservations, active, reserved)
	}
}

func TestTicket(t *testing.T) {
	type step struct {
		do                     string
		active, reserved, load int
	}
	tests := map[string][]step{
		"plain":                {{"reserve", 0, 1, 1}, {"activate", 1, 0, 1}, {"release", 0, 0, 0}},
		"never dialled":        {{"reserve", 0, 1, 1}, {"release", 0, 0, 0}},
		"double release":       {{"reserve", 0, 1, 1}, {"activate", 1, 0, 1}, {"release", 0, 0, 0}, {"release", 0, 0, 0}},
		"double activate":      {{"reserve", 0, 1, 1}, {"activate", 1, 0, 1}, {"activate", 1, 0, 1}, {"release", 0, 0, 0}},
		"activate after end":   {{"reserve", 0, 1, 1}, {"release", 0, 0, 0}, {"activate", 0, 0, 0}, {"renew", 0, 0, 0}},
		"try":                  {{"try0", 0, 1, 1}, {"release", 0, 0, 0}},
		"try refused":          {{"try1", 0, 0, 0}, {"activate", 0, 0, 0}, {"renew", 0, 0, 0}, {"release", 0, 0, 0}},
		"expires":              {{"reserve", 0, 1, 1}, {"9s", 0, 1, 1}, {"3s", 0, 0, 0}, {"release", 0, 0, 0}},
		"dialled late":         {{"reserve", 0, 1, 1}, {"12s", 0, 0, 0}, {"activate", 1, 0, 1}, {"release", 0, 0, 0}},
		"dialled in time":      {{"reserve", 0, 1, 1}, {"9s", 0, 1, 1}, {"activate", 1, 0, 1}, {"12s", 1, 0, 1}, {"release", 0, 0, 0}},
		"leaks":                {{"reserve", 0, 1, 1}, {"activate", 1, 0, 1}, {"600s", 1, 0, 1}, {"6s", 0, 0, 0}, {"release", 0, 0, 0}},
		"renews":               {{"reserve", 0, 1, 1}, {"activate", 1, 0, 1}, {"500s", 1, 0, 1}, {"renew", 1, 0, 1}, {"500s", 1, 0, 1}, {"renew", 1, 0, 1}, {"599s", 1, 0, 1}, {"release", 0, 0, 0}},
		"renews late":          {{"reserve", 0, 1, 1}, {"activate", 1, 0, 1}, {"700s", 0, 0, 0}, {"renew", 1, 0, 1}, {"renew", 1, 0, 1}, {"release", 0, 0, 0}},
		"renew of reservation": {{"reserve", 0, 1, 1}, {"9s", 0, 1, 1}, {"renew", 0, 1, 1}, {"3s", 0, 0, 0}},
		"after hours of quiet": {{"9000s", 0, 0, 0}, {"reserve", 0, 1, 1}, {"activate", 1, 0, 1}, {"release", 0, 0, 0}},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			l, clk, _ := fixture(Config{})
			e := l.Entry("m", "id", "target")
			var tk Ticket
			for _, s := range steps {
				switch s.do {
				case "reserve":
					e.Reserve(&tk)
				case "try0":
					if !e.TryReserve(&tk, 0) {
						t.Error("refused")
					}
				case "try1":
					if e.TryReserve(&tk, 1) {
						t.Error("not refused")
					}
				case "activate":
					tk.Activate()
				case "renew":
					tk.Renew()
				case "release":
					tk.Release()
				default:
					d, err := time.ParseDuration(s.do)
					if err != nil {
						t.Fatal(err)
					}
					clk.advance(d)
					l.Sweep()
				}
				t.Log(s.do)
				check(t, e, s.active, s.reserved, s.load)
			}
		})
	}
}

func TestReleaseReportsTheFirst(t *testing.T) {
	l, _, _ := fixture(Config{})
	e := l.Entry("m", "id", "target")
	var tk, idle Ticket
	e.Reserve(&tk)
	if !tk.Release() || tk.Release() || !idle.Release() || idle.Release() {
		t.Error("Release does not report exactly its first call")
	}
}

// With a negative TTL, reservations do not count.
func TestNoReservations(t *testing.T) {
	l, _, _ := fixture(Config{ReservationTTL: -1})
	e := l.Entry("m", "id", "target")
	var a, b, c Ticket
	e.Reserve(&a)
	if !e.TryReserve(&b, 7) {
		t.Error("a try has nothing to compare, and is refused")
	}
	e.Reserve(&c)
	check(t, e, 0, 0, 0)
	if n := e.Reservations(); n != 3 {
		t.Errorf("%d reservations, want 3", n)
	}
	a.Activate()
	b.Activate()
	check(t, e, 2, 0, 2)
	b.Renew()
	c.Release()
	c.Activate()
	check(t, e, 2, 0, 2)
	a.Release()
	b.Release()
	check(t, e, 0, 0, 0)
	l.Sweep()
}

func TestModelsShareAnEndpointsLoad(t *testing.T) {
	l, _, _ := fixture(Config{})
	a, b := l.Entry("a", "id", "target"), l.Entry("b", "id", "target")
	other := l.Entry("a", "other", "target2")
	if l.Entry("a", "id", "target") != a {
		t.Error("the same entry twice")
	}
	var ta, tb Ticket
	a.Reserve(&ta)
	b.Reserve(&tb)
	tb.Activate()
	check(t, a, 0, 1, 2)
	check(t, b, 1, 0, 2)
	check(t, other, 0, 0, 0)
	if a.Counter() != b.Counter() || a.Counter().Load() != 2 {
		t.Error("counters differ")
	}
	var got []string
	l.Each(func(model, target string, active, reserved, load int) {
		got = append(got, fmt.Sprint(model, " ", target, " ", active, reserved, load))
	})
	slices.Sort(got)
	if want := []string{"a target 0 1 2", "a target2 0 0 0", "b target 1 0 2"}; !slices.Equal(want, got) {
		t.Errorf("Each: %q", got)
	}
	ta.Release()
	tb.Release()
	runtime.KeepAlive(other)
}

// What is pruned is told exactly, once, with the endpoint's present name.
func TestPrune(t *testing.T) {
	l, clk, pruned := fixture(Config{Bucket: time.Second, TTL: 10 * time.Second})
	e := l.Entry("m", "id", "10.0.0.1:80")
	leak := func(n int) {
		for range n {
			tk := new(Ticket)
			e.Reserve(tk)
			tk.Activate()
		}
	}
	leak(3)
	clk.advance(time.Second)
	leak(2)
	var kept Ticket
	e.Reserve(&kept)
	kept.Activate()
	clk.advance(9 * time.Second)
	l.Sweep()
	pruned.want(t)
	check(t, e, 6, 0, 6)
	l.Entry("m", "id", "10.0.0.2:80") // the pod came back with another address
	clk.advance(time.Second)
	l.Sweep()
	pruned.want(t, "m 10.0.0.2:80 3")
	check(t, e, 3, 0, 3)
	kept.Renew()
	clk.advance(time.Second)
	l.Sweep()
	l.Sweep()
	pruned.want(t, "m 10.0.0.2:80 3", "m 10.0.0.2:80 2")
	check(t, e, 1, 0, 1)
	kept.Release()
	check(t, e, 0, 0, 0)

	// Without any sweep, a new call drops the bucket whose slot it takes.
	leak(1)
	clk.advance(16 * time.Second) // once around the wheel
	leak(1)
	check(t, e, 1, 0, 1)
	pruned.want(t, "m 10.0.0.2:80 3", "m 10.0.0.2:80 2", "m 10.0.0.2:80 1")
}

func TestExpired(t *testing.T) {
	told := 0
	l, clk, pruned := fixture(Config{ReservationTTL: time.Second, OnExpire: func(model string, n int) {
		if model == "m" {
			told += n
		}
	}})
	e := l.Entry("m", "id", "target")
	tickets := make([]Ticket, 5)
	for i := range tickets {
		e.Reserve(&tickets[i])
	}
	tickets[0].Activate()
	tickets[1].Release()
	clk.advance(1200 * time.Millisecond)
	l.Sweep()
	check(t, e, 1, 0, 1)
	if e.Expired() != 3 || e.Reservations() != 5 || told != 3 {
		t.Errorf("%d of %d expired, %d told of, want 3 of 5", e.Expired(), e.Reservations(), told)
	}
	pruned.want(t) // that is no leak
}

// A flapping endpoint finds its calls again; one that returns idle starts
// at 0; one that stays away is forgotten.
func TestFlap(t *testing.T) {
	l, _, pruned := fixture(Config{})
	begin := func() *Ticket {
		tk := new(Ticket)
		l.Entry("m", "id", "target").Reserve(tk)
		tk.Activate()
		return tk
	}
	end := func(tk *Ticket) {
		collect() // the ticket alone holds the entry
		check(t, l.Entry("m", "id", "target"), 1, 0, 1)
		tk.Release()
	}
	end(begin())
	until(t, func() bool { return l.size() == 0 })
	check(t, l.Entry("m", "id", "target"), 0, 0, 0)
	pruned.want(t)
}

// A ticket that is lost together with its entry is a leak that needs no TTL.
func TestLostTicket(t *testing.T) {
	l, _, pruned := fixture(Config{})
	other := l.Entry("other", "id", "target")
	func() {
		e := l.Entry("m", "id", "target")
		a, b := new(Ticket), new(Ticket)
		e.Reserve(a)
		e.Reserve(b)
		b.Activate()
	}()
	if other.Load() != 2 {
		t.Error("other model's calls do not count")
	}
	until(t, func() bool { return other.Load() == 0 })
	until(t, func() bool { pruned.mu.Lock(); defer pruned.mu.Unlock(); return len(pruned.said) == 1 })
	pruned.want(t, "m target 2")
	runtime.KeepAlive(other)
}

func (l *Ledger) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries) + len(l.totals)
}

func collect() {
	runtime.GC()
	runtime.GC()
}

func until(t *testing.T, cond func() bool) {
	t.Helper()
	for range 200 {
		collect()
		if cond() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("never came true")
}

// A reload with other times leaves the calls in flight as they are.
func TestConfigure(t *testing.T) {
	l, clk, pruned := fixture(Config{Bucket: time.Second, TTL: 100 * time.Second})
	e := l.Entry("m", "id", "target")
	var before, leaked, long Ticket
	for _, tk := range []*Ticket{&before, &leaked, &long} {
		e.Reserve(tk)
		tk.Activate()
	}
	l.Configure(Config{Bucket: 2 * time.Second, TTL: 20 * time.Second, ReservationTTL: -1, OnPrune: pruned.note})
	if l.Interval() != 2*time.Second {
		t.Errorf("interval %v", l.Interval())
	}
	var after, leaked2 Ticket
	for _, tk := range []*Ticket{&after, &leaked2} {
		e.Reserve(tk)
		tk.Activate()
	}
	check(t, e, 5, 0, 5)
	before.Release()
	after.Release()
	check(t, e, 3, 0, 3)
	clk.advance(50 * time.Second)
	l.Sweep()
	pruned.want(t, "m target 1")
	long.Renew()
	clk.advance(60 * time.Second)
	l.Sweep()
	pruned.want(t, "m target 1", "m target 1")
	check(t, e, 1, 0, 1)
	if e.account.buckets.Load().older.Load() == nil {
		t.Error("buckets in use are gone")
	}
	long.Release()
	l.Sweep()
	check(t, e, 0, 0, 0)
	if e.account.buckets.Load().older.Load() != nil {
		t.Error("empty buckets of old settings are kept")
	}
	b := e.account.buckets.Load()
	l.Configure(Config{Bucket: 2 * time.Second, TTL: 20 * time.Second, ReservationTTL: -1})
	if e.account.buckets.Load() != b {
		t.Error("the same settings make other buckets")
	}
}

func TestLayouts(t *testing.T) {
	for _, ttl := range []time.Duration{1, time.Microsecond, time.Second, 999 * time.Second, 10000 * time.Hour} {
		for _, width := range []time.Duration{1, time.Millisecond, 7 * time.Second, time.Hour} {
			l := newLayout(width, ttl)
			w := newWheel(l)
			if len(w) > maxSlots || uint64(len(w)) <= l.keep || time.Duration(l.keep)*l.width < ttl {
				t.Errorf("bucket %v, TTL %v: %d slots of %v keep %d", width, ttl, len(w), l.width, l.keep)
			}
		}
	}
	if d := New(Config{}).Interval(); d != DefaultReservationTTL/8 {
		t.Errorf("interval %v", d)
	}
}

// What the comments say of cache lines.
func TestSizes(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("not a 64-bit machine")
	}
	if n := unsafe.Sizeof(total{}); n != 64 {
		t.Errorf("total: %d bytes", n)
	}
	if n := unsafe.Sizeof(account{}); n != 128 {
		t.Errorf("account: %d bytes", n)
	}
	if n := unsafe.Sizeof(buckets{}); n != 64 {
		t.Errorf("buckets: %d bytes", n)
	}
	if n := unsafe.Offsetof(account{}.model); n > 64 {
		t.Errorf("hot fields of an account take %d bytes", n)
	}
}
