package routing

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/ledger"
)

func endpoints(l *ledger.Ledger, ids ...string) []*Endpoint {
	es := make([]*Endpoint, len(ids))
	for i, id := range ids {
		es[i] = NewEndpoint(l, nil, "m", Spec{ID: id, Scheme: "http", Address: id + ":80"})
	}
	return es
}

func ids(s *Snapshot) (ids []string) {
	for i := range s.Len() {
		ids = append(ids, s.At(i).ID)
	}
	return ids
}

func newLedger() *ledger.Ledger { return ledger.New(ledger.Config{}) }

// The order of discovery decides nothing.
func TestOrder(t *testing.T) {
	l := newLedger()
	es := endpoints(l, "c", "a", "d", "b", "a")
	es[4].Labels = map[string]string{"second": "yes"}
	a := New("m", es, nil, nil)
	if got := ids(a); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Fatalf("endpoints %q", got)
	}
	if a.At(0).Labels != nil {
		t.Error("of two with one ID, the second counts")
	}
	if got := fmt.Sprint(es[0].ID, es[1].ID); got != "ca" {
		t.Error("New changed the caller's slice")
	}
	slices.Reverse(es)
	b := New("m", es, nil, nil)
	for hash := range uint64(1000) {
		if a.Owner(hash) != b.Owner(hash) {
			t.Fatal("the order of endpoints changes the owner of a key")
		}
	}
}

func TestSpec(t *testing.T) {
	e := NewEndpoint(newLedger(), nil, "m", Spec{Scheme: "https", Address: "eu.example.com:443", Path: "/base"})
	if e.ID != "https://eu.example.com:443/base" || e.Target() != "eu.example.com:443/base" || e.Weight != 1 {
		t.Errorf("endpoint %+v", e.Spec)
	}
	spec := Spec{ID: "x", Labels: map[string]string{"a": "b"}}
	same := Spec{ID: "x", Labels: map[string]string{"a": "b"}}
	if !spec.Equal(&same) {
		t.Error("equal specs differ")
	}
	same.Labels["a"] = "c"
	if spec.Equal(&same) {
		t.Error("specs with other labels are equal")
	}
}

func TestLease(t *testing.T) {
	l := newLedger()
	es := endpoints(l, "a", "b")
	s := New("m", es, endpoints(l, "svc")[0], nil)
	other := NewEndpoint(l, nil, "other", es[0].Spec)

	lease := s.TryAcquire(0, 0)
	if lease == nil || lease.Endpoint() != es[0] || lease.IsService() {
		t.Fatalf("lease %+v", lease)
	}
	if s.TryAcquire(0, 0) != nil || s.TryAcquire(0, 2) != nil {
		t.Error("a lease although the load is not what was seen")
	}
	var mine atomic.Int64
	lease.Count(&mine)
	check := func(load, inflight, reserved, counted int) {
		t.Helper()
		e := es[0]
		if e.Load() != load || s.Load(0) != load || other.Load() != load || e.Inflight() != inflight ||
			e.Reserved() != reserved || int(mine.Load()) != counted || other.Inflight() != 0 {
			t.Errorf("load %d, %d in flight, %d reserved, %d counted; want %d, %d, %d, %d",
				e.Load(), e.Inflight(), e.Reserved(), mine.Load(), load, inflight, reserved, counted)
		}
	}
	check(1, 0, 1, 1)
	lease.Activate()
	check(1, 1, 0, 1)
	lease.Renew()
	lease.Release()
	lease.Release()
	check(0, 0, 0, 0)

	svc := s.AcquireService()
	if !svc.IsService() || svc.Endpoint() != s.Service() || s.Service().Load() != 1 {
		t.Error("the service is not counted")
	}
	svc.Release()
	if s.Service().Load() != 0 {
		t.Error("the service is not released")
	}
	if New("m", es, nil, nil).AcquireService() != nil {
		t.Error("a lease on a service that is not there")
	}

	var none *Lease
	none.Activate()
	none.Renew()
	none.Release()
	if none.Endpoint() != nil || none.IsService() {
		t.Error("a nil lease has an endpoint")
	}
}

func TestTotals(t *testing.T) {
	l := newLedger()
	es := endpoints(l, "a", "b", "c")
	es[1].Weight = 5
	s := New("m", es, nil, nil)
	for i, n := range []int{1, 2, 4} {
		for range n {
			s.Acquire(i)
		}
	}
	for _, tt := range []struct {
		tried           []string
		load, n, weight int
	}{
		{nil, 7, 3, 7},
		{[]string{"b"}, 5, 2, 2},
		{[]string{"b", "x"}, 5, 2, 2},
		{[]string{"a", "b", "c"}, 0, 0, 0},
	} {
		req := &Request{Tried: tt.tried}
		load, n := s.Total(req)
		if w := s.TotalWeight(req); load != tt.load || n != tt.n || w != tt.weight {
			t.Errorf("tried %q: load %d, %d usable, weight %d", tt.tried, load, n, w)
		}
	}
}

