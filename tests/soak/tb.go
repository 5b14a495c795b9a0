package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// tb lets the harness of the tests run outside of one.
type tb struct {
	testing.TB // of what is not below, nothing is called

	ctx    context.Context
	failed atomic.Bool

	mu       sync.Mutex
	cleanups []func()
}

func newTB(ctx context.Context) *tb { return &tb{ctx: ctx} }

func (t *tb) Helper()                  {}
func (t *tb) Context() context.Context { return t.ctx }
func (t *tb) Failed() bool             { return t.failed.Load() }
func (t *tb) Logf(string, ...any)      {} // the ends of logs of what was killed

func (t *tb) Errorf(format string, args ...any) {
	t.failed.Store(true)
	say(format, args...)
}

func (t *tb) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }

// Fatalf ends the run: without what failed there is nothing to see.
func (t *tb) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	t.cleanUp()
	os.Exit(1)
}

func (t *tb) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// passing returns a tb for what is closed by who makes it: its clean-ups, of
// which there would be more and more, are not kept.
func (t *tb) passing() *tb { return &tb{ctx: t.ctx} }

func (t *tb) TempDir() string {
	dir, err := os.MkdirTemp("", "soak-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (t *tb) cleanUp() {
	t.mu.Lock()
	all := t.cleanups
	t.cleanups = nil
	t.mu.Unlock()
	for _, f := range slices.Backward(all) {
		f()
	}
}
