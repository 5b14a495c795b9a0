package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// a bench is a queue whose model the test wakes and gives room to.
type bench struct {
	*Queue
	t       *testing.T
	target  Target
	room    atomic.Int64
	asked   atomic.Int64 // how often the model was asked to wake
	refuse  atomic.Bool  // to wake it
	waiting atomic.Int64 // as the activator was told last
	trying  atomic.Int64

	calls sync.WaitGroup
	mu    sync.Mutex
	order []int
	errs  map[int]error
}

func newBench(t *testing.T, phase routing.Phase) *bench {
	b := &bench{Queue: NewQueue("m"), t: t, errs: make(map[int]error)}
	b.target = Target{
		Max: 100, Timeout: time.Minute, ColdStart: time.Minute,
		State: routing.State{Phase: phase}, Activator: b, Metrics: metrics.Acquire("m"),
	}
	b.Set(new(b.target))
	return b
}

func (b *bench) Activate(ctx context.Context, _ string) error {
	b.asked.Add(1)
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	if b.refuse.Load() {
		return errors.New("no power")
	}
	return nil
}

func (b *bench) Waiting(_ string, n int) { b.waiting.Store(int64(n)) }

// set changes what is known of the model.
func (b *bench) set(change func(*Target)) {
	change(&b.target)
	b.Set(new(b.target))
}

func (b *bench) phase(p routing.Phase) { b.set(func(t *Target) { t.State.Phase = p }) }

// try takes a place if there is room.
func (b *bench) try() Try {
	if b.trying.Add(1) != 1 {
		b.t.Error("two calls of the queue try at once")
	}
	defer b.trying.Add(-1)
	if b.room.Load() <= 0 {
		return Full
	}
	b.room.Add(-1)
	return Went
}

// call makes call i, and returns when it waits or has its turn.
func (b *bench) call(ctx context.Context, i int, again bool) {
	place := New
	if again {
		place = Again
	}
	b.calls.Go(func() {
		err := b.Enter(ctx, place, func() Try {
			did := b.try()
			if did == Went {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.order = append(b.order, i)
			}
			return did
		})
		if err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.errs[i] = err
		}
	})
	synctest.Wait()
}

// free makes room for n more calls, and returns when they have gone.
func (b *bench) free(n int64) {
	b.room.Add(n)
	b.Poke()
	synctest.Wait()
}

func (b *bench) went(want ...int) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.order, want) {
		b.t.Errorf("calls %v had their turn, want %v", b.order, want)
	}
}

// end waits for all calls, and checks that nothing is left.
func (b *bench) end() {
	b.t.Helper()
	b.calls.Wait()
	time.Sleep(time.Second) // what wakes the model may be at it still
	synctest.Wait()
	if b.Len() != 0 || b.waiting.Load() != 0 || AnyWaits() {
		b.t.Errorf("%d calls wait, the activator knows of %d, any: %v", b.Len(), b.waiting.Load(), AnyWaits())
	}
	b.target.Metrics.Release()
}

// Q3: calls that find no room wait, and go in the order in which they came.
func TestFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Serving)
		b.room.Store(2)
		for i := range 8 {
			b.call(t.Context(), i, false)
		}
		b.went(0, 1)
		b.free(1)
		b.went(0, 1, 2)
		b.call(t.Context(), 8, false)
		b.call(t.Context(), 9, true) // one that is tried again goes first
		b.free(2)
		b.went(0, 1, 2, 9, 3)
		b.free(4)
		b.went(0, 1, 2, 9, 3, 4, 5, 6, 7)
		b.call(t.Context(), 10, false)
		b.free(2)
		b.end()
		b.went(0, 1, 2, 9, 3, 4, 5, 6, 7, 8, 10)
		if b.asked.Load() != 0 {
			t.Error("a model that serves is woken")
		}
	})
}

// A call with the turn that leaves passes it on.
func TestLeavers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Serving)
		ctx, cancel := context.WithCancel(t.Context())
		b.call(ctx, 0, false)
		b.call(t.Context(), 1, false)
		b.call(ctx, 2, false)
		b.call(t.Context(), 3, false)
		b.room.Store(2)
		cancel() // at the same moment as the turn
		b.free(0)
		b.end()
		b.went(1, 3)
		for _, i := range []int{0, 2} {
			if !errors.Is(b.errs[i], context.Canceled) {
				t.Errorf("call %d: %v", i, b.errs[i])
			}
		}
	})
}

