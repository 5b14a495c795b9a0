package ledger

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
)

func BenchmarkTicket(b *testing.B) {
	e := New(Config{}).Entry("m", "id", "target")
	b.ReportAllocs()
	for b.Loop() {
		var t Ticket
		e.TryReserve(&t, e.Counter().Load())
		t.Activate()
		t.Release()
	}
}

// All goroutines on one endpoint, the worst case.
func BenchmarkTicketShared(b *testing.B) {
	e := New(Config{}).Entry("m", "id", "target")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			var t Ticket
			e.Reserve(&t)
			t.Activate()
			t.Release()
		}
	})
}

// Each goroutine on an endpoint of its own.
func BenchmarkTicketApart(b *testing.B) {
	l := New(Config{})
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		e := l.Entry("m", fmt.Sprint(n.Add(1)), "target")
		for pb.Next() {
			var t Ticket
			e.Reserve(&t)
			t.Activate()
			t.Release()
		}
	})
}

func BenchmarkRenew(b *testing.B) {
	e := New(Config{}).Entry("m", "id", "target")
	var t Ticket
	e.Reserve(&t)
	t.Activate()
	b.ReportAllocs()
	for b.Loop() {
		t.Renew()
	}
}

// Reading the load of 1,000 endpoints, as strategies do, and what it would
// cost if the counters lay side by side in an array, padded or dense.
func BenchmarkScan(b *testing.B) {
	l := New(Config{})
	entries := make([]*Entry, 1000)
	var counters, padded, dense []*atomic.Int64
	pad := make([]total, len(entries))
	den := make([]atomic.Int64, len(entries))
	for i := range entries {
		entries[i] = l.Entry("m", fmt.Sprint(i), "target")
		counters = append(counters, entries[i].Counter())
		padded = append(padded, &pad[i].n)
		dense = append(dense, &den[i])
	}
	for name, cs := range map[string][]*atomic.Int64{"counters": counters, "padded-array": padded, "dense-array": dense} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				scan(cs)
			}
		})
	}
}

//go:noinline
func scan(cs []*atomic.Int64) (sum int64) {
	for _, c := range cs {
		sum += c.Load()
	}
	return sum
}

func BenchmarkSweep(b *testing.B) {
	l := New(Config{})
	entries := make([]*Entry, 1000)
	for i := range entries {
		entries[i] = l.Entry("m", fmt.Sprint(i), "target")
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Sweep()
	}
	runtime.KeepAlive(entries)
}
