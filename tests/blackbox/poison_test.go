package blackbox

import (
	"net/http"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// An engine that dies of a prompt at once, on a connection that was kept, looks
// like one that had closed it as idle. It takes one other with it at most.
func TestPoisonPromptOnKeptConnections(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 4, func(x *harness.Exchange) {
		if string(x.Body) == chat("poison") {
			<-time.After(20 * time.Millisecond) // the engine reads the prompt
			x.Upstream.Close()
			return
		}
		harness.Answer(x)
	})
	g := serve(t, "round-robin", ups...)
	for range 8 {
		g.Chat(t, chat("hi"))
	}
	for _, u := range ups {
		u.Forget()
	}
	if res := g.Post(t, "/v1/chat/completions", chat("poison")); res.Status != http.StatusBadGateway {
		t.Errorf("the client got %s", res)
	}
	dead := 0
	for _, u := range ups {
		dead += u.Served()
	}
	if dead > 2 {
		t.Errorf("the prompt killed %d engines", dead)
	}
	g.WaitIdle(t)
}
