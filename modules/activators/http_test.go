package activators

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// load provisions and starts a module, and cleans it up with the test.
func load[M interface {
	caddy.Provisioner
	caddy.CleanerUpper
	routing.Starter
}](t *testing.T, m M) M {
	t.Helper()
	if err := m.Provision(caddy.Context{Context: context.Background()}); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unload(t, m) })
	return m
}

func unload(t *testing.T, m caddy.CleanerUpper) {
	t.Helper()
	if err := m.Cleanup(); err != nil {
		t.Error(err)
	}
}

// wait is for what happens at once in a bubble.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantState(t *testing.T, w routing.Watcher, phase routing.Phase, message string) {
	t.Helper()
	if s, _ := w.State(); s.Phase != phase || !strings.Contains(s.Message, message) {
		t.Errorf("it is %s: %q; want %s: %q", s.Phase, s.Message, phase, message)
	}
}

func activate(t *testing.T, a routing.Activator) {
	t.Helper()
	if err := a.Activate(t.Context(), "m"); err != nil {
		t.Errorf("it is not woken: %v", err)
	}
}

func TestWakes(t *testing.T) {
	t.Setenv("BOX_KEY", "secret")
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		h := b.http()
		h.StartRequest.Headers = map[string]string{"authorization": "Bearer {env.BOX_KEY}"}
		h.StartRequest.Body = `{"model": {"key": "{env.BOX_KEY}"}}`
		load(t, h)
		wait(0)
		b.probed()
		_, changed := h.State()
		activate(t, h)
		wait(0)
		if want := `POST /start Bearer secret {"model": {"key": "secret"}}`; b.requests() != want {
			t.Errorf("it was asked %q, want %q", b.requests(), want)
		}
		wantState(t, h, routing.Asleep, "connection refused")
		if s, _ := h.State(); s.Substage != "starting" {
			t.Errorf("it is %+v", s)
		}
		<-changed
		wait(10 * time.Second)
		if p := b.probed(); len(p) < 10 || len(p) > 20 || p[2]-p[1] > 400*time.Millisecond {
			t.Errorf("while it wakes it is probed at %v", p)
		}
		_, changed = h.State()
		b.set(func() { b.up = true })
		<-changed
		wantState(t, h, routing.Serving, "")

		b.probed()
		wait(time.Minute)
		if p := b.probed(); len(p) < 5 || len(p) > 7 {
			t.Errorf("while it is awake it is probed at %v", p)
		}
		activate(t, h) // of one that is awake does nothing
		if n := strings.Count(b.requests(), "/start"); n != 1 {
			t.Errorf("it was started %d times", n)
		}
	})
}

// Calls that come and leave have it started once, as long as there is hope.
func TestCallsComeAndLeave(t *testing.T) {
	for name, slow := range map[string]time.Duration{"at once": 0, "slowly": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBox()
				b.slowStart = slow
				h := load(t, b.http())
				wait(0)
				for range 200 { // 5 s less a bit, together
					ctx, leave := context.WithTimeout(t.Context(), 15*time.Millisecond)
					if err := h.Activate(ctx, "m"); err != nil && ctx.Err() == nil {
						t.Errorf("it is not woken: %v", err)
					}
					<-ctx.Done()
					leave()
					wait(9 * time.Millisecond)
				}
				if got := b.requests(); got != "POST /start" {
					t.Errorf("it was asked %q", got)
				}
				wait(startTime)
				activate(t, h) // it did not wake
				if got := b.requests(); got != "POST /start\nPOST /start" {
					t.Errorf("later it was asked %q", got)
				}
			})
		})
	}
}

// One that is answered by nobody is given up when no call comes back.
func TestStartIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.slowStart = time.Hour
		h := load(t, b.http())
		wait(0)
		for range 2 {
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			if err := h.Activate(ctx, "m"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v", err)
			}
			leave()
			wait(startTime - time.Second)
		}
		h.engine.set(func() {
			if h.engine.asking == nil {
				t.Error("it is given up with calls that come back")
			}
		})
		wait(2 * time.Second)
		h.engine.set(func() {
			if h.engine.asking != nil {
				t.Error("it goes on")
			}
		})
	})
}

func TestStartIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.start = 409
		h := load(t, b.http())
		wait(0)
		err := h.Activate(t.Context(), "m")
		if err == nil || err.Error() != "the start request was answered with 409" {
			t.Errorf("the error is %v", err)
		}
		wantState(t, h, routing.Asleep, "")
		b.set(func() { b.start = 200; b.starter = func() { b.up = true } })
		activate(t, h)
		wait(time.Second)
		wantState(t, h, routing.Serving, "")
	})
}

func TestNoticesWhoFallsAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.up = true
		h := load(t, b.http())
		wait(time.Second)

		b.set(func() { b.health = 503 })
		wait(11 * time.Second) // two probes
		b.set(func() { b.health = 200 })
		wait(11 * time.Second)
		wantState(t, h, routing.Serving, "")

		b.set(func() { b.health = 503 })
		wait(12 * time.Second)
		wantState(t, h, routing.Asleep, "503")
		b.set(func() { b.health = 200 }) // somebody else wakes it
		wait(11 * time.Second)
		wantState(t, h, routing.Serving, "")

		b.set(func() { b.up = false })
		wait(10 * time.Second)
		wantState(t, h, routing.Asleep, "connection refused")
	})
}

// A call that finds no connection has the model asked at once.
func TestCallIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		up     bool
		health int
		phase  routing.Phase
		starts string
	}{
		"it has gone": {phase: routing.Asleep, starts: "POST /start"},
		"it loads":    {up: true, health: 503, phase: routing.Asleep, starts: "POST /start"},
		"it is back":  {up: true, health: 200, phase: routing.Serving},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBox()
				b.up = true
				h := load(t, b.http())
				wait(time.Second)
				wantState(t, h, routing.Serving, "")
				b.probed()
				b.set(func() {
					b.up, b.health = tt.up, tt.health
					h.Refused()
					h.Refused() // as many calls as there are
					if s, _ := h.State(); s.Phase != routing.Asleep || s.Substage != "probing" {
						t.Errorf("before it has answered it is %+v", s)
					}
				})
				activate(t, h)
				wait(0)
				wantState(t, h, tt.phase, "")
				if got := b.requests(); got != tt.starts {
					t.Errorf("it was asked %q, want %q", got, tt.starts)
				}
				h.Refused() // of one that sleeps is no news
				wait(0)
				wantState(t, h, tt.phase, "")
			})
		})
	}
}

// A reload forgets nothing, and its options hold; if it fails those before do.
func TestReloadOfHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.up = true
		one := load(t, b.http())
		wait(time.Second)
		done := one.Use("m", false)

		failing := b.http()
		failing.IdleTimeout = new(caddy.Duration(time.Second))
		load(t, failing)
		wantState(t, failing, routing.Serving, "")
		unload(t, failing)

		two := b.http()
		two.IdleTimeout = new(caddy.Duration(30 * time.Second))
		two.StopRequest.URL += "?two"
		b.set(func() { b.up = false })
		load(t, two)
		wantState(t, two, routing.Serving, "") // known from before
		b.set(func() { b.up = true })
		unload(t, one)
		wait(20 * time.Minute)
		if got := b.requests(); got != "" {
			t.Errorf("with a call under way it was asked %q", got)
		}
		done()
		wait(time.Minute)
		if got := b.requests(); got != "POST /stop?two" {
			t.Errorf("it was asked %q", got)
		}
		unload(t, two)
		b.probed()
		wait(time.Hour)
		if p := b.probed(); len(p) > 0 {
			t.Errorf("it is probed at %v when no configuration has it", p)
		}
	})
}

// A reload that fails does not have it started once more.
func TestFailedReloadWhileItWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		one := load(t, b.http())
		activate(t, one)
		wait(time.Minute)
		failing := b.http()
		failing.StartRequest.URL += "?other"
		load(t, failing)
		activate(t, failing)
		unload(t, failing)
		activate(t, one)
		if got, want := b.requests(), "POST /start\nPOST /start?other"; got != want {
			t.Errorf("it was asked %q, want %q", got, want)
		}
	})
}

// One that does not wake by the old start request may do so by the new.
func TestReloadChangesTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		one := load(t, b.http())
		activate(t, one)
		wait(time.Second)
		same := load(t, b.http())
		if s, _ := same.State(); s.Substage != "starting" {
			t.Errorf("with the same request it is %+v", s)
		}
		unload(t, one)
		other := b.http()
		other.StartRequest.URL += "?other"
		load(t, other)
		unload(t, same)
		if s, _ := other.State(); s.Phase != routing.Asleep || s.Substage != "" {
			t.Errorf("with another it is %+v", s)
		}
		b.set(func() { b.starter = func() { b.up = true } })
		activate(t, other)
		wait(time.Second)
		wantState(t, other, routing.Serving, "")
		if got, want := b.requests(), "POST /start\nPOST /start?other"; got != want {
			t.Errorf("it was asked %q, want %q", got, want)
		}
	})
}

func TestValidateAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		h := b.http()
		if err := h.Provision(caddy.Context{Context: context.Background()}); err != nil {
			t.Fatal(err)
		}
		wait(time.Hour)
		unload(t, h)
		unload(t, h) // Caddy may do so twice
		if len(b.probed()) > 0 {
			t.Error("it is probed")
		}
	})
}
