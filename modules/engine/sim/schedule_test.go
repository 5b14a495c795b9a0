package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// text returns a prompt of n tokens, none of which other names have.
func text(name string, n int) []byte {
	return []byte(strings.Repeat(" "+name, n))
}

func (e *Engine) testSequence(name string, prompt, answer int) *sequence {
	return e.newSequence(e.models["sim"], text(name, prompt), "", answer)
}

func ignore(string) error { return nil }

func idle(t *testing.T, e *Engine) {
	t.Helper()
	if s := e.State(); s.Running != 0 || s.Waiting != 0 || s.UsedBlocks != 0 || e.prefilling {
		t.Errorf("something is left: %+v, prefilling %t", s, e.prefilling)
	}
	m := e.models["sim"]
	if m.running.Load() != 0 || m.waiting.Load() != 0 {
		t.Errorf("%d running, %d waiting", m.running.Load(), m.waiting.Load())
	}
}

// The time to the first token is what the cache does not save, behind the
// prompts that came before.
func TestTimeToFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.TTFT, cfg.PrefillRate, cfg.DecodeRate = 20*time.Millisecond, 1000, 100
		e := newTestEngine(t, cfg)
		ttft := func(s *sequence) (first time.Duration) {
			start := time.Now()
			if err := e.run(t.Context(), s, func(string) error {
				if first == 0 {
					first = time.Since(start)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			return first
		}
		if got, want := ttft(e.testSequence("a", 1000, 1)), 1020*time.Millisecond; got != want {
			t.Errorf("cold: %v, want %v", got, want)
		}
		// 62 of the 62.5 blocks are found.
		if got, want := ttft(e.testSequence("a", 1000, 1)), 28*time.Millisecond; got != want {
			t.Errorf("warm: %v, want %v", got, want)
		}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // an order of arrival
				got, want := ttft(e.testSequence(fmt.Sprint("b", i), 500, 1)), time.Duration(20+500*(i+1)-i)*time.Millisecond
				if got != want {
					t.Errorf("%d others before: %v, want %v", i, got, want)
				}
			})
		}
		wg.Wait()
		idle(t, e)
	})
}

func TestDecodeRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.TTFT, cfg.PrefillRate, cfg.DecodeRate, cfg.MaxNumSeqs = 0, 0, 100, 4
		e := newTestEngine(t, cfg)
		took := func() time.Duration {
			start := time.Now()
			if err := e.run(t.Context(), e.testSequence("a", 10, 101), ignore); err != nil {
				t.Error(err)
			}
			return time.Since(start).Round(time.Millisecond)
		}
		if got := took(); got != time.Second {
			t.Errorf("alone: %v", got)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				// 1 + 3/8, and a little less for those that see another one leave.
				if got := took(); got < 1365*time.Millisecond || got > 1375*time.Millisecond {
					t.Errorf("with three others: %v", got)
				}
			})
		}
		wg.Wait()
	})
}

func TestSequencesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.TTFT, cfg.PrefillRate, cfg.DecodeRate = 0, 0, 10
		cfg.MaxNumSeqs = 2
		e := newTestEngine(t, cfg)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if err := e.run(t.Context(), e.testSequence(fmt.Sprint("a", i), 32, 11), ignore); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if s := e.State(); s.Running != 2 || s.Waiting != 3 {
			t.Errorf("%d running, %d waiting; want 2 and 3", s.Running, s.Waiting)
		}
		start := time.Now()
		wg.Wait()
		if took := time.Since(start); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("three rounds of a second each took %v", took)
		}
		idle(t, e)
	})
}

// A sequence for whose blocks there is no room waits until there is, and those
// behind it wait with it.
func TestSequencesWaitForBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.TTFT, cfg.PrefillRate, cfg.DecodeRate = 0, 0, 10
		cfg.KVBlocks = 10
		e := newTestEngine(t, cfg)
		var wg sync.WaitGroup
		run := func(name string, prompt int) {
			wg.Go(func() {
				if err := e.run(t.Context(), e.testSequence(name, prompt, 16), ignore); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		run("a", 16*5)
		if used := e.State().UsedBlocks; used != 6 {
			t.Errorf("%d blocks in use, want 5 and the first one of the answer", used)
		}
		run("b", 16*4)
		run("c", 16)
		if s := e.State(); s.Running != 1 || s.Waiting != 2 {
			t.Errorf("%d running, %d waiting; want 1 and 2", s.Running, s.Waiting)
		}
		wg.Wait()
		idle(t, e)
	})
}

