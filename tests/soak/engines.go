package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// deaths kills an engine and brings it back.
type deaths struct {
	tb     *tb
	addr   string
	engine *harness.Engine

	mu    sync.Mutex
	times [][2]time.Time // from when to when it was being killed
}

func (d *deaths) start() {
	d.engine = harness.StartEngineAt(d.tb, d.addr, append(quick, "--model", mortal)...)
}

func (d *deaths) kill() {
	begun := time.Now()
	d.mu.Lock()
	d.times = append(d.times, [2]time.Time{begun, begun.Add(time.Minute)}) // until it is known
	d.mu.Unlock()
	d.engine.Kill()
	d.mu.Lock()
	d.times[len(d.times)-1][1] = time.Now()
	d.mu.Unlock()
}

// between reports whether the engine was being killed in a time.
func (d *deaths) between(from, to time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.times {
		if t[1].After(from) && t[0].Before(to) {
			return true
		}
	}
	return false
}

// kills kills the mortal engine now and then, and leaves it dead for a while.
func (s *scene) kills(ctx context.Context, r *rand.Rand, _ int) {
	for wait(ctx, around(r, s.kill)) {
		s.deaths.kill()
		s.report.killed()
		wait(ctx, around(r, s.kill/3))
		s.deaths.start()
	}
}

// answer is what the raw upstreams answer to a chat that is no stream.
const answer = `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Yes."}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`

// events are the events of a stream.
const events = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Yes.\"}}]}\n\n"

// respond answers as an engine does.
func respond(x *harness.Exchange) {
	if !strings.Contains(string(x.Body[:min(len(x.Body), 200)]), `"stream":true`) {
		x.Respond(http.StatusOK, "application/json", answer)
		return
	}
	x.StartStream("text/event-stream")
	for range 5 {
		x.Chunk(events)
		time.Sleep(5 * time.Millisecond)
	}
	x.Chunk("data: [DONE]\n\n")
	x.EndStream()
}

// closeAfterAnswer answers well and closes a connection that it did not say it
// would close.
func closeAfterAnswer(x *harness.Exchange) {
	respond(x)
	x.Close()
}

// misbehave returns what does all that an engine must not do.
func misbehave(seed uint64) func(*harness.Exchange) {
	var n atomic.Uint64
	return func(x *harness.Exchange) {
		gone := x.Gone()
		switch (seed + n.Add(1)) % 8 {
		case 0:
			x.Reset()
		case 1:
			x.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + answer)
			x.Reset()
		case 2:
			x.StartStream("text/event-stream")
			x.Chunk(events)
			x.Reset()
		case 3:
			x.StartStream("text/event-stream")
			x.Chunk(events)
			x.Close()
		case 4:
			x.Respond(http.StatusInternalServerError, "text/plain", "no")
		case 5:
			x.Respond(http.StatusServiceUnavailable, "application/json", `{"error":{"message":"busy"}}`)
		case 6:
			x.Write("SSH-2.0-OpenSSH\r\n\r\n")
			x.Close()
		default:
			select {
			case <-gone:
			case <-time.After(300 * time.Millisecond):
				respond(x)
			}
		}
	}
}
