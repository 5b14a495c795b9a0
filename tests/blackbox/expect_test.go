package blackbox

import (
	"io"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Z6: a refusal that says Connection: close closes the connection, also if the
// client waits for 100 Continue and sends nothing.
func TestZ6_RefusalOfAnExpectationCloses(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "max_body 64KiB"})
	for _, more := range []string{
		"X-Model-ID: nobody\r\nContent-Length: 100\r\n", "X-Model-ID: nobody\r\nTransfer-Encoding: chunked\r\n",
		"Content-Length: 100000\r\n", "Content-Length: 10000000\r\n",
	} {
		t.Run(more, func(t *testing.T) {
			t.Parallel()
			conn := g.Dial(t)
			conn.Send(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"+more+"\r\n")
			if res := conn.Head(t); !res.Close {
				t.Errorf("the refusal does not say that it closes: %v", res.Header)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("the connection stays open: %v", err)
			}
		})
	}
}
