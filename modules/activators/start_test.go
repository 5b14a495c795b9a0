package activators

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func TestStateIsFoundOut(t *testing.T) {
	for _, tt := range []struct {
		up      bool
		health  int
		slow    time.Duration
		after   time.Duration // the start, until it is known
		phase   routing.Phase
		message string
	}{
		{up: true, health: 200, phase: routing.Serving},
		{up: true, health: 204, phase: routing.Serving},
		{up: true, health: 200, slow: time.Second, after: time.Second, phase: routing.Serving},
		{up: true, health: 503, phase: routing.Asleep, message: "the ready request was answered with 503"},
		{up: true, health: 302, phase: routing.Asleep, message: "answered with 302"},
		{up: true, health: 200, slow: time.Minute, after: 2 * time.Second, phase: routing.Asleep, message: "no answer in time"},
		{up: false, phase: routing.Asleep, message: "connection refused"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBox()
			b.up, b.health, b.slow = tt.up, tt.health, tt.slow
			begun := time.Now()
			h := b.http()
			var before routing.State
			var changed <-chan struct{}
			b.set(func() { // it answers nothing meanwhile
				load(t, h)
				before, changed = h.State()
			})
			if before.Phase != routing.Asleep || before.Substage != "probing" {
				t.Errorf("before anything is known it is %+v", before)
			}
			<-changed
			if took := time.Since(begun); took != tt.after {
				t.Errorf("it is known after %s, want %s", took, tt.after)
			}
			wantState(t, h, tt.phase, tt.message)
			if s, _ := h.State(); s.Substage != "" {
				t.Errorf("when it is known it is %+v", s)
			}
			wait(time.Hour)
			if got := b.requests(); tt.phase == routing.Asleep && got != "" {
				t.Errorf("it was asked %q", got)
			}
		})
	}
}

// Whether a model has to be started is found out first.
func TestCallsAtTheStart(t *testing.T) {
	for name, tt := range map[string]struct {
		up        bool
		slow      time.Duration
		patience  time.Duration // of the calls
		err       error
		took      time.Duration
		substage  string // afterwards
		phase     routing.Phase
		requested string
	}{
		"it is awake":     {up: true, slow: time.Second, patience: time.Minute, took: time.Second, phase: routing.Serving},
		"it sleeps":       {patience: time.Minute, phase: routing.Asleep, substage: "starting", requested: "POST /start"},
		"it is silent":    {up: true, slow: time.Hour, patience: time.Minute, took: probeTimeout, phase: routing.Asleep, substage: "starting", requested: "POST /start"},
		"the calls leave": {up: true, slow: time.Hour, patience: time.Second, err: context.DeadlineExceeded, took: time.Second, phase: routing.Asleep, substage: "probing"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBox()
				b.up, b.slow = tt.up, tt.slow
				h := load(t, b.http())
				ctx, cancel := context.WithTimeout(t.Context(), tt.patience)
				defer cancel()
				begun := time.Now()
				if err := h.Activate(ctx, "m"); !errors.Is(err, tt.err) {
					t.Errorf("the error is %v, want %v", err, tt.err)
				}
				if took := time.Since(begun); took != tt.took {
					t.Errorf("it took %s, want %s", took, tt.took)
				}
				if s, _ := h.State(); s.Phase != tt.phase || s.Substage != tt.substage {
					t.Errorf("it is %+v", s)
				}
				wait(10 * time.Second)
				if got := b.requests(); got != tt.requested {
					t.Errorf("it was asked %q, want %q", got, tt.requested)
				}
				if s, _ := h.State(); tt.err != nil && s.Substage != "" {
					t.Errorf("with no call it is %+v", s)
				}
			})
		})
	}
}

// A reload meanwhile leaves nobody waiting.
func TestModelLeavesAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		b.up, b.slow = true, time.Hour
		h := load(t, b.http())
		failed := make(chan error)
		go func() { failed <- h.Activate(context.Background(), "m") }()
		wait(time.Second)
		unload(t, h)
		if err := <-failed; !errors.Is(err, errLeft) {
			t.Errorf("the error is %v", err)
		}
		if got := b.requests(); got != "" {
			t.Errorf("it was asked %q", got)
		}
	})
}
