package sources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// engines are upstreams in memory, by address.
type engines struct {
	t  *testing.T
	on map[string]*engine
}

type engine struct {
	mu     sync.Mutex
	down   bool
	answer http.HandlerFunc
	asked  []time.Duration // since the bubble's clock began
}

func newEngines(t *testing.T, answers map[string]http.HandlerFunc) *engines {
	es := &engines{t: t, on: make(map[string]*engine)}
	for address, answer := range answers {
		es.on[address] = &engine{answer: answer}
	}
	return es
}

// dial connects to an engine, which serves the connection's one request.
func (es *engines) dial(_ context.Context, _, address string) (net.Conn, error) {
	e := es.on[address]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, sinceStart())
	if e.down {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	l := &oneConn{conn: theirs, closed: make(chan struct{})}
	server := &http.Server{Handler: e.answer, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			l.Close()
		}
	}}
	go server.Serve(l)
	return ours, nil
}

func (e *engine) set(down bool, answer http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down, e.answer = down, answer
}

func (e *engine) times() []time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asked)
}

// sinceStart is the time since a synctest bubble began.
func sinceStart() time.Duration {
	return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
}

// oneConn is a listener with one connection.
type oneConn struct {
	once   sync.Once
	conn   net.Conn
	closed chan struct{}
	end    sync.Once
}

func (l *oneConn) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { conn = l.conn })
	if conn != nil {
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { l.end.Do(func() { close(l.closed) }); return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// lists answers with the models.
func lists(models ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			http.NotFound(w, r)
			return
		}
		var data []string
		for _, m := range models {
			data = append(data, fmt.Sprintf(`{"id": %q, "object": "model"}`, m))
		}
		fmt.Fprintf(w, `{"object": "list", "data": [%s]}`, strings.Join(data, ","))
	}
}
