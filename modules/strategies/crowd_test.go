package strategies

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A crowd is many chats with one system prompt.
type crowd struct {
	*simulation
	kept, moved int
	last        []int // endpoint of each chat's turn before
	width       int
}

func newCrowd(t *testing.T, seed uint64, engines, chats int) *crowd {
	t.Helper()
	sim, p := newSimulation(t, seed, engines)
	c := &crowd{simulation: sim}
	for range chats {
		c.last = append(c.last, -1)
	}
	sim.check = func(keys routing.FixedKeys, d routing.Decision, before int) {
		checkBound(t, engines, keys, d, before)
		c.width = max(c.width, p.tables.Load().heats.find(heatHash(77, "m")).width(sim.now))
	}
	return c
}

// checkBound holds a pick to its bound, which later turns may exceed by the
// grace.
func checkBound(t *testing.T, n int, keys routing.FixedKeys, d routing.Decision, before int) {
	t.Helper()
	bound := max(4, ceil(1.25*float64(before+1)/float64(n)))
	if keys.LaterTurn {
		bound += grace
	}
	if load := d.Lease.Endpoint().Load(); load > bound {
		t.Errorf("load %d above the bound of %d", load, bound)
	}
}

// turn makes the next turn of a chat.
func (c *crowd) turn(chat int, done func()) {
	i := c.call(routing.FixedKeys{
		Prefix:    routing.Key{Hash: 77, Source: routing.SourceCanonical},
		Session:   routing.Key{Hash: mix(5, uint64(chat)), Source: routing.SourceSessionMessages},
		LaterTurn: c.last[chat] >= 0,
	}, done)
	switch c.last[chat] {
	case i:
		c.kept++
	case -1:
	default:
		c.moved++
	}
	c.last[chat] = i
}

// closed has every chat send its next turn after a time to think.
func (c *crowd) closed(turns int, think time.Duration) {
	for chat := range c.last {
		left := turns
		var next func()
		next = func() {
			if left--; left >= 0 {
				c.turn(chat, func() { c.after(c.exp(think), next) })
			}
		}
		c.after(c.exp(think)+time.Duration(chat), next)
	}
	c.run()
}

// workers has so many of them take one chat after another, through all its
// turns.
func (c *crowd) workers(turns, workers int) {
	chat := -1
	var begin func()
	begin = func() {
		if chat++; chat >= len(c.last) {
			return
		}
		mine, left := chat, turns
		var next func()
		next = func() {
			if left--; left < 0 {
				begin()
				return
			}
			c.turn(mine, next)
		}
		next()
	}
	for w := range workers {
		c.after(time.Duration(w), begin)
	}
	c.run()
}

// rounds has so many workers make the first turn of every chat, then the
// second of every one, and so on.
func (c *crowd) rounds(turns, workers int) {
	job := -1
	var next func()
	next = func() {
		if job++; job < turns*len(c.last) {
			c.turn(job%len(c.last), next)
		}
	}
	for w := range workers {
		c.after(time.Duration(w), next)
	}
	c.run()
}

// arrivals has chats come at random times, so many of them per second, and
// think between turns.
func (c *crowd) arrivals(turns int, perSecond float64, think time.Duration) {
	at := time.Duration(0)
	for chat := range c.last {
		at += c.exp(time.Duration(float64(time.Second) / perSecond))
		left := turns
		var next func()
		next = func() {
			if left--; left >= 0 {
				c.turn(chat, func() { c.after(c.exp(think), next) })
			}
		}
		c.after(at, next)
	}
	c.run()
}

// stay is the share of turns on the engine of the turn before; least is the
// smallest engine's number of turns by the mean.
func (c *crowd) result() (stay, least float64) {
	sum := 0
	for _, n := range c.turns {
		sum += n
	}
	return float64(c.kept) / float64(max(1, c.kept+c.moved)),
		float64(slices.Min(c.turns)) * float64(len(c.turns)) / float64(sum)
}

// One system prompt for 200 chats of 6 turns on 8 engines: at least 90 % of
// the turns stay with the engine of the turn before, and no engine has less
// than 0.7 of the mean number of turns, however the chats take turns.
func TestCrowd(t *testing.T) {
	type shape struct {
		name string
		run  func(c *crowd)
	}
	shapes := []shape{{"all at once", func(c *crowd) { c.closed(6, 0) }}}
	for _, s := range []int{2, 5, 10, 15, 20} { // some 110, 60, 37, 26 and 20 calls in flight
		think := time.Duration(s) * time.Second
		shapes = append(shapes, shape{fmt.Sprint("thinking ", think), func(c *crowd) { c.closed(6, think) }})
	}
	for _, n := range []int{32, 64, 100} {
		shapes = append(shapes,
			shape{fmt.Sprintf("%d at a time, chat by chat", n), func(c *crowd) { c.workers(6, n) }},
			shape{fmt.Sprintf("%d at a time, round by round", n), func(c *crowd) { c.rounds(6, n) }})
	}
	shapes = append(shapes, shape{"5 new per second", func(c *crowd) { c.arrivals(6, 5, 10*time.Second) }})
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			worstStay, worstLeast := 1.0, 1.0
			for seed := range uint64(5) {
				c := newCrowd(t, seed, 8, 200)
				s.run(c)
				stay, least := c.result()
				worstStay, worstLeast = min(worstStay, stay), min(worstLeast, least)
			}
			if worstStay < 0.9 || worstLeast < 0.7 {
				t.Errorf("%.1f %% of turns stay, the least engine has %.2f of the mean", 100*worstStay, worstLeast)
			}
			t.Logf("%.1f %% of turns stay, the least engine has %.2f of the mean", 100*worstStay, worstLeast)
		})
	}
}

