package strategies

import (
	"sync/atomic"
	"time"
)

const (
	// chatIdle is how long a chat is remembered after its last turn.
	chatIdle = 30 * time.Minute

	chatSets = 16384
	chatWays = 4

	// A place is tag<<44 | endpoint<<12 | time: 20 bits of the chat's hash,
	// the endpoint's tag, and the time of the last turn in units of 8 s
	// modulo 2^12, which is 9 hours.
	chatTick     = 8 * time.Second
	chatTimeBits = 12
	chatTimeMask = 1<<chatTimeBits - 1
	chatTagShift = chatTimeBits + 32
)

// chats remembers at which endpoint each chat of a split key is. It forgets:
// its memory is fixed, and where too many chats share a set the one that was
// idle longest makes room. A chat that is forgotten, or mistaken for another
// (1 in 250,000), is placed anew, which costs it one prefill.
type chats [chatSets][chatWays]atomic.Uint64

func chatTag(hash uint64) uint64 {
	return (hash>>chatTagShift | 1) << chatTagShift // never 0, as an empty place is
}

func chatTime(now time.Duration) uint64 { return uint64(now/chatTick) & chatTimeMask }

// idle returns the time since the last turn of a remembered chat.
func idleSince(place uint64, now time.Duration) time.Duration {
	return time.Duration((chatTime(now)-place)&chatTimeMask) * chatTick
}

// find returns the tag of the endpoint where a chat is.
func (t *chats) find(hash uint64, now time.Duration) (endpoint uint32, ok bool) {
	set := &t[hash%chatSets]
	for i := range set {
		p := set[i].Load()
		if p>>chatTagShift<<chatTagShift == chatTag(hash) {
			return uint32(p >> chatTimeBits), idleSince(p, now) <= chatIdle
		}
	}
	return 0, false
}

// put remembers where a chat is. Of two that write to one place at once, one
// is forgotten.
func (t *chats) put(hash uint64, endpoint uint32, now time.Duration) {
	set := &t[hash%chatSets]
	is := chatTag(hash) | uint64(endpoint)<<chatTimeBits | chatTime(now)
	victim, longest := 0, time.Duration(-1)
	for i := range set {
		p := set[i].Load()
		if p == is {
			return
		}
		if p>>chatTagShift<<chatTagShift == chatTag(hash) {
			victim = i
			break
		}
		idle := idleSince(p, now)
		if p == 0 {
			idle = 1 << 62
		}
		if idle > longest {
			victim, longest = i, idle
		}
	}
	set[victim].Store(is)
}
