package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxKeys is how many distinct keys are told apart.
const maxKeys = 4096

// A keySet counts distinct keys up to a cap, in fixed memory and without a
// lock: an open-addressed table at most half full.
type keySet struct {
	count    prometheus.Gauge
	overflow prometheus.Counter
	n        atomic.Int64
	slots    [2 * maxKeys]atomic.Uint64
}

func (s *keySet) add(hash uint64) {
	if hash == 0 { // marks an empty slot
		hash = 1
	}
	for i := hash; ; i++ {
		slot := &s.slots[i%uint64(len(s.slots))]
		switch have := slot.Load(); {
		case have == hash:
			return
		case have != 0:
			continue
		}
		if s.n.Load() >= maxKeys {
			return
		}
		if slot.CompareAndSwap(0, hash) {
			// Increments, since what is set could overtake what is more.
			n := s.n.Add(1)
			if n <= maxKeys {
				s.count.Inc()
			}
			if n == maxKeys {
				s.overflow.Inc()
			}
			return
		}
		i-- // somebody took the slot: see whether with the same key
	}
}
