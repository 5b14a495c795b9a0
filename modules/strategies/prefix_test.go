package strategies

import (
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func later(prefix, session uint64) *routing.Request {
	r := keyed(prefix, session)
	k := r.Keys.(routing.FixedKeys)
	k.LaterTurn = true
	r.Keys = k
	return r
}

// hot returns a strategy and endpoints on which key 7 has many calls in
// flight, with the leases by chat from 1 on.
func hot(n, calls int) (*Prefix, *fixture, []*routing.Lease) {
	p, f := new(Prefix), newFixture("", even(n))
	leases := []*routing.Lease{nil}
	for i := range calls {
		leases = append(leases, p.Pick(keyed(7, uint64(i+1)), f.Snapshot).Lease)
	}
	return p, f, leases
}

func (p *Prefix) heatOf(key uint64) *heat { return p.state().heats.find(heatHash(key, "m")) }

// A key of one chat is not split, however many calls the chat has at once.
func TestSessionKeysAreNotSplit(t *testing.T) {
	p, f := new(Prefix), newFixture("", even(8))
	for range 40 {
		if d := p.Pick(keyed(0, 7), f.Snapshot); d.Reason == "split" {
			t.Fatal("split")
		}
	}
	if p.heatOf(7) != nil {
		t.Error("its calls are counted")
	}
}

// Few calls stay at home, and leave no trace when they are over.
func TestColdKey(t *testing.T) {
	p, f, leases := hot(8, 4)
	home := f.At(f.Owner(7)).ID
	for _, l := range leases[1:] {
		if l.Endpoint().ID != home {
			t.Errorf("at %s, home is %s", l.Endpoint().ID, home)
		}
	}
	h := p.heatOf(7)
	if n := h.inflight.Load(); n != 4 || h.split() {
		t.Errorf("%d in flight, split %v", n, h.split())
	}
	for _, l := range leases {
		l.Release()
		l.Release()
	}
	if n := h.inflight.Load(); n != 0 {
		t.Errorf("%d in flight", n)
	}
}

// A chat's turns go where its first went, while that is usable and within its
// bound; the one that finds it full moves the chat for good.
func TestChatsStay(t *testing.T) {
	p, f, leases := hot(8, 64)
	for chat, l := range leases[1:] {
		l.Release()
		d := p.Pick(later(7, uint64(chat+1)), f.Snapshot)
		if got := d.Lease.Endpoint(); chat >= 5 && got != l.Endpoint() {
			t.Errorf("chat %d moved from %s to %s", chat+1, l.Endpoint().ID, got.ID)
		}
		leases[chat+1] = d.Lease
	}
	const chat = 60
	place := leases[chat].Endpoint()
	leases[chat].Release()
	at := int(place.ID[0] - 'a')
	var filler []*routing.Lease
	for f.Load(at) < 30 {
		filler = append(filler, f.Acquire(at))
	}
	moved := p.Pick(later(7, chat), f.Snapshot)
	if moved.Lease.Endpoint() == place || moved.Reason != "split" {
		t.Fatalf("chat stays at its full endpoint; reason %q", moved.Reason)
	}
	moved.Lease.Release()
	for _, l := range filler {
		l.Release()
	}
	if d := p.Pick(later(7, chat), f.Snapshot); d.Lease.Endpoint() != moved.Lease.Endpoint() {
		t.Error("chat went back, away from its cache")
	}
}

// A retry leaves the endpoint that failed, and the chat stays where it went.
func TestChatAfterRetry(t *testing.T) {
	p, f, leases := hot(8, 64)
	const chat = 40
	was := leases[chat].Endpoint()
	leases[chat].Release()
	req := later(7, chat)
	req.Tried = []string{was.ID}
	second := p.Pick(req, f.Snapshot).Lease
	if second.Endpoint() == was {
		t.Fatal("the endpoint that was tried is tried again")
	}
	second.Release()
	if d := p.Pick(later(7, chat), f.Snapshot); d.Lease.Endpoint() != second.Endpoint() {
		t.Error("chat went back")
	}
}

// A chat whose endpoint has gone is placed anew; the others stay.
func TestChatsSurviveChanges(t *testing.T) {
	p, f, leases := hot(8, 64)
	var rest []*routing.Endpoint
	for i := 1; i < 8; i++ {
		rest = append(rest, f.endpoint(f.At(i).ID, 1))
	}
	next := routing.New("m", append(rest, f.endpoint("z", 1)), nil, f.Snapshot)
	for chat := 10; chat <= 64; chat++ {
		was := leases[chat].Endpoint().ID
		leases[chat].Release()
		switch d := p.Pick(later(7, uint64(chat)), next); {
		case was == "a" && (d.Lease == nil || id(d) == "a"):
			t.Errorf("chat %d of a gone endpoint goes to %s", chat, id(d))
		case was != "a" && id(d) != was:
			t.Errorf("chat %d moved from %s to %s", chat, was, id(d))
		}
	}
}

// Equal loads of other models on the endpoints count against the bound too,
// and the key of another model is another key.
func TestModelsApart(t *testing.T) {
	p, f, _ := hot(8, 64)
	other := routing.New("other", []*routing.Endpoint{f.endpoint("a", 1), f.endpoint("b", 1)}, nil, nil)
	d := p.Pick(keyed(7, 1), other)
	if h := p.state().heats.find(heatHash(7, "other")); h == nil || h == p.heatOf(7) || h.inflight.Load() != 1 {
		t.Error("two models share the heat of a key")
	}
	d.Lease.Release()
}

// Without a session key calls are placed one by one.
func TestSharedKeyWithoutSessions(t *testing.T) {
	p, f := new(Prefix), newFixture("", even(4))
	for range 64 {
		if d := p.Pick(keyed(7, 0), f.Snapshot); d.Lease == nil {
			t.Fatal("no pick")
		}
	}
	for i := range 4 {
		if f.Load(i) < 13 || f.Load(i) > 20 {
			t.Errorf("load %d of a mean of 16", f.Load(i))
		}
	}
}

// Heavier endpoints hold more of a split key.
func TestSplitByWeight(t *testing.T) {
	p, f := new(Prefix), newFixture("", []int{1, 1, 2, 4})
	for i := range 160 {
		p.Pick(keyed(7, uint64(i+1)), f.Snapshot)
	}
	for i, want := range []int{20, 20, 40, 80} {
		if got := f.Load(i); got < want*8/10 || got > want*13/10 {
			t.Errorf("load %d of endpoint %d, want about %d", got, i, want)
		}
	}
}

func TestHeat(t *testing.T) {
	type step struct {
		at    time.Duration
		widen int
		want  int
	}
	for name, steps := range map[string][]step{
		"never split":      {{0, 0, 0}, {time.Hour, 0, 0}},
		"peak is kept":     {{0, 3, 3}, {time.Second, 8, 8}, {2 * time.Second, 2, 8}, {29 * time.Second, 0, 8}},
		"for a window":     {{0, 8, 8}, {31 * time.Second, 3, 8}, {59 * time.Second, 2, 8}, {61 * time.Second, 2, 3}, {91 * time.Second, 0, 2}},
		"then it narrows":  {{0, 8, 8}, {59 * time.Second, 0, 8}, {60 * time.Second, 0, 1}},
		"and is forgotten": {{0, 8, 8}, {30 * time.Minute, 0, 1}, {31 * time.Minute, 0, 0}, {40 * time.Minute, 5, 5}},
		"very wide":        {{0, 1 << 20, 1<<16 - 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var h heat
			for _, s := range steps {
				if s.widen > 0 {
					h.widen(s.widen, s.at)
				}
				if got := h.width(s.at); got != s.want {
					t.Errorf("at %v: width %d, want %d", s.at, got, s.want)
				}
			}
		})
	}
}

// The table of keys is as large as it is; busy and split keys keep their
// places.
func TestHeatsAreBounded(t *testing.T) {
	heats, now := new(heats), time.Duration(0)
	clock := func() time.Duration { return now }
	same := func(i int) uint64 { return uint64(i+1) * heatSets } // all in one set
	for i := range 3 {
		if heats.get(same(i), clock) == nil {
			t.Fatal("no room in an empty table")
		}
	}
	busy, hot := heats.find(same(0)), heats.find(same(1))
	busy.inflight.Add(1)
	hot.widen(5, now)
	for i := range 1000 {
		if heats.get(same(10+i), clock) == nil {
			t.Fatal("no room among cold keys")
		}
	}
	if heats.find(same(0)) != busy || heats.find(same(1)) != hot {
		t.Error("a busy or split key lost its place")
	}
	for i := range 2 {
		heats.get(same(2000+i), clock).inflight.Add(1)
	}
	if heats.get(same(3000), clock) != nil {
		t.Error("room in a set full of busy keys")
	}
	now = time.Hour
	if h := heats.get(same(3000), clock); h != hot || h.split() {
		t.Error("the key that was split long ago does not make room, or leaves its width")
	}
}

func TestChats(t *testing.T) {
	c := new(chats)
	same := func(i int) uint64 { return uint64(i+1)<<chatTagShift | uint64(i)<<20 | 5 } // all in one set
	now := 5 * time.Hour
	for i := range 4 {
		c.put(same(2*i), uint32(100+i), now+time.Duration(i)*time.Minute)
	}
	for i := range 4 {
		if e, ok := c.find(same(2*i), now+4*time.Minute); !ok || e != uint32(100+i) {
			t.Errorf("chat %d: %d, %v", i, e, ok)
		}
	}
	if _, ok := c.find(same(77), now); ok {
		t.Error("a chat that was never there")
	}
	now += 5 * time.Minute
	c.put(same(0), 500, now) // moves, and is fresh again
	c.put(same(20), 600, now)
	if _, ok := c.find(same(2), now); ok {
		t.Error("the chat that was idle longest kept its place")
	}
	for i, want := range map[int]uint32{0: 500, 20: 600, 4: 102, 6: 103} {
		if e, ok := c.find(same(i), now); !ok || e != want {
			t.Errorf("chat %d: %d, %v; want %d", i, e, ok, want)
		}
	}
	if _, ok := c.find(same(20), now+chatIdle+chatTick); ok {
		t.Error("an idle chat is remembered")
	}
	if _, ok := c.find(0, 0); ok {
		t.Error("an empty place is a chat")
	}
}