// One that has to go where there is no room does not hold up the others.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Serving)
		var free atomic.Bool
		for range 2 {
			b.calls.Go(func() {
				if err := b.Enter(t.Context(), New, func() Try {
					if !free.Load() {
						return Held
					}
					return b.try()
				}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		b.call(t.Context(), 2, false)
		b.call(t.Context(), 3, false)
		b.free(1)
		b.went(2)
		b.free(1)
		b.went(2, 3)
		if b.Len() != 2 {
			t.Errorf("%d wait", b.Len())
		}
		free.Store(true)
		b.free(2)
		b.end()
	})
}

// A call that had its place elsewhere gets one.
func TestMovedCallsHaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Serving)
		b.set(func(t *Target) { t.Max = 1 })
		b.call(t.Context(), 0, false)
		b.calls.Go(func() {
			if err := b.Enter(t.Context(), Moved, b.try); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		b.free(2)
		b.end()
		b.went(0)
	})
}

func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Serving)
		b.set(func(t *Target) { t.Max = 2 })
		for i := range 3 {
			b.call(t.Context(), i, false)
		}
		if !errors.Is(b.errs[2], ErrFull) || b.Len() != 2 {
			t.Errorf("the third: %v; %d wait", b.errs[2], b.Len())
		}
		b.free(2)
		b.end()
	})
}

// The longer of timeout and cold start bounds a wait.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Serving)
		b.set(func(t *Target) { t.Timeout, t.ColdStart = time.Second, 3*time.Second })
		begun := time.Now()
		b.call(t.Context(), 0, false)
		b.calls.Wait()
		took := time.Since(begun)
		b.end()
		if !errors.Is(b.errs[0], ErrTimeout) || took != 3*time.Second {
			t.Errorf("%v after %s", b.errs[0], took)
		}
	})
}

// Q3: a model is woken once, whatever the number of calls that wait for it,
// and they go together.
func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Asleep)
		b.room.Store(200)
		b.set(func(t *Target) { t.Max = 200 })
		for i := range 100 {
			b.call(t.Context(), i, false)
		}
		b.went()
		if b.asked.Load() != 1 || b.waiting.Load() != 100 {
			t.Errorf("asked %d times for %d calls", b.asked.Load(), b.waiting.Load())
		}
		time.Sleep(10 * time.Second)
		b.phase(routing.Serving)
		b.end()
		if len(b.order) != 100 || !slices.IsSorted(b.order) {
			t.Errorf("calls went as %v", b.order)
		}
		// Asleep again: what it took then is a guess at what it takes now.
		b.phase(routing.Asleep)
		b.call(t.Context(), 100, false)
		time.Sleep(4 * time.Second)
		if d := b.RetryAfter(); d != 6*time.Second {
			t.Errorf("Retry-After is %s", d)
		}
		b.phase(routing.Serving)
		b.end()
		if b.asked.Load() != 2 {
			t.Errorf("asked %d times", b.asked.Load())
		}
	})
}

// What ends the waiting of all, and what it is told to the calls.
func TestEnds(t *testing.T) {
	failed := routing.State{Phase: routing.Failed, Message: "no GPU"}
	for name, tt := range map[string]struct {
		happens func(*bench)
		want    error
		message string
	}{
		"the model is gone":   {func(b *bench) { b.Set(nil) }, ErrGone, ""},
		"the process ends":    {func(b *bench) { b.Close() }, ErrGone, ""},
		"it fails":            {func(b *bench) { b.set(func(t *Target) { t.State = failed }) }, nil, "no GPU"},
		"it stalls":           {func(b *bench) { b.phase(routing.Stalled) }, nil, ""},
		"it is parked":        {func(b *bench) { b.phase(routing.Parked) }, nil, ""},
		"it takes too long":   {func(*bench) { time.Sleep(61 * time.Second) }, nil, "it was not ready within 1m0s"},
		"nobody can wake it":  {func(*bench) {}, nil, "no power"},
		"nobody, thrice over": {func(*bench) {}, nil, "no power"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, routing.Asleep)
				b.set(func(t *Target) { t.Timeout = 2 * time.Minute })
				b.refuse.Store(tt.message == "no power")
				asked := int64(1)
				if name == "nobody, thrice over" {
					b.set(func(t *Target) { t.Backoff = Backoff{Retries: 2, Initial: time.Second, Max: 3 * time.Second} })
					asked = 3
				}
				for i := range 3 {
					b.calls.Go(func() {
						err := b.Enter(t.Context(), New, b.try)
						b.mu.Lock()
						defer b.mu.Unlock()
						b.errs[i] = err
					})
				}
				synctest.Wait()
				tt.happens(b)
				b.end()
				for i, err := range b.errs {
					e, isState := errors.AsType[*StateError](err)
					if tt.want != nil && !errors.Is(err, tt.want) || tt.want == nil && (!isState || e.State.Message != tt.message) {
						t.Errorf("call %d: %v", i, err)
					}
				}
				if n := b.asked.Load(); n != asked {
					t.Errorf("asked %d times, want %d", n, asked)
				}
				if len(b.errs) != 3 {
					t.Errorf("%d calls ended", len(b.errs))
				}
			})
		})
	}
}