// Wherever a sequence is when its client leaves, it leaves too, at once, and
// the others go on.
func TestCancel(t *testing.T) {
	for name, wait := range map[string]time.Duration{
		"before it came": 0, "waiting": 500 * time.Millisecond, "computing the prompt": 1500 * time.Millisecond,
		"before the first token": 2010 * time.Millisecond, "answering": 2500 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.PrefillRate, cfg.DecodeRate = 1000, 100
				e := newTestEngine(t, cfg)
				var wg sync.WaitGroup
				run := func(ctx context.Context, name string, want error) {
					wg.Go(func() {
						if err := e.run(ctx, e.testSequence(name, 1000, 100), ignore); !errors.Is(err, want) {
							t.Errorf("%s: got %v, want %v", name, err, want)
						}
					})
				}
				run(t.Context(), "a", nil)
				synctest.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				if wait == 0 {
					cancel()
				}
				run(ctx, "b", context.Canceled)
				synctest.Wait()
				run(t.Context(), "c", nil)
				synctest.Wait()
				time.Sleep(wait)
				before := e.State()
				cancel()
				synctest.Wait()
				if after := e.State(); wait > 0 && before.Running+int64(before.Waiting)-1 != after.Running+int64(after.Waiting) {
					t.Errorf("it is still there: %+v, then %+v", before, after)
				}
				wg.Wait()
				idle(t, e)
			})
		})
	}
}

// A client whose connection fails under the answer is gone too.
func TestEmitFails(t *testing.T) {
	e := newTestEngine(t, unlimited())
	broken := errors.New("broken pipe")
	if err := e.run(t.Context(), e.testSequence("a", 100, 100), func(string) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	idle(t, e)
}

// Many clients at once, some of whom leave at any moment, leave nothing behind.
func TestConcurrent(t *testing.T) {
	cfg := unlimited()
	cfg.KVBlocks, cfg.MaxNumSeqs = 64, 3
	cfg.PrefillRate = 1e6
	e := newTestEngine(t, cfg)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			for range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(3) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(300))*time.Microsecond)
				}
				s := e.testSequence(string(rune('a'+r.IntN(4))), 1+r.IntN(400), 1+r.IntN(100))
				if err := e.run(ctx, s, ignore); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	idle(t, e)
	check(t, e.cache, nil)
}

// The next turn of a chat finds all full blocks of the turn before, its answer
// included.
func TestNextTurnFindsLast(t *testing.T) {
	e := newTestEngine(t, unlimited())
	r := rand.New(rand.NewPCG(3, 4))
	for chat := range 50 {
		messages := fmt.Sprintf(`{"role":"system","content":"You are assistant %d."}`, chat)
		last := 0
		for turn := range 6 {
			messages += fmt.Sprintf(`,{"role":"user","content":"Question %d: %s?"}`, turn, text("why", r.IntN(100)))
			q, err := parseRequest([]byte(`{"messages":[` + messages + `]}`))
			if err != nil {
				t.Fatal(err)
			}
			var p prompt
			if err := p.messages("messages", q["messages"]); err != nil {
				t.Fatal(err)
			}
			p.role("assistant")
			s := e.newSequence(e.models["sim"], p, "", 1+r.IntN(50))
			n := len(s.text)
			if err := e.run(t.Context(), s, ignore); err != nil {
				t.Fatal(err)
			}
			if want := last / s.blockSize * s.blockSize; s.cached != want {
				t.Fatalf("chat %d, turn %d: %d tokens found, want %d", chat, turn, s.cached, want)
			}
			last = s.tokens
			messages += fmt.Sprintf(`,{"role":"assistant","content":%q}`, s.text[n:])
		}
	}
	other := e.newSequence(e.models["sim"], text("why", 500), "", 1)
	salted := e.newSequence(e.models["sim"], text("why", 500), "salt", 1)
	for _, s := range []*sequence{other, salted} {
		if err := e.run(t.Context(), s, ignore); err != nil {
			t.Fatal(err)
		}
		if s.cached != 0 {
			t.Errorf("%d tokens found of another chat or salt", s.cached)
		}
	}
}

// Of a prompt that is there as a whole, the last token is computed all the same.
func TestLastTokenIsComputed(t *testing.T) {
	e := newTestEngine(t, unlimited())
	for _, tt := range []struct{ tokens, want int }{{160, 144}, {161, 160}, {159, 144}, {16, 0}, {17, 16}} {
		for range 2 {
			s := e.testSequence(fmt.Sprint("a", tt.tokens), tt.tokens, 1)
			if err := e.run(t.Context(), s, ignore); err != nil {
				t.Fatal(err)
			}
			if s.cached != 0 && s.cached != tt.want {
				t.Errorf("%d of %d tokens found, want %d", s.cached, tt.tokens, tt.want)
			}
		}
		hits := e.models["sim"].hits.Swap(0)
		if hits != uint64(tt.want) {
			t.Errorf("%d hits are counted of %d tokens, want %d", hits, tt.tokens, tt.want)
		}
	}
}
