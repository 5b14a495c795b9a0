package k8sdiscovery

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPace(t *testing.T) {
	var (
		broken  = errors.New("connection refused")
		refused = &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden}}
	)
	// round is a list, or with it a watch that ends after a while.
	round := func(p *pace, lasts time.Duration, results ...error) time.Duration {
		p.begin()
		for _, err := range results {
			p.note(err)
		}
		time.Sleep(lasts)
		return p.pause()
	}
	within := func(t *testing.T, what string, got, least, most time.Duration) {
		t.Helper()
		if got < least || got > most {
			t.Errorf("%s: got %s, want %s to %s", what, got, least, most)
		}
	}
	worn := func() *pace {
		p := &pace{backoff: backoff}
		for range 10 {
			round(p, 0, refused)
		}
		return p
	}
	synctest.Test(t, func(t *testing.T) {
		p := &pace{backoff: backoff}
		for _, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
			within(t, "refused again and again", round(p, 0, refused), want*time.Millisecond, want*6/5*time.Millisecond)
		}
		within(t, "a connection that broke once", round(p, 0, nil, broken), 5*time.Second, 6*time.Second)
		within(t, "refused after that", round(p, 0, refused), 5*time.Second, 6*time.Second)
		within(t, "a watch that lasted", round(p, time.Minute, nil, nil), 100*time.Millisecond, 120*time.Millisecond)

		p = worn()
		for range 100 {
			within(t, "nothing answers", round(p, 0, broken), 800*time.Millisecond, time.Second)
		}
		within(t, "it is back, and refuses", round(p, 0, refused), 100*time.Millisecond, 120*time.Millisecond)
		within(t, "and refuses", round(p, 0, refused), 200*time.Millisecond, 240*time.Millisecond)

		p = worn()
		within(t, "it is back, and wants a list", round(p, 0, nil, broken, broken, refused), 100*time.Millisecond, 120*time.Millisecond)

		// Watches that never come about are no reason to list all the time.
		p = &pace{backoff: backoff}
		for range 10 {
			round(p, 0, nil, broken)
		}
		within(t, "no watch gets through", round(p, 0, nil, broken), 5*time.Second, 6*time.Second)
	})
}
