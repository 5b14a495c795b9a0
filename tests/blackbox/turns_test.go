package blackbox

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// T3: if all endpoints are ejected, or all are busy, they have their turns as
// if none were.
func TestT3_TurnsWhenNoneIsFit(t *testing.T) {
	t.Parallel()
	const calls = 24
	ups := make(map[string][]*harness.Upstream)
	var models string
	for _, code := range []int{http.StatusInternalServerError, http.StatusTooManyRequests} {
		for _, routing := range []string{"round-robin", "least-loaded"} {
			for _, n := range []int{2, 3, 4} {
				name := fmt.Sprintf("%d-of-%s-that-answer-%d", n, routing, code)
				ups[name] = harness.NewUpstreams(t, n, status(code))
				models += model(name, to(ups[name]...), "routing "+routing)
			}
		}
	}
	g := harness.Start(t, harness.Config{Flexinfer: models + "retries 0\n" + health("eject_after 1", "eject_for 1m")})
	for name, us := range ups {
		for range calls {
			g.Post(t, "/v1/chat/completions", chatOf(name, "hi"))
		}
		for i, u := range us {
			if got := u.Served(); got < calls/len(us)/2 {
				t.Errorf("%s: upstream %d got %d of %d calls: %v", name, i, got, calls, served(us))
			}
		}
	}
}
