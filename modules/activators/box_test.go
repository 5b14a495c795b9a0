package activators

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// box is a machine in memory, with an engine and what starts and stops it.
type box struct {
	mu        sync.Mutex
	up        bool // else connections to the engine are refused
	health    int  // what it answers
	slow      time.Duration
	slowStart time.Duration
	dies      time.Duration // after it is told to stop
	start     int           // the answers to the others
	stop      int
	seen      []string
	probes    []time.Duration // since the bubble's clock began
	starter   func()
}

// set has the engine's clock or memory be another.
func (e *engine) set(do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do()
}

func newBox() *box { return &box{health: 200, start: 202, stop: 200} }

func (b *box) set(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
}

// probed returns when it was probed since it was last asked.
func (b *box) probed() (times []time.Duration) {
	b.set(func() { times, b.probes = b.probes, nil })
	return times
}

func (b *box) requests() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.seen, "\n")
}

func (b *box) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	asked := strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Method, r.URL, r.Header.Get("Authorization"), body))
	b.mu.Lock()
	defer b.mu.Unlock()
	switch r.URL.Path {
	case "/health":
		b.mu.Unlock()
		select {
		case <-time.After(b.slow):
		case <-r.Context().Done():
		}
		b.mu.Lock()
		w.WriteHeader(b.health)
		return
	case "/start":
		b.seen = append(b.seen, asked)
		b.mu.Unlock()
		select {
		case <-time.After(b.slowStart):
		case <-r.Context().Done():
		}
		b.mu.Lock()
		w.WriteHeader(b.start)
		if b.starter != nil {
			b.starter()
		}
		return
	case "/stop":
		w.WriteHeader(b.stop)
		if b.stop == 200 {
			time.AfterFunc(b.dies, func() { b.set(func() { b.up = false }) })
		}
	}
	b.seen = append(b.seen, asked)
}

func (b *box) dial(_ context.Context, _, address string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if strings.HasPrefix(address, "engine:") {
		b.probes = append(b.probes, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
		if !b.up {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}
	}
	ours, theirs := net.Pipe()
	l := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.conn <- theirs
	server := &http.Server{Handler: b, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			l.Close()
		}
	}}
	go func() { _ = server.Serve(l) }()
	return ours, nil
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   chan net.Conn
	closed chan struct{}
	end    sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *oneConn) Close() error { l.end.Do(func() { close(l.closed) }); return nil }
func (*oneConn) Addr() net.Addr { return new(net.TCPAddr) }

func (b *box) http() *HTTP {
	return &HTTP{
		StartRequest: &Request{URL: "http://box:9000/start"},
		StopRequest:  &Request{URL: "http://box:9000/stop"},
		Watch:        Watch{Ready: &Request{URL: "http://engine:8000/health"}, dial: b.dial},
	}
}
