package budget

import (
	"sync"
	"testing"
	"time"
)

// T4: an outage takes no more than the share, and the floor always.
func TestBudget(t *testing.T) {
	var b Budget
	const share, floor = 0.2, 10
	retries := func(now time.Duration, n int) (done int) {
		for range n {
			if b.retry(now, share, floor) {
				done++
			}
		}
		return done
	}
	now := time.Minute
	if got := retries(now, 100); got != floor {
		t.Errorf("%d retries without attempts, want %d", got, floor)
	}
	for range 1000 {
		b.attempt(now)
	}
	if got := retries(now, 1000); got != 200-floor {
		t.Errorf("%d more retries of 1000 attempts, want %d", got, 200-floor)
	}
	if got := retries(now+Window-width, 100); got != 0 {
		t.Errorf("%d retries within the window, want none", got)
	}
	if got := retries(now+Window, 100); got != floor {
		t.Errorf("%d retries after the window, want %d", got, floor)
	}
	if b.retry(now+3*Window, 0, 0) {
		t.Error("a budget of nothing allows a retry")
	}
}

// Calls at the same time do not overdraw the budget by more than there are.
func TestConcurrent(t *testing.T) {
	var b Budget
	var mu sync.Mutex
	var wg sync.WaitGroup
	done := 0
	for range 16 {
		wg.Go(func() {
			for range 100 {
				if b.retry(time.Minute, 0, 10) {
					mu.Lock()
					done++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if done < 10 || done >= 10+16 {
		t.Errorf("%d retries at once, want 10 to 25", done)
	}
}

func BenchmarkAttempt(b *testing.B) {
	var budget Budget
	for b.Loop() {
		budget.Attempt()
	}
}
