//go:build unix

package activators

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func TestProcessEndsWhileItStarts(t *testing.T) {
	for role, want := range map[string]string{
		"fails":      "the process ended while it started: exit status 3: loading the model / out of memory",
		"background": "the process ended while it started: exit status 0; the command must not go to the background",
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
		if err == nil || !strings.Contains(err.Error(), want+"; it is not tried again for ") {
			t.Errorf("at once again: %v", err)
		}
		x.engine.set(func() { x.engine.retryAt = time.Now() })
		activate(t, x)
		eventually(t, x, routing.Failed, want)
		if s, _ := x.State(); s.RetryAfter != 2*firstBackOff {
			t.Errorf("to be retried after %s", s.RetryAfter)
		}
	}
}

func TestProgramIsMissing(t *testing.T) {
	x := engineOn(t, freeAddress(t), "")
	x.Command = []string{"no-such-engine"}
	load(t, x)
	eventually(t, x, routing.Asleep, "refused")
	want := `no-such-engine could not be started: exec: "no-such-engine": executable file not found in $PATH`
	if err := x.Activate(t.Context(), "m"); err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
	eventually(t, x, routing.Failed, want)
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
	const want = "the process ended soon after it was ready: exit status 9: a bad prompt"
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
		if err == nil || !strings.Contains(err.Error(), want+"; it is not tried again for ") {
			t.Errorf("at once again: %v", err)
		}
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
