package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// check fails the test if what c counts is not what c holds.
func check(t *testing.T, c *cache, live []*holding) {
	t.Helper()
	idle := 0
	for b := c.idle.root.next; b != &c.idle.root; b = b.next {
		if idle++; b.refs != 0 || b.forgotten || c.shared[b.hash] != b {
			t.Fatalf("idle block %+v", b)
		}
	}
	used := map[*block]int{}
	private, promised := 0, 0
	for _, h := range live {
		private += h.private
		promised += h.promised
		for _, b := range h.shared {
			used[b]++
		}
	}
	for b, refs := range used {
		if b.refs != refs {
			t.Fatalf("a block has %d users and counts %d", refs, b.refs)
		}
	}
	if idle != c.idle.len || len(used) != c.inUse || private != c.private || promised != c.promised {
		t.Fatalf("counts %d idle, %d in use, %d private, %d promised; has %d, %d, %d, %d",
			c.idle.len, c.inUse, c.private, c.promised, idle, len(used), private, promised)
	}
	if idle+c.inUse+c.private > c.capacity || c.inUse+c.private+c.promised > c.capacity {
		t.Fatalf("%d idle, %d in use, %d private and %d promised blocks in a cache of %d", idle, c.inUse, c.private, c.promised, c.capacity)
	}
}

// Sequences that come, grow and go in any order, and a cache that is emptied
// under them, leave nothing behind.
func TestCacheKeepsCount(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := newCache(40)
		type user struct {
			holding
			prompt, answer []uint64
			published      bool
		}
		var users []*user
		live := func() (all []*holding) {
			for _, u := range users {
				all = append(all, &u.holding)
			}
			return all
		}
		for range 2000 {
			switch n := r.IntN(10); {
			case n < 4:
				u := &user{}
				first := r.Uint64N(4) // few beginnings, so that there are hits
				for i := range 1 + r.Uint64N(12) {
					u.prompt = append(u.prompt, mix(first+i<<8))
				}
				for i := range r.Uint64N(5) {
					u.answer = append(u.answer, mix(first+i<<16+r.Uint64N(2)<<32))
				}
				now := len(u.prompt)
				if c.take(&u.holding, u.prompt, now-1, now, now+len(u.answer)) {
					users = append(users, u)
				}
			case n < 7 && len(users) > 0:
				u := users[r.IntN(len(users))]
				if !u.published {
					c.publish(&u.holding, u.prompt)
					u.published = true
				} else if u.promised > 0 {
					c.grow(&u.holding)
				}
			case n < 9 && len(users) > 0:
				i := r.IntN(len(users))
				u := users[i]
				if u.published {
					c.publish(&u.holding, append(u.prompt, u.answer[:u.private]...))
				}
				c.release(&u.holding)
				users = slices.Delete(users, i, i+1)
			case r.IntN(20) == 0:
				c.clear()
			}
			check(t, c, live())
		}
		for _, u := range users {
			c.release(&u.holding)
		}
		users = nil
		check(t, c, nil)
		if c.used() != 0 {
			t.Fatalf("%d blocks in use in the end", c.used())
		}
	}
}

// put takes a prompt through c and returns how many of its blocks were there.
func put(t *testing.T, c *cache, prompt ...uint64) int {
	t.Helper()
	var h holding
	if !c.take(&h, prompt, len(prompt), len(prompt), len(prompt)) {
		t.Fatal("no room")
	}
	hits := len(h.shared)
	c.publish(&h, prompt)
	c.release(&h)
	return hits
}

func TestCacheEvictsLeastRecentlyUsed(t *testing.T) {
	c := newCache(6)
	put(t, c, 1, 2)
	put(t, c, 3, 4)
	put(t, c, 5, 6)
	if hits := put(t, c, 1, 2); hits != 2 { // now 3 and 4 are the oldest
		t.Fatalf("%d hits of 2", hits)
	}
	put(t, c, 7, 8)
	for _, tt := range []struct {
		prompt []uint64
		want   int
	}{{[]uint64{1, 2}, 2}, {[]uint64{5, 6}, 2}, {[]uint64{7, 8}, 2}} {
		if hits := put(t, c, tt.prompt...); hits != tt.want {
			t.Errorf("%v: %d hits, want %d", tt.prompt, hits, tt.want)
		}
	}
	if hits := put(t, c, 3, 4); hits != 0 {
		t.Errorf("the least recently used blocks are still there: %d hits", hits)
	}
}

// Of one prompt the last blocks go first: the first ones are of use without
// them.
func TestCacheEvictsTailFirst(t *testing.T) {
	c := newCache(6)
	put(t, c, 1, 2, 3, 4)
	put(t, c, 5, 6, 7)
	if hits := put(t, c, 1, 2, 3, 4); hits != 3 {
		t.Errorf("%d hits, want 3", hits)
	}
}

func TestCacheKeepsWhatIsInUse(t *testing.T) {
	c := newCache(4)
	var h holding
	if !c.take(&h, []uint64{1, 2}, 1, 2, 3) {
		t.Fatal("no room in an empty cache")
	}
	c.publish(&h, []uint64{1, 2})
	var other holding
	if c.take(&other, []uint64{7, 8}, 1, 2, 2) {
		t.Error("let in a sequence for whom a promise would have to be broken")
	}
	if !c.take(&other, []uint64{1, 2, 9}, 2, 3, 3) {
		t.Error("no room for a sequence that needs one block of its own")
	}
	c.grow(&h)
	check(t, c, []*holding{&h, &other})
	c.release(&h)
	c.release(&other)
	check(t, c, nil)
}
