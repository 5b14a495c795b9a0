//go:build unix

package activators

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func TestProcessEndsWhileItStarts(t *testing.T) {
	for role, want := range map[string]string{
		"fails":      "the process ended with exit status 3 while it started",
		"background": "the process ended with exit status 0 while it started; the command must not go to the background",
	} {
		x := load(t, engineOn(t, freeAddress(t), role))
		eventually(t, x, routing.Asleep, "refused")
		activate(t, x)
		eventually(t, x, routing.Failed, want)
		s, _ := x.State()
		if s.RetryAfter != firstBackOff {
			t.Errorf("to be retried after %s", s.RetryAfter)
		}
		x.engine.set(func() { x.engine.retryAt = x.engine.retryAt.Add(time.Hour) }) // however slow this machine is
		err := x.Activate(t.Context(), "m")
		wantRetryIn(t, err, want, time.Hour-time.Second)
		x.engine.set(func() { x.engine.retryAt = time.Now() })
		activate(t, x)
		eventually(t, x, routing.Failed, want)
		if s, _ := x.State(); s.RetryAfter != 2*firstBackOff {
			t.Errorf("to be retried after %s", s.RetryAfter)
		}
	}
}

// wantRetryIn wants an error that says so, and that tells when to come back.
func wantRetryIn(t *testing.T, err error, message string, limit time.Duration) {
	t.Helper()
	e, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err)
	if !ok || e.Error() != message || e.RetryAfter() < limit || e.RetryAfter() > limit+longestBackOff {
		t.Errorf("the error is %#v", err)
	}
}

func TestProgramIsMissing(t *testing.T) {
	x := engineOn(t, freeAddress(t), "")
	x.Command = []string{"no-such-engine"}
	load(t, x)
	eventually(t, x, routing.Asleep, "refused")
	const want = "the program could not be run"
	if err := x.Activate(t.Context(), "m"); err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
	eventually(t, x, routing.Failed, want)
	x.engine.set(func() { x.engine.retryAt = x.engine.retryAt.Add(time.Hour) })
	wantRetryIn(t, x.Activate(t.Context(), "m"), want, time.Hour-time.Second)
}

func crash(t *testing.T, address string) {
	t.Helper()
	if _, err := http.Get("http://" + address + "/crash"); err == nil {
		t.Error("it did not crash")
	}
}

func TestProcessEndsByItself(t *testing.T) {
	address := freeAddress(t)
	x := load(t, engineOn(t, address, ""))
	n := wake(t, x, address)
	x.engine.set(func() { x.engine.readyAt = time.Now().Add(-steadyTime) })
	crash(t, address)
	eventually(t, x, routing.Asleep, "")
	wantGone(t, n)
	activate(t, x)
	eventually(t, x, routing.Serving, "")
	if again := pid(t, address); again == n {
		t.Error("it is the same")
	}
}

// One that crashes again and again is not started at each call.
func TestProcessEndsSoonAfterItIsReady(t *testing.T) {
	const want = "the process ended with exit status 9 soon after it was ready"
	address := freeAddress(t)
	x := load(t, engineOn(t, address, ""))
	wake(t, x, address)
	for _, backOff := range []time.Duration{firstBackOff, 2 * firstBackOff, 4 * firstBackOff} {
		crash(t, address)
		eventually(t, x, routing.Failed, want)
		if s, _ := x.State(); s.RetryAfter != backOff {
			t.Errorf("to be retried after %s, want %s", s.RetryAfter, backOff)
		}
		x.engine.set(func() { x.engine.retryAt = x.engine.retryAt.Add(time.Hour) }) // however slow this machine is
		err := x.Activate(t.Context(), "m")
		wantRetryIn(t, err, want, time.Hour-time.Second)
		x.engine.set(func() { x.engine.retryAt = time.Now() })
		activate(t, x)
		eventually(t, x, routing.Serving, "")
	}

	x.engine.set(func() { x.engine.readyAt = time.Now().Add(-steadyTime) })
	crash(t, address)
	eventually(t, x, routing.Asleep, "")
	activate(t, x)
	eventually(t, x, routing.Serving, "")
	crash(t, address)
	eventually(t, x, routing.Failed, want)
	if s, _ := x.State(); s.RetryAfter != firstBackOff {
		t.Errorf("after one that ran for long it is to be retried after %s", s.RetryAfter)
	}
}