// A model that has failed is tried once more by the next call.
func TestFailedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Failed)
		b.room.Store(1)
		b.call(t.Context(), 0, false)
		time.Sleep(time.Second)
		b.phase(routing.Asleep) // somebody has noticed
		time.Sleep(30 * time.Second)
		b.phase(routing.Serving)
		b.end()
		b.went(0)

		b.phase(routing.Failed)
		begun := time.Now()
		b.call(t.Context(), 1, false)
		b.calls.Wait()
		took := time.Since(begun)
		b.end()
		if _, ok := errors.AsType[*StateError](b.errs[1]); !ok || took != failedFor+time.Millisecond {
			t.Errorf("%v after %s", b.errs[1], took)
		}
	})
}

// Calls that leave take the waking with them, and one that comes then begins
// another.
func TestNobodyWaitsAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Asleep)
		ctx, cancel := context.WithCancel(t.Context())
		b.call(ctx, 0, false)
		cancel()
		synctest.Wait()
		if b.waiting.Load() != 0 {
			t.Error("the activator still thinks that one waits")
		}
		b.room.Store(1)
		b.call(t.Context(), 1, false)
		b.phase(routing.Serving)
		b.end()
		b.went(1)
		if b.asked.Load() != 2 {
			t.Errorf("asked %d times", b.asked.Load())
		}
	})
}

// A reload brings another activator. It wakes the model, unless that wakes
// already.
func TestAnotherActivator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Asleep)
		b.call(t.Context(), 0, false)
		b.room.Store(1)
		time.Sleep(time.Second)
		b.set(func(t *Target) { t.State.Substage = "starting" })
		other := &bench{t: t}
		b.set(func(t *Target) { t.Activator = other })
		time.Sleep(time.Second)
		if b.asked.Load() != 1 || other.asked.Load() != 0 {
			t.Errorf("it was asked to wake %d times, and by the other %d", b.asked.Load(), other.asked.Load())
		}
		b.set(func(t *Target) { t.State.Substage = "" })
		time.Sleep(time.Second)
		b.set(func(t *Target) { t.State.Message = "not yet" })
		time.Sleep(time.Second)
		if b.asked.Load() != 1 || other.asked.Load() != 1 {
			t.Errorf("it was asked to wake %d times, and by the other %d", b.asked.Load(), other.asked.Load())
		}
		b.phase(routing.Serving)
		b.end()
	})
}

// A model that goes back to sleep while calls wait is woken again.
func TestFallsAsleepAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Asleep)
		b.room.Store(1)
		b.call(t.Context(), 0, false)
		time.Sleep(time.Second)
		b.set(func(t *Target) { t.State.Substage = "starting" })
		time.Sleep(time.Second)
		b.set(func(t *Target) { t.State.Substage = "" })
		time.Sleep(2 * time.Second)
		if n := b.asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
		b.phase(routing.Serving)
		b.end()
		b.went(0)
	})
}

// A retry is given its time, whatever the attempt before has come to.
func TestRetryAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Asleep)
		b.set(func(t *Target) {
			t.Backoff = Backoff{Retries: 3, Initial: 10 * time.Millisecond, Max: 20 * time.Millisecond}
		})
		b.room.Store(1)
		b.call(t.Context(), 0, false)
		time.Sleep(time.Second)
		b.phase(routing.Failed)
		time.Sleep(time.Second) // it is asked again, and goes on being said to have failed
		b.phase(routing.Asleep)
		time.Sleep(time.Second)
		b.phase(routing.Serving)
		b.end()
		b.went(0)
		if n := b.asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

