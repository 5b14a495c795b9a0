package activators

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func TestIdleIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.up, b.dies = true, 3*time.Second
		b.starter = func() { b.up = true }
		h := b.http()
		h.IdleTimeout = new(caddy.Duration(time.Minute))
		load(t, h)
		wait(30 * time.Second)
		one, two := h.Use("m", false), h.Use("m", false)
		wait(time.Hour)
		one()
		wait(time.Hour)
		two()
		wait(59 * time.Second)
		wantState(t, h, routing.Serving, "")
		if got := b.requests(); got != "" {
			t.Errorf("it was asked %q", got)
		}
		wait(1500 * time.Millisecond)
		wantState(t, h, routing.Asleep, "being stopped")

		// It still answers, and is to be awake again.
		done := h.Use("m", false)
		activate(t, h)
		wait(time.Second)
		wantState(t, h, routing.Serving, "")
		if got, want := b.requests(), "POST /stop\nPOST /start"; got != want {
			t.Errorf("it was asked %q, want %q", got, want)
		}
		wait(time.Hour)
		wantState(t, h, routing.Serving, "")
		done()
		wait(2 * time.Minute)
		wantState(t, h, routing.Asleep, "connection refused")
	})
}

// A call that saw it awake just before, or comes just after, finds it awake.
func TestCallAtTheLastMoment(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, h *HTTP) (done func()){
		"it begins": func(_ *testing.T, h *HTTP) func() { return h.Use("m", false) },
		"it waits":  func(t *testing.T, h *HTTP) func() { activate(t, h); return h.Use("m", false) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBox()
				b.up = true
				h := b.http()
				h.IdleTimeout = new(caddy.Duration(time.Minute))
				load(t, h)
				wait(time.Minute + partingTime/2)
				wantState(t, h, routing.Asleep, "it is idle")
				done := use(t, h)
				wantState(t, h, routing.Serving, "")
				wait(time.Hour)
				wantState(t, h, routing.Serving, "")
				if got := b.requests(); got != "" {
					t.Errorf("it was asked %q", got)
				}
				done()
				wait(time.Minute + partingTime*3/2)
				if got := b.requests(); got != "POST /stop" {
					t.Errorf("it was asked %q", got)
				}
			})
		})
	}
}

// Calls that it was not told of keep it as well: they began before the reload.
func TestUnknownCallsKeepIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.up = true
		var inflight atomic.Int64
		inflight.Store(1)
		h := b.http()
		h.IdleTimeout = new(caddy.Duration(time.Minute))
		if err := h.Provision(caddy.Context{Context: context.Background()}); err != nil {
			t.Fatal(err)
		}
		h.Watches(func() int { return int(inflight.Load()) })
		if err := h.Start(); err != nil {
			t.Fatal(err)
		}
		defer unload(t, h)
		wait(10 * time.Minute)
		wantState(t, h, routing.Serving, "")
		inflight.Store(0)
		wait(50 * time.Second)
		if got := b.requests(); got != "" {
			t.Errorf("it was asked %q", got)
		}
		wait(2 * time.Minute)
		if got := b.requests(); got != "POST /stop" {
			t.Errorf("it was asked %q", got)
		}
	})
}

func TestActivateGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.up, b.dies = true, 20*time.Second
		h := b.http()
		h.IdleTimeout = new(caddy.Duration(time.Minute))
		load(t, h)
		wait(time.Minute + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.Activate(ctx, "m"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
	})
}

// One that does not stop serves on, and is told again after as long.
func TestDoesNotStop(t *testing.T) {
	for _, tt := range []struct {
		stop int
		dies time.Duration
	}{{500, 0}, {200, time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			b := newBox()
			b.up, b.stop, b.dies = true, tt.stop, tt.dies
			h := b.http()
			h.IdleTimeout = new(caddy.Duration(time.Minute))
			load(t, h)
			wait(100 * time.Second)
			wantState(t, h, routing.Serving, "")
			wait(70 * time.Second)
			if got := b.requests(); got != "POST /stop\nPOST /stop" {
				t.Errorf("it was asked %q", got)
			}
			wait(2 * time.Hour) // the timers
		})
	}
}

func TestNeverStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.up = true
		h := b.http()
		h.IdleTimeout = new(caddy.Duration)
		load(t, h)
		wait(24 * time.Hour)
		wantState(t, h, routing.Serving, "")
	})
}
