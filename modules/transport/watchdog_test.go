package transport

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
)

const (
	testFirstByte = 30 * time.Second
	testGap       = 10 * time.Second
)

// watched is an attempt whose end is noted.
type watched struct {
	attempt
	cause error
	after time.Duration // since it began
}

// watchedAttempt is for a bubble of synctest: the watchdog runs in another
// goroutine of it.
func watchedAttempt(gap time.Duration) *watched {
	w := new(watched)
	w.model = &catalog.Model{Policy: &catalog.Policy{FirstByte: testFirstByte, Gap: gap}}
	w.began = time.Now()
	w.cancel = func(cause error) {
		if w.cause == nil {
			w.cause, w.after = cause, time.Since(w.began)
		}
	}
	return w
}

// S9: streams end where they stop, and nowhere else.
func TestWatchdog(t *testing.T) {
	// read waits for bytes that take d to come.
	read := func(w *watchdog, d time.Duration) {
		w.wait()
		time.Sleep(d)
		w.got()
	}
	for _, tt := range []struct {
		name  string
		gap   time.Duration
		do    func(w *watchdog)
		cause error
		after time.Duration
	}{
		{"no first byte", testGap, func(w *watchdog) { read(w, time.Hour) }, errNoFirstByte, testFirstByte},
		{"no head", testGap, func(*watchdog) { time.Sleep(time.Hour) }, errNoFirstByte, testFirstByte},
		{"comments are no first byte", testGap, func(w *watchdog) {
			for range 100 {
				read(w, time.Second)
			}
		}, errNoFirstByte, testFirstByte},
		{"first byte in time, then none", testGap, func(w *watchdog) {
			read(w, testFirstByte-1)
			w.flow()
			read(w, time.Hour)
		}, errGap, testFirstByte - 1 + testGap},
		{"many bytes, each in time, then none", testGap, func(w *watchdog) {
			w.flow()
			for range 100 {
				read(w, testGap-1)
			}
			read(w, time.Hour)
		}, errGap, 100*(testGap-1) + testGap},
		{"many bytes", testGap, func(w *watchdog) {
			w.flow()
			for range 1000 {
				read(w, testGap/3)
			}
			w.stop()
		}, nil, 0},
		{"a slow client", testGap, func(w *watchdog) {
			w.flow()
			for range 10 {
				read(w, time.Second)
				time.Sleep(25 * testGap) // nobody waits for the endpoint
			}
			w.stop()
		}, nil, 0},
		{"a slow client, then none", testGap, func(w *watchdog) {
			w.flow()
			time.Sleep(5*testGap/2 + 1)
			read(w, time.Hour)
		}, errGap, 5*testGap/2 + 1 + testGap},
		{"a slow client before the first byte", testGap, func(*watchdog) { time.Sleep(testFirstByte) }, errNoFirstByte, testFirstByte},
		{"no gap", 0, func(w *watchdog) {
			read(w, time.Second)
			w.flow()
			read(w, 1000*time.Hour)
			w.stop()
		}, nil, 0},
		{"stopped before the first byte", testGap, func(w *watchdog) {
			w.wait()
			w.stop()
			w.stop()
		}, nil, 0},
		{"stopped in a wait", testGap, func(w *watchdog) {
			w.flow()
			w.wait()
			time.Sleep(testGap - 1)
			w.stop()
		}, nil, 0},
		{"a first byte after the end", testGap, func(w *watchdog) {
			w.stop()
			w.flow()
		}, nil, 0},
		{"a ring that came too late to be stopped", testGap, func(w *watchdog) {
			w.flow()
			w.wait()
			time.Sleep(testGap - 1)
			w.stop()
			time.Sleep(time.Nanosecond)
			w.ring()
		}, nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := watchedAttempt(tt.gap)
				w := &a.watchdog
				w.start(&a.attempt, testFirstByte)
				tt.do(w)
				if tt.cause == nil && w.timer.Stop() {
					t.Error("a timer is left")
				}
				time.Sleep(100 * time.Hour)
				synctest.Wait()
				if a.cause != tt.cause || a.after != tt.after { //nolint:errorlint // it is the very one
					t.Errorf("ended with %v after %v, want %v after %v", a.cause, a.after, tt.cause, tt.after)
				}
				w.stop()
				if w.timer.Stop() {
					t.Error("a timer is left after the ring")
				}
			})
		})
	}
}

// A time of 0 is for ever, and a watchdog that nobody started minds nothing.
func TestWatchdogIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := watchedAttempt(0)
		a.watchdog.start(&a.attempt, 0)
		a.watchdog.wait()
		time.Sleep(1000 * time.Hour)
		a.watchdog.flow()
		a.watchdog.ring()
		a.watchdog.stop()
		if a.cause != nil || a.watchdog.timer != nil {
			t.Errorf("ended with %v, timer %v", a.cause, a.watchdog.timer)
		}
	})
	var none watchdog
	none.wait()
	none.got()
	none.flow()
	none.stop()
	if none.timer != nil {
		t.Error("a timer that nobody started")
	}
}

// The gap may be limited where the first byte is not.
func TestWatchdogGapAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := watchedAttempt(testGap)
		a.watchdog.start(&a.attempt, 0)
		a.watchdog.wait()
		time.Sleep(time.Hour)
		a.watchdog.got()
		a.watchdog.flow()
		a.watchdog.wait()
		time.Sleep(time.Hour)
		synctest.Wait()
		if a.cause != errGap || a.after != time.Hour+testGap { //nolint:errorlint // it is the very one
			t.Errorf("ended with %v after %v", a.cause, a.after)
		}
	})
}
