package strategies

import (
	"sync/atomic"
	"time"
)

const (
	// window is the span over which the greatest width of a key is kept: a
	// key is as wide as the present window or the one before asked for, so
	// it narrows 30 to 60 s after the need has gone.
	window = 30 * time.Second

	// afterglow is how long, in windows, a key that was split goes on
	// remembering where its chats are: as long as a chat may be idle.
	afterglow = int64(chatIdle / window)

	heatSets = 4096
	heatWays = 4
)

// A heat says how hot one prefix key is: how many of its calls are in flight
// and over how many endpoints they are split.
type heat struct {
	tag      atomic.Uint64
	inflight atomic.Int64

	// widths is 0 for a key that was never split, else
	// window<<32 | greatest width in it<<16 | greatest width in the one before.
	widths atomic.Uint64

	_ uint64 // half a cache line
}

// heats keeps the heat of the keys that have calls in flight and of those that
// are or were split. Its memory is fixed, whatever keys clients make up: a key
// takes the place of one that is cold, and goes without if there is none.
type heats [heatSets][heatWays]heat

// find returns the heat of a key, nil if there is none. The hash is not 0.
func (t *heats) find(hash uint64) *heat {
	set := &t[hash%heatSets]
	for i := range set {
		if set[i].tag.Load() == hash {
			return &set[i]
		}
	}
	return nil
}

// get returns the heat of a key, nil if there is no room for it. A key that
// takes a place just as another that had it makes a call sees that call as its
// own until it ends; no count is lost, because each call counts down what it
// counted up.
func (t *heats) get(hash uint64, now func() time.Duration) *heat {
	if h := t.find(hash); h != nil {
		return h
	}
	set := &t[hash%heatSets]
	for i := range set { // one that nobody had
		if set[i].tag.Load() == 0 && set[i].tag.CompareAndSwap(0, hash) {
			return &set[i]
		}
	}
	for i := range set { // one that is cold; each key begins at another
		h := &set[(uint64(i)+hash>>32)%heatWays]
		if h.inflight.Load() != 0 || h.width(now()) != 0 {
			continue
		}
		if h.tag.CompareAndSwap(h.tag.Load(), hash) {
			h.widths.Store(0)
			return h
		}
	}
	return nil
}

// split reports whether the key was ever split: whether chats may be
// remembered under it.
func (h *heat) split() bool { return h.widths.Load() != 0 }

// width returns over how many endpoints the key is split: 0 if it was never,
// or not for long, and 1 if it is not any more.
func (h *heat) width(now time.Duration) int {
	v := h.widths.Load()
	if v == 0 {
		return 0
	}
	switch age := windowOf(now) - int64(v>>32); {
	case age <= 0:
		return int(max(v>>16&0xffff, v&0xffff))
	case age == 1:
		return int(v >> 16 & 0xffff)
	case age <= afterglow:
		return 1
	}
	return 0
}

// widen records that the key wants to be split over width endpoints.
func (h *heat) widen(width int, now time.Duration) {
	w := uint64(min(width, 0xffff))
	at := windowOf(now)
	for {
		v := h.widths.Load()
		var is uint64
		switch age := at - int64(v>>32); {
		case v == 0 || age > 1:
			is = uint64(at)<<32 | w<<16
		case age == 1:
			is = uint64(at)<<32 | w<<16 | v>>16&0xffff
		case v>>16&0xffff >= w:
			return
		default:
			is = v&^0xffff0000 | w<<16
		}
		if h.widths.CompareAndSwap(v, is) {
			return
		}
	}
}

// windowOf returns the number of the window at a time, from 1 on.
func windowOf(now time.Duration) int64 { return int64(now/window) + 1 }
