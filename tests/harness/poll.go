package harness

import (
	"encoding/json"
	"testing"
	"time"
)

// Patience is how long a test waits for what should be there in a moment. It
// is long because the machines are small, and passes only in a test that fails.
const Patience = 20 * time.Second

// Eventually waits until ok reports true, and fails the test if that does not
// happen within the time.
func Eventually(tb testing.TB, within time.Duration, what string, ok func() bool) {
	tb.Helper()
	if !Within(within, ok) {
		tb.Fatalf("not within %s: %s", within, what)
	}
}

// Within waits until ok reports true, and returns false if that does not
// happen within the time.
func Within(within time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok() {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return ok()
		}
	}
}

// Receive returns the next value of ch, and fails the test if none comes.
func Receive[T any](tb testing.TB, ch <-chan T, what string) (v T) {
	tb.Helper()
	select {
	case v = <-ch:
	case <-time.After(Patience):
		tb.Fatalf("not within %s: %s", Patience, what)
	}
	return v
}

// Decode reads a JSON body.
func Decode[T any](tb testing.TB, body []byte) (v T) {
	tb.Helper()
	if err := json.Unmarshal(body, &v); err != nil {
		tb.Fatalf("reading %q: %v", clip(body), err)
	}
	return v
}

func clip(b []byte) string {
	const most = 500
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// Send sends v on ch, and fails the test if nobody takes it.
func Send[T any](tb testing.TB, ch chan<- T, v T, what string) {
	tb.Helper()
	select {
	case ch <- v:
	case <-time.After(Patience):
		tb.Fatalf("not within %s: %s", Patience, what)
	}
}

// Listening waits until something listens at an address.
func Listening(tb testing.TB, addr string) {
	tb.Helper()
	Eventually(tb, Patience, "something listens at "+addr, func() bool { return listens(addr) })
}