// Few calls at a time stay on few engines, and the turns stay as well.
func TestSmallCrowd(t *testing.T) {
	for _, n := range []int{4, 8, 12} {
		c := newCrowd(t, 1, 8, 200)
		c.workers(6, n)
		engines := 0
		for _, turns := range c.turns {
			if turns > 0 {
				engines++
			}
		}
		if stay, _ := c.result(); stay < 0.99 || engines > (n+2)/3 {
			t.Errorf("%d at a time: %.2f of turns stay, on %d engines", n, stay, engines)
		}
	}
}

// The chats of a key that was split stay where they are when it cools down;
// new ones come together at its home.
func TestCoolDown(t *testing.T) {
	c := newCrowd(t, 1, 8, 400)
	c.last = c.last[:200]
	c.closed(2, 0)
	if c.width != 8 {
		t.Fatalf("width %d", c.width)
	}
	c.now += 2 * time.Minute
	c.kept, c.moved = 0, 0
	c.workersOnce(4)
	if c.moved > 0 {
		t.Errorf("%d of 200 chats moved although there was no need", c.moved)
	}
	home := c.s.Owner(77)
	before := c.turns[home]
	for range 20 {
		c.last = append(c.last, -1)
		c.turn(len(c.last)-1, func() {})
		c.run()
	}
	if n := c.turns[home] - before; n != 20 {
		t.Errorf("%d of 20 new chats came home", n)
	}
	c.now += time.Hour // idle for too long: the chats are forgotten
	before = c.turns[home]
	c.workersOnce(1)
	if n := c.turns[home] - before; n != len(c.last) {
		t.Errorf("%d of %d forgotten chats came home", n, len(c.last))
	}
}

// workersOnce makes one more turn of every chat, so many at a time.
func (c *crowd) workersOnce(n int) {
	chat := -1
	var next func()
	next = func() {
		if chat++; chat < len(c.last) {
			c.turn(chat, next)
		}
	}
	for range n {
		c.after(0, next)
	}
	c.run()
}

// R3: a quarter of the traffic has one prefix. No endpoint exceeds its bound,
// the prefix spills over to few neighbours, always the same, and rare prefixes
// keep their endpoints.
func TestHotPrefix(t *testing.T) {
	for _, n := range []int{3, 200} {
		for _, concurrency := range []int{10, 50, 100, 200, 400} {
			for _, mode := range []string{"one call each", "same call", "chats"} {
				t.Run(fmt.Sprintf("%d endpoints, %d calls, %s", n, concurrency, mode), func(t *testing.T) {
					hotPrefix(t, n, concurrency, mode)
				})
			}
		}
	}
}

func hotPrefix(t *testing.T, n, concurrency int, mode string) {
	t.Helper()
	sim, _ := newSimulation(t, 1, n)
	sim.check = func(keys routing.FixedKeys, d routing.Decision, before int) { checkBound(t, n, keys, d, before) }
	var rare, home, later, moved int
	early, late := map[int]bool{}, map[int]bool{} // holders of the hot prefix
	last := map[uint64]int{}
	hot := func(next func()) {
		var chat uint64
		switch mode {
		case "one call each":
			chat = uint64(sim.events.Len())<<32 | sim.r.Uint64N(1<<32)
		case "chats":
			chat = sim.r.Uint64N(uint64(concurrency))
		}
		was, again := last[chat]
		keys := routing.FixedKeys{
			Prefix:    routing.Key{Hash: 77, Source: routing.SourceCanonical},
			Session:   routing.Key{Hash: mix(3, chat), Source: routing.SourceSessionMessages},
			LaterTurn: mode == "chats" && again,
		}
		i := sim.call(keys, next)
		if keys.LaterTurn {
			later++
			if was != i {
				moved++
			}
		}
		last[chat] = i
		late[i] = true
	}
	jobs := 40*concurrency + 2000
	var next func()
	next = func() {
		if jobs--; jobs < 0 {
			return
		}
		if jobs == 20*concurrency {
			early, late = late, map[int]bool{}
		}
		if sim.r.IntN(4) == 0 {
			hot(next)
			return
		}
		key := mix(1, sim.r.Uint64N(2000))
		i := sim.call(routing.FixedKeys{
			Prefix:  routing.Key{Hash: key, Source: routing.SourceCanonical},
			Session: routing.Key{Hash: mix(4, uint64(jobs)), Source: routing.SourceSessionMessages},
		}, next)
		if rare++; i == sim.s.Owner(key) {
			home++
		}
	}
	for range concurrency {
		sim.after(0, next)
	}
	sim.run()

	few := concurrency/4 + 4 // no more than it has calls, give or take
	strangers := 0
	for i := range late {
		if !early[i] {
			strangers++
		}
	}
	if len(late) > few || strangers > 2+len(early)/5 {
		t.Errorf("hot prefix on %d endpoints (limit %d), %d of them new", len(late), few, strangers)
	}
	if f := float64(home) / float64(rare); f < 0.82 {
		t.Errorf("%.3f of calls with a rare prefix at home", f)
	}
	if float64(moved) > 0.1*float64(later) {
		t.Errorf("%d of %d later turns moved", moved, later)
	}
	t.Logf("hot prefix on %d endpoints, %d of them new; %.3f of rare ones at home; %d of %d later turns moved",
		len(late), strangers, float64(home)/float64(rare), moved, later)
}
