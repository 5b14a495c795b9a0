package blackbox

import (
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// With Caddy's tracing in front, the engine gets the client's trace, and the
// span of the request tells how the gateway routed it.
func TestTracing(t *testing.T) {
	t.Parallel()
	const traceID, clientSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	collector := harness.NewCollector(t)
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{
		Flexinfer: model("m", to(up), "routing prefix", "alias other"),
		Site:      "tracing {\n\tspan llm\n}\nflexinfer",
		Env:       collector.Env(),
	})
	g.Chat(t, chatOf("other", "hi"), "Traceparent", "00-"+traceID+"-"+clientSpan+"-01", "Tracestate", "vendor=value", "X-Flexinfer-Cache-Key", "k")

	got := up.Last(t).Header
	parts := strings.Split(got.Get("Traceparent"), "-")
	if len(parts) != 4 || parts[1] != traceID || parts[2] == clientSpan || parts[3] != "01" {
		t.Fatalf("the engine got the traceparent %q", got.Get("Traceparent"))
	}
	if state := got.Get("Tracestate"); state != "vendor=value" {
		t.Errorf("the engine got the tracestate %q", state)
	}
	var span harness.Span
	harness.Eventually(t, harness.Patience, "the span is pushed", func() bool {
		for _, span = range collector.Spans(traceID) {
			if span.SpanID == parts[2] {
				return true
			}
		}
		return false
	})
	if span.Name != "llm" || span.ParentID != clientSpan {
		t.Errorf("the span %q has the parent %q", span.Name, span.ParentID)
	}
	for name, want := range map[string]string{
		"flexinfer.model": "m", "flexinfer.strategy": "prefix", "flexinfer.key_source": "explicit-header", "flexinfer.target": up.Addr,
	} {
		if got := span.Text(name); got != want {
			t.Errorf("the span has %s %q, want %q", name, got, want)
		}
	}
	if v, ok := span.Attributes["flexinfer.queue_ms"]; !ok || v.GetIntValue() < 0 || v.GetDoubleValue() < 0 {
		t.Errorf("the span has flexinfer.queue_ms %v (there: %t)", v, ok)
	}
}

// Without a trace of the client's the gateway begins one, of which the engine
// is told too.
func TestTracingBeginsTraces(t *testing.T) {
	t.Parallel()
	collector := harness.NewCollector(t)
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)), Site: "tracing\nflexinfer", Env: collector.Env()})
	for range 3 {
		g.Chat(t, chat("hi"))
		parts := strings.Split(up.Last(t).Header.Get("Traceparent"), "-")
		if len(parts) != 4 {
			t.Fatalf("the engine got the traceparent %v", parts)
		}
		harness.Eventually(t, harness.Patience, "the span is pushed", func() bool { return len(collector.Spans(parts[1])) == 1 })
	}
	// A request that is refused has a span too.
	if res := g.Post(t, "/v1/chat/completions", chatOf("nobody", "hi"), "Traceparent", "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-01"); res.Status != http.StatusNotFound {
		t.Fatalf("an unknown model: %s", res)
	}
	harness.Eventually(t, harness.Patience, "the span is pushed", func() bool { return len(collector.Spans("0af7651916cd43dd8448eb211c80319d")) == 1 })
}
