package guard

import (
	"syscall"
	"testing"
	"time"
)

// What has left the group is ended with it, and with the gateway, whether the
// one that started it still runs or not.
func TestWhatHasLeftTheGroup(t *testing.T) {
	for _, role := range []string{"daemon gentle", "abandon daemon gentle"} {
		p := start1(t, command(role))
		pids := p.pids(t, "waits", 2)
		p.Stop(time.Minute) // TERM alone
		p.pids(t, "leaves", 1)
		<-p.Gone()
		wantGone(t, pids...)
	}
	for _, role := range []string{"daemon stubborn", "daemon daemon stubborn", "abandon daemon stubborn"} {
		n := 2
		if role == "daemon daemon stubborn" {
			n = 3
		}
		p := start1(t, command(role))
		pids := p.pids(t, "waits", n)
		p.Stop(50 * time.Millisecond)
		wantGone(t, pids...)
		kill9(t, role, n, func(gateway int, _ []int) { _ = syscall.Kill(gateway, syscall.SIGKILL) })
	}
}
