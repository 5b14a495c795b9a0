package ring

import (
	"fmt"
	"testing"
)

func BenchmarkOwner(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := New(fleet(1, n), nil)
			ks := keys(1 << 16)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				r.Owner(ks[i&(1<<16-1)])
				i++
			}
		})
	}
}

func BenchmarkWalk(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		for _, steps := range []int{1, 3} {
			b.Run(fmt.Sprintf("%d/%d", n, steps), func(b *testing.B) {
				r := New(fleet(1, n), nil)
				ks := keys(1 << 16)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					w := r.Walk(ks[i&(1<<16-1)])
					for range steps {
						w.Next()
					}
					i++
				}
			})
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		nodes := fleet(1, n)
		b.Run(fmt.Sprintf("scratch/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				New(nodes, nil)
			}
		})
		prev := New(nodes, nil)
		other := with(without(nodes, n/2), fleet(2, 1)...)
		b.Run(fmt.Sprintf("replace-one/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				New(other, prev)
			}
		})
	}
}