// A waking that ends because its activator has left the configuration is not
// the end of the calls that wait: another takes over.
func TestAnotherActivatorTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Asleep)
		old := &leaver{gone: make(chan struct{})}
		b.set(func(t *Target) { t.Activator = old })
		b.room.Store(1)
		b.call(t.Context(), 0, false)
		b.set(func(t *Target) { t.Activator, t.State.Substage = b, "probing" })
		close(old.gone)
		time.Sleep(time.Second)
		if b.asked.Load() != 1 || b.Len() != 1 {
			t.Errorf("asked %d times; %d wait", b.asked.Load(), b.Len())
		}
		b.phase(routing.Serving)
		b.end()
		b.went(0)
	})
}

// leaver is an activator whose configuration ends.
type leaver struct{ gone chan struct{} }

func (l *leaver) Activate(context.Context, string) error {
	<-l.gone
	return errors.New("the model has left the configuration")
}

// Who waits for room only waits for as long as the queue allows; what a model
// that may sleep takes to wake plays no part.
func TestTimeoutWithoutActivator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Serving)
		b.set(func(t *Target) { t.Activator, t.Timeout = nil, 3*time.Second })
		begun := time.Now()
		b.call(t.Context(), 0, false)
		b.calls.Wait()
		if took := time.Since(begun); took != 3*time.Second || !errors.Is(b.errs[0], ErrTimeout) {
			t.Errorf("%v after %s", b.errs[0], took)
		}
		b.end()
	})
}

// What is told to the operator is more than what is told to clients, and the
// activator knows when to ask again.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Asleep)
		var problems []string
		b.set(func(t *Target) {
			t.Report = func(_ time.Duration, problem string) { problems = append(problems, problem) }
			t.State.Message = "GET http://10.0.0.1/helth answered 404"
		})
		b.call(t.Context(), 0, false)
		b.end()
		b.set(func(t *Target) { t.Activator = tired{} })
		b.call(t.Context(), 1, false)
		b.end()
		want := []string{"it was not ready within 1m0s: GET http://10.0.0.1/helth answered 404", "not yet"}
		if e, ok := errors.AsType[*StateError](b.errs[1]); !slices.Equal(problems, want) || !ok || e.State.RetryAfter != 7*time.Second {
			t.Errorf("%q, %v", problems, b.errs[1])
		}
	})
}

// tired is an activator that wants to be asked later.
type tired struct{}

func (tired) Activate(context.Context, string) error { return tired{} }
func (tired) Error() string                          { return "not yet" }
func (tired) RetryAfter() time.Duration              { return 7 * time.Second }

// slow is an activator that returns long after its model serves.
type slow struct{ err error }

func (s *slow) Activate(ctx context.Context, _ string) error {
	select {
	case <-time.After(10 * time.Second):
	case <-ctx.Done():
		s.err = ctx.Err()
	}
	return s.err
}

// What wakes a model is not cut off because it was quick, and is not forgotten
// since nobody waits any more.
func TestSlowActivator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newBench(t, routing.Asleep), new(slow)
		b.set(func(t *Target) { t.Activator = s })
		b.room.Store(1)
		b.call(t.Context(), 0, false)
		time.Sleep(9 * time.Second)
		b.phase(routing.Serving)
		b.end()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s.err != nil || b.woke != 10*time.Second {
			t.Errorf("%v; it took %s", s.err, b.woke)
		}
	})
}

// Q4: calls that wait go on as another configuration says.
func TestAnotherTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, routing.Asleep)
		b.call(t.Context(), 0, false)
		b.room.Store(1)
		b.set(func(t *Target) { t.Activator, t.State = nil, routing.State{} })
		b.end()
		b.went(0)
	})
}

func TestBackoff(t *testing.T) {
	b := Backoff{Retries: 9, Initial: time.Second, Max: 5 * time.Second}
	for retry, want := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 3: 5 * time.Second, 60: 5 * time.Second} {
		for range 100 {
			if d := b.wait(retry); d < want/2 || d > want*3/2 {
				t.Errorf("retry %d after %s, want about %s", retry, d, want)
			}
		}
	}
}
