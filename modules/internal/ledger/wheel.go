package ledger

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// maxSlots bounds the memory of a wheel to 32 KiB.
const maxSlots = 4096

// A layout divides time into buckets.
type layout struct {
	width time.Duration // of a bucket
	keep  uint64        // buckets that count besides the current one
}

func newLayout(width, ttl time.Duration) layout {
	ttl = max(ttl, time.Millisecond)
	width = min(max(width, time.Millisecond, (ttl+maxSlots-2)/(maxSlots-1)), ttl)
	return layout{width: width, keep: uint64((ttl + width - 1) / width)}
}

// epoch returns the number of the bucket at a time.
func (l *layout) epoch(now time.Duration) uint64 {
	return uint64(now) / uint64(l.width) & epochMask
}

// A wheel counts tickets by the bucket of time that took them. A slot holds
// the bucket's number, its epoch, and its count in one word, so that a bucket
// is dropped whole and a ticket knows from the epoch whether it was in it.
// There are more slots than the layout keeps buckets, a power of two.
type wheel []atomic.Uint64

const (
	countBits = 24 // tickets in a bucket: more than fit in memory
	countMask = 1<<countBits - 1
	epochMask = 1<<(64-countBits) - 1 // 17 years of buckets of 1 ms before the sign turns
)

func newWheel(l layout) wheel {
	if l.width == 0 {
		return nil
	}
	return make(wheel, 1<<bits.Len64(l.keep))
}

// since returns epoch minus old, which may be negative.
func since(epoch, old uint64) int64 {
	return int64(epoch-old) << countBits >> countBits
}

func (w wheel) slot(epoch uint64) *atomic.Uint64 { return &w[epoch&uint64(len(w)-1)] }

// add counts a ticket in a bucket. If the bucket's slot still held another
// that is past its time, that one is dropped, and add returns its count. ok
// is false if the epoch itself is past.
func (w wheel) add(epoch uint64) (dropped int, ok bool) {
	slot := w.slot(epoch)
	for {
		v := slot.Load()
		switch d := since(epoch, v>>countBits); {
		case d == 0:
			if slot.CompareAndSwap(v, v+1) {
				return 0, true
			}
		case d > 0:
			if slot.CompareAndSwap(v, epoch<<countBits|1) {
				return int(v & countMask), true
			}
		default:
			return 0, false
		}
	}
}

// remove takes a ticket out of the bucket that took it. It reports false if
// the bucket was dropped.
func (w wheel) remove(epoch uint64) bool {
	slot := w.slot(epoch)
	for {
		v := slot.Load()
		if v>>countBits != epoch || v&countMask == 0 {
			return false
		}
		if slot.CompareAndSwap(v, v-1) {
			return true
		}
	}
}

// sweep drops the buckets of a layout that are past their time and returns
// their count.
func (w wheel) sweep(l layout, now time.Duration) (dropped int) {
	if len(w) == 0 {
		return 0
	}
	epoch := l.epoch(now)
	for i := range w {
		for {
			v := w[i].Load()
			if v&countMask == 0 || since(epoch, v>>countBits) <= int64(l.keep) {
				break
			}
			// The empty slot takes the present epoch: whoever still
			// means to log in the old one must look at the clock again.
			if w[i].CompareAndSwap(v, epoch<<countBits) {
				dropped += int(v & countMask)
				break
			}
		}
	}
	return dropped
}

// sum returns the number of tickets in all buckets.
func (w wheel) sum() (n int) {
	for i := range w {
		n += int(w[i].Load() & countMask)
	}
	return n
}
