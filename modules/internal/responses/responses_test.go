package responses

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestStore(t *testing.T) {
	s := NewStore()
	now := time.Now()
	s.now = func() time.Time { return now }
	a, b := Place{"m", "http://a:1"}, Place{"m", "http://b:1"}
	s.Bind("resp_1", a)
	s.Bind("resp_2", b)
	for id, want := range map[string]Place{"resp_1": a, "resp_2": b} {
		if got, ok := s.Find(id); !ok || got != want {
			t.Errorf("%s is at %v %v, want %v", id, got, ok, want)
		}
	}
	s.Bind("resp_1", b) // told twice, by events of one stream
	if got, _ := s.Find("resp_1"); got != b {
		t.Errorf("resp_1 is at %v, want %v", got, b)
	}
	now = now.Add(TTL + time.Second)
	if got, ok := s.Find("resp_1"); ok {
		t.Errorf("resp_1 is still at %v", got)
	}
	for _, id := range []string{"", strings.Repeat("x", MaxID+1)} {
		s.Bind(id, a)
		if got, ok := s.Find(id); ok {
			t.Errorf("an id of %d bytes is at %v", len(id), got)
		}
	}
}

// Memory is bounded, and it is the oldest that are forgotten.
func TestBounded(t *testing.T) {
	s := NewStore()
	const n = 2 * shards * perShard
	for i := range n {
		s.Bind(strconv.Itoa(i), Place{})
	}
	held := 0
	for i := range s.shards {
		held += len(s.shards[i].known)
	}
	if held > shards*perShard {
		t.Errorf("%d answers are held, %d have room", held, shards*perShard)
	}
	if _, ok := s.Find(strconv.Itoa(n - 1)); !ok {
		t.Error("the latest is forgotten")
	}
	if _, ok := s.Find("0"); ok {
		t.Error("the oldest is remembered")
	}
}
