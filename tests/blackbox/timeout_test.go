package blackbox

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

const streaming = `{"model":"m","stream":true}`

// S9: a stream that flows is never cut, however long it takes in all, nor is a
// prefill longer than the time between two bytes.
func TestS9_FlowingStreamsAreNotCut(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		<-time.After(600 * time.Millisecond) // longer than gap, to the head
		x.StartStream("text/event-stream")
		<-time.After(600 * time.Millisecond) // and to the first byte
		for range 20 {
			x.Chunk("data: {}\n\n")
			<-time.After(100 * time.Millisecond)
		}
		x.EndStream()
	})
	plain := harness.NewUpstream(t, func(x *harness.Exchange) {
		<-time.After(3 * time.Second) // longer than any of the times
		harness.Answer(x)
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + model("plain", to(plain)) + "timeouts {\n\tfirst_byte 2s\n\tgap 400ms\n}"})
	done := make(chan *harness.Response, 1)
	go func() {
		res, err := g.TryFresh(t.Context(), http.MethodPost, "/v1/chat/completions", bare("plain"))
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	if res := g.Chat(t, streaming); string(res.Body) != strings.Repeat("data: {}\n\n", 20) {
		t.Errorf("the stream is %s", res)
	}
	if res := harness.Receive(t, done, "the plain answer"); res == nil || res.Status != http.StatusOK {
		t.Errorf("an answer that takes its time is %v", res)
	}
	g.WaitIdle(t)
}

// S9: a stream that does not begin, or stops, is ended by the limit of its
// phase, and never looks like a clean end.
func TestS9_StreamsThatStop(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{}, 1)
	hang := func(x *harness.Exchange) {
		<-x.Gone()
		gone <- struct{}{}
	}
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "timeouts {\n\tfirst_byte 500ms\n\tgap 300ms\n}"})
	tests := []struct {
		name    string
		begin   func(x *harness.Exchange)
		atLeast time.Duration
		status  int
	}{
		{"no head", func(*harness.Exchange) {}, 500 * time.Millisecond, http.StatusGatewayTimeout},
		{"no body", func(x *harness.Exchange) { x.StartStream("text/event-stream") }, 500 * time.Millisecond, http.StatusOK},
		{"comments only", func(x *harness.Exchange) {
			x.StartStream("text/event-stream")
			x.Chunk(": ping\n\n")
		}, 500 * time.Millisecond, http.StatusOK},
		{"three events", func(x *harness.Exchange) {
			x.StartStream("text/event-stream")
			x.Chunk("data: {}\n\ndata: {}\n\ndata: {}\n\n")
		}, 300 * time.Millisecond, http.StatusOK},
	}
	for _, tt := range tests {
		up.Handle(func(x *harness.Exchange) {
			tt.begin(x)
			hang(x)
		})
		begun := time.Now()
		res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", streaming)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		took := time.Since(begun)
		switch {
		case res.StatusCode != tt.status:
			t.Errorf("%s: status %d, want %d", tt.name, res.StatusCode, tt.status)
		case tt.status == http.StatusOK && err == nil:
			t.Errorf("%s: the stream ended cleanly with %q", tt.name, body)
		case tt.status != http.StatusOK:
			answer := &harness.Response{Status: res.StatusCode, Header: res.Header, Body: body}
			if e := answer.Refusal(t); e.Error.Type != "timeout_error" {
				t.Errorf("%s: the error is %+v", tt.name, e)
			}
		}
		if took < tt.atLeast-20*time.Millisecond || took > 5*time.Second {
			t.Errorf("%s: it took %s", tt.name, took)
		}
		harness.Receive(t, gone, "the upstream request is closed")
		g.WaitIdle(t)
	}
	if n := up.Served(); n != len(tests) {
		t.Errorf("%d requests reached the upstream, want %d: none is repeated", n, len(tests))
	}
}

// A client that is slow to take a stream is no stream that stops.
func TestSlowReadersAreNotCut(t *testing.T) {
	t.Parallel()
	event := "data: " + strings.Repeat("x", 64<<10) + "\n\n"
	const events = 200 // more than fits into the buffers in between
	up := harness.NewUpstream(t, func(x *harness.Exchange) {
		x.StartStream("text/event-stream")
		for range events {
			x.Chunk(event)
		}
		x.EndStream()
	})
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "timeouts {\n\tgap 300ms\n}"})
	res, err := g.Open(t.Context(), http.MethodPost, "/v1/chat/completions", streaming)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	buf := make([]byte, len(event))
	if _, err := io.ReadFull(res.Body, buf); err != nil {
		t.Fatal(err)
	}
	<-time.After(1500 * time.Millisecond) // five times the limit
	rest, err := io.Copy(io.Discard, res.Body)
	if err != nil || rest != int64((events-1)*len(event)) {
		t.Errorf("after a pause the client got %d bytes more, want %d: %v", rest, (events-1)*len(event), err)
	}
}

// T7: one upstream that hangs holds up no call to another.
func TestT7_HungUpstreamIsIsolated(t *testing.T) {
	t.Parallel()
	gate := harness.NewGate(t)
	hung, up := harness.NewUpstream(t, gate.Then(harness.Answer)), harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("hung", to(hung)) + model("m", to(up))})
	for range 50 {
		go func() { _, _ = g.TryFresh(t.Context(), http.MethodPost, "/v1/chat/completions", bare("hung")) }()
	}
	harness.Eventually(t, harness.Patience, "the calls hang", func() bool { return gate.Held() == 50 })
	for range 100 {
		g.Chat(t, chat("hi"))
	}
	gate.Open()
	g.WaitIdle(t)
}
