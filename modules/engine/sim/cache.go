package sim

import "slices"

// A cache is the memory of an engine: a fixed number of blocks. A block is
// private to a sequence (its tokens are not computed, or do not fill it),
// shared and in use, or shared and idle. Idle blocks go, least recently used
// first, when room is needed. Its owner guards it.
type cache struct {
	capacity int
	shared   map[uint64]*block
	idle     blockList
	inUse    int // shared blocks that sequences hold
	private  int
	promised int // blocks that running sequences may still come to need
}

type block struct {
	hash       uint64
	refs       int
	forgotten  bool // not found any more, and gone when its last user leaves
	prev, next *block
}

// A holding is what one sequence has of a cache.
type holding struct {
	shared   []*block // from the first token on
	private  int
	promised int
}

func newCache(capacity int) *cache {
	c := &cache{capacity: capacity, shared: make(map[uint64]*block)}
	c.idle.init()
	return c
}

// take lets a sequence in, if there is room for it. It will need total blocks,
// now of them at once; those in hashes that the cache knows, as far as they go
// without a gap and up to limit, it shares.
func (c *cache) take(h *holding, hashes []uint64, limit, now, total int) bool {
	hits, idle := 0, 0
	for hits < min(limit, len(hashes)) {
		b := c.shared[hashes[hits]]
		if b == nil {
			break
		}
		if b.refs == 0 {
			idle++
		}
		hits++
	}
	if c.inUse+idle+c.private+c.promised+total-hits > c.capacity {
		return false
	}
	h.shared = make([]*block, 0, len(hashes)+total-now)
	for _, hash := range hashes[:hits] {
		h.shared = append(h.shared, c.use(c.shared[hash]))
	}
	h.private, h.promised = now-hits, total-now
	c.private += h.private
	c.promised += h.promised
	c.evict()
	return true
}

// grow gives a sequence one of the blocks it was promised.
func (c *cache) grow(h *holding) {
	h.promised--
	c.promised--
	h.private++
	c.private++
	c.evict()
}

// publish shares the private blocks of a sequence whose tokens are computed and
// fill them; hashes are all its full blocks.
func (c *cache) publish(h *holding, hashes []uint64) {
	for _, hash := range hashes[len(h.shared):] {
		h.private--
		c.private--
		// Another sequence may have computed the same block meanwhile: one
		// of the two copies goes.
		b := c.shared[hash]
		if b == nil {
			b = &block{hash: hash, refs: 1}
			c.shared[hash] = b
			c.inUse++
		} else {
			c.use(b)
		}
		h.shared = append(h.shared, b)
	}
}

// release takes everything back. The last blocks become idle first: what
// follows a block is of no use without it, and should go before it.
func (c *cache) release(h *holding) {
	for _, b := range slices.Backward(h.shared) {
		if b.refs--; b.refs > 0 {
			continue
		}
		c.inUse--
		if !b.forgotten {
			c.idle.push(b)
		}
	}
	c.private -= h.private
	c.promised -= h.promised
	*h = holding{}
}

// clear forgets every block. Those in use stay with their users.
func (c *cache) clear() {
	for _, b := range c.shared {
		b.forgotten = true
	}
	clear(c.shared)
	c.idle.init()
}

// used returns how many blocks sequences hold.
func (c *cache) used() int { return c.inUse + c.private }

func (c *cache) use(b *block) *block {
	if b.refs++; b.refs == 1 {
		c.idle.remove(b)
		c.inUse++
	}
	return b
}

func (c *cache) evict() {
	for c.inUse+c.private+c.idle.len > c.capacity {
		b := c.idle.root.next
		c.idle.remove(b)
		delete(c.shared, b.hash)
	}
}

// A blockList is a ring of blocks, the least recently used first. It links the
// blocks themselves: container/list would allocate for each move.
type blockList struct {
	root block
	len  int
}

func (l *blockList) init() {
	l.root.prev, l.root.next = &l.root, &l.root
	l.len = 0
}

func (l *blockList) push(b *block) {
	b.prev, b.next = l.root.prev, &l.root
	b.prev.next, l.root.prev = b, b
	l.len++
}

func (l *blockList) remove(b *block) {
	b.prev.next, b.next.prev = b.next, b.prev
	b.prev, b.next = nil, nil
	l.len--
}
