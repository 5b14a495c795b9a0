package k8sdiscovery

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

var (
	// backoff is between attempts of which one gets an answer, that it may not
	// be or that it is to list again: 0.1 s at first, 5 s in the end.
	backoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: 10, Jitter: 0.2}

	// knocking is between attempts that nothing answers. It costs an API server
	// that is away nothing, and one that is back is noticed within 1 s.
	knocking = wait.Backoff{Duration: 800 * time.Millisecond, Jitter: 0.25}
)

const (
	// A watch that has lasted this long was none of a series of failures.
	lasting = 30 * time.Second

	// An API server that has left so many attempts in a row without an answer
	// was away. A single one is a connection that broke.
	silence = 2
)

// A pace is when a feed lists again after its watch ended. One that finds an
// API server that was away goes about it afresh: as it starts it refuses for a
// moment what it grants then, and does not know how to go on with a watch.
type pace struct {
	backoff wait.Backoff
	began   time.Time
	heard   bool // anything, since then
	mute    int  // attempts in a row that nothing answered
}

// begin is called before a list.
func (p *pace) begin() { p.began, p.heard = time.Now(), false }

// note notes how a list or a watch went.
func (p *pace) note(err error) {
	if _, ok := errors.AsType[*apierrors.StatusError](err); err != nil && !ok {
		p.mute++
		return
	}
	if p.mute >= silence {
		p.backoff = backoff
	}
	p.heard, p.mute = true, 0
}

// pause returns how long to wait before the next list.
func (p *pace) pause() time.Duration {
	if !p.heard {
		return wait.Jitter(knocking.Duration, knocking.Jitter)
	}
	if time.Since(p.began) > lasting {
		p.backoff = backoff
	}
	return p.backoff.Step()
}
