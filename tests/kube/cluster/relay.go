package cluster

import (
	"io"
	"net"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// A Relay is a way to the API server that can be cut, for the one who is to
// feel it. The cluster itself, and the tests, go on.
type Relay struct {
	addr, to string
	wg       sync.WaitGroup

	mu    sync.Mutex
	ln    net.Listener // nil while it is cut
	conns map[net.Conn]struct{}
}

// Relay makes a relay, through which nothing comes before it is opened.
func (c *Cluster) Relay(tb testing.TB) *Relay {
	tb.Helper()
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	r := &Relay{addr: "127.0.0.1:" + port, to: c.Addr(), conns: make(map[net.Conn]struct{})}
	tb.Cleanup(func() {
		r.Cut()
		r.wg.Wait()
	})
	return r
}

// Open lets clients through.
func (r *Relay) Open(tb testing.TB) {
	tb.Helper()
	ln, err := net.Listen("tcp", r.addr)
	if err != nil {
		tb.Fatal(err)
	}
	r.mu.Lock()
	r.ln = ln
	r.mu.Unlock()
	r.wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.pass(conn) })
		}
	})
}

// Cut ends all connections, and refuses those that are tried.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ln != nil {
		_ = r.ln.Close()
		r.ln = nil
	}
	for conn := range r.conns {
		_ = conn.Close()
	}
	clear(r.conns)
}

// Connections returns how many connections go through.
func (r *Relay) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

func (r *Relay) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	r.mu.Lock()
	cut := r.ln == nil
	r.conns[client] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.conns, client)
		r.mu.Unlock()
	}()
	if cut {
		return
	}
	r.wg.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
}

// KubeconfigThrough is Kubeconfig by way of a relay.
func (a *Account) KubeconfigThrough(tb testing.TB, r *Relay) string {
	tb.Helper()
	config := rest.AnonymousClientConfig(a.c.Config)
	config.Host = "https://" + r.addr
	config.BearerToken = a.Token(tb)
	return a.c.kubeconfig(tb, config)
}