// What can be kept from the snapshot before is kept.
func TestNextSnapshot(t *testing.T) {
	l := newLedger()
	first := New("m", endpoints(l, "a", "b", "c"), nil, nil)
	if first.Turn() != 0 || first.Turn() != 1 {
		t.Error("turns do not start at 0")
	}
	same := New("m", endpoints(l, "c", "b", "a"), nil, first)
	if same.pool != first.pool {
		t.Error("the same endpoints make another pool")
	}
	if same.Turn() != 2 {
		t.Error("turns begin anew")
	}
	unused := New("m", endpoints(l, "a", "b"), nil, first)
	if unused.pool.ring.Load() != nil {
		t.Error("a ring that nobody asked for")
	}
	first.Owner(1)
	next := New("m", endpoints(l, "a", "c", "d"), nil, first)
	if next.pool.ring.Load() == nil || next.pool.prev != nil {
		t.Error("the first request has to wait for the ring")
	}
	heavier := endpoints(l, "a", "c", "d")
	heavier[0].Weight = 3
	if New("m", heavier, nil, next).pool == next.pool {
		t.Error("other weights make the same pool")
	}
	for hash := range uint64(1000) {
		if next.Owner(hash) != New("m", endpoints(l, "a", "c", "d"), nil, nil).Owner(hash) {
			t.Fatal("the ring depends on the one before")
		}
	}
	// The ring outlives a snapshot that did not use it.
	third := New("m", endpoints(l, "a"), nil, New("m", endpoints(l, "a", "b"), nil, unused))
	if third.Owner(7) != 0 {
		t.Error("no owner")
	}
	if empty := New("m", nil, nil, first); empty.Owner(7) != -1 || empty.Len() != 0 {
		t.Error("nothing has an owner")
	}
}

func TestTagged(t *testing.T) {
	s := New("m", endpoints(newLedger(), "a", "b", "c"), nil, nil)
	for i := range s.Len() {
		if got := s.Tagged(s.At(i).Tag()); got != i {
			t.Errorf("endpoint %d is found as %d", i, got)
		}
	}
	if got := s.Tagged(endpoints(newLedger(), "z")[0].Tag()); got != -1 {
		t.Errorf("a stranger is found as %d", got)
	}
}

func TestTurns(t *testing.T) {
	for _, tt := range []struct {
		weights []int
		want    string
	}{
		{[]int{1}, "aaa"},
		{[]int{3, 3, 3}, "abcabca"},
		{[]int{2, 1}, "abaaba"},
		{[]int{1, 2}, "babbab"},
		{[]int{30, 10}, "aabaaaba"},
		{[]int{1, 1, 4}, "ccabccccab"},
	} {
		es := endpoints(newLedger(), "a", "b", "c")[:len(tt.weights)]
		for i, w := range tt.weights {
			es[i].Weight = w
		}
		s, got := New("m", es, nil, nil), ""
		for range len(tt.want) {
			got += s.At(s.InTurn(s.Turn())).ID
		}
		if got != tt.want {
			t.Errorf("weights %v: turns %s, want %s", tt.weights, got, tt.want)
		}
	}
}

func TestSuccessors(t *testing.T) {
	s := New("m", endpoints(newLedger(), "a", "b", "c", "d"), nil, nil)
	for hash := range uint64(100) {
		var order []int
		walk := s.Successors(hash)
		for i, ok := walk.Next(); ok; i, ok = walk.Next() {
			order = append(order, i)
		}
		if len(order) != 4 || order[0] != s.Owner(hash) {
			t.Errorf("key %d: successors %v, owner %d", hash, order, s.Owner(hash))
		}
	}
}

func TestFixedKeys(t *testing.T) {
	session := Key{Hash: 5, Source: SourceSessionHeader}
	k := FixedKeys{Session: session, LaterTurn: true}
	if k.SessionKey() != session || k.PrefixKey() != (Key{Hash: 5, Source: SourceSessionFallback}) || !k.Continues() {
		t.Errorf("keys %v, %v", k.SessionKey(), k.PrefixKey())
	}
	k.Prefix = Key{Hash: 6, Source: SourceCanonical}
	if k.PrefixKey() != k.Prefix || (FixedKeys{}).PrefixKey().Usable() {
		t.Error("wrong prefix key")
	}
}

func TestDryRun(t *testing.T) {
	s := New("m", endpoints(newLedger(), "a"), endpoints(newLedger(), "svc")[0], nil)
	d := s.DryRun()
	if s.IsDryRun() || !d.IsDryRun() {
		t.Error("which one is dry?")
	}
	s.Turn()
	for _, lease := range []*Lease{d.Acquire(0), d.TryAcquire(0, 77), d.AcquireService()} {
		if lease.Endpoint() == nil {
			t.Error("no endpoint")
		}
		lease.Activate()
		lease.Renew()
		lease.Release()
	}
	if d.Turn() != 1 || s.Turn() != 1 || s.Load(0) != 0 || s.Service().Load() != 0 {
		t.Error("a dry run counts")
	}
}

func TestKeyNames(t *testing.T) {
	for i := range NumKeySources {
		s := KeySource(i)
		if got, ok := ParseKeySource(s.String()); !ok || got != s || s.String() == "" {
			t.Errorf("source %d is called %q, which is %d", i, s, got)
		}
	}
	if _, ok := ParseKeySource("no-such-source"); ok || KeySource(200).String() != "none" {
		t.Error("a source that is none")
	}
	if k := (Key{Hash: 0xabc, Source: SourceCanonical}); k.String() != "0000000000000abc" {
		t.Errorf("key %s", k)
	}
	if k := (Key{Hash: 0xabc}); k.Usable() || k.String() != "" {
		t.Errorf("key %s", k)
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 1000} {
		l := newLedger()
		names := make([]string, n+1)
		for i := range names {
			names[i] = fmt.Sprintf("pod-%06d", i*7919%100000)
		}
		es := endpoints(l, names...)
		prev := New("m", es[1:], nil, nil)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				New("m", es[:n], nil, prev)
			}
		})
		prev.Owner(1)
		b.Run(fmt.Sprint(n, "/ring"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				New("m", es[:n], nil, prev)
			}
		})
	}
}
