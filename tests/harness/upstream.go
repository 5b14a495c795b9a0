package harness

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// An Upstream is a plain TCP server in the place of an engine. It writes down
// each request byte by byte, and answers as the test says: slowly, in pieces,
// or not at all.
type Upstream struct {
	Addr string

	ln     net.Listener
	handle atomic.Pointer[func(*Exchange)]

	accepted    atomic.Int64 // connections
	received    atomic.Int64 // bytes
	inflight    atomic.Int64
	maxInflight atomic.Int64
	served      atomic.Int64

	serving sync.WaitGroup

	mu       sync.Mutex
	requests []*Received
	conns    map[net.Conn]bool // whether a request is on it
	closed   bool
	draining bool
}

// Received is a request as an upstream got it.
type Received struct {
	// Head is the request's head as it came, Method and Target are from
	// its first line.
	Head, Method, Target string
	Header               http.Header

	// Body is the body without its framing, as far as it is not longer than
	// a mebibyte; Sum and Length are those of all of it.
	Body   []byte
	Sum    [sha256.Size]byte
	Length int64

	// Trailer is what came after the body.
	Trailer http.Header
}

const keptBody = 1 << 20

// NewUpstream starts an upstream, whose answer to each request handle writes.
// Without one it answers each with status 200 and its own address.
func NewUpstream(tb testing.TB, handle func(*Exchange)) *Upstream {
	tb.Helper()
	return NewUpstreamAt(tb, Loopback(0), handle)
}

// NewUpstreamAt is NewUpstream with an address of its own.
func NewUpstreamAt(tb testing.TB, addr string, handle func(*Exchange)) *Upstream {
	tb.Helper()
	u, err := ListenUpstream(tb, addr, handle)
	if err != nil {
		tb.Fatal(err)
	}
	return u
}

// ListenUpstream is NewUpstreamAt for other goroutines than the test's own.
func ListenUpstream(tb testing.TB, addr string, handle func(*Exchange)) (*Upstream, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	u := &Upstream{Addr: ln.Addr().String(), ln: ln, conns: make(map[net.Conn]bool)}
	if handle == nil {
		handle = Answer
	}
	u.Handle(handle)
	u.serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			u.accepted.Add(1)
			if u.add(conn) {
				u.serving.Go(func() { u.serve(conn) })
			}
		}
	})
	tb.Cleanup(func() {
		u.Close()
		u.serving.Wait()
	})
	return u, nil
}

// NewUpstreams starts n upstreams.
func NewUpstreams(tb testing.TB, n int, handle func(*Exchange)) []*Upstream {
	tb.Helper()
	us := make([]*Upstream, n)
	for i := range us {
		us[i] = NewUpstream(tb, handle)
	}
	return us
}

// Handle replaces what answers the requests to come.
func (u *Upstream) Handle(handle func(*Exchange)) { u.handle.Store(&handle) }

// Close closes the upstream and all its connections.
func (u *Upstream) Close() {
	_ = u.ln.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for conn := range u.conns {
		_ = conn.Close()
	}
}

// Drain ends the upstream as an engine ends that is asked to: it takes no
// further connection, closes those that are idle, and each of the others once
// the request on it is answered.
func (u *Upstream) Drain() {
	_ = u.ln.Close()
	u.mu.Lock()
	u.draining = true
	for conn, busy := range u.conns {
		if !busy {
			_ = conn.Close()
		}
	}
	u.mu.Unlock()
	u.serving.Wait()
}

func (u *Upstream) add(conn net.Conn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || u.draining {
		_ = conn.Close()
		return false
	}
	u.conns[conn] = false
	return true
}

// mark says whether a request is on a connection, and reports whether there
// may be one.
func (u *Upstream) mark(conn net.Conn, busy bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conns[conn] = busy
	return !u.draining
}

// Connections returns how many connections were made.
func (u *Upstream) Connections() int { return int(u.accepted.Load()) }

// OpenConnections returns how many connections are open.
func (u *Upstream) OpenConnections() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.conns)
}

// Bytes returns how many bytes came.
func (u *Upstream) Bytes() int { return int(u.received.Load()) }

// Inflight returns how many requests are being answered.
func (u *Upstream) Inflight() int { return int(u.inflight.Load()) }

// MaxInflight returns how many requests were being answered at most.
func (u *Upstream) MaxInflight() int { return int(u.maxInflight.Load()) }

// Served returns how many requests came in whole.
func (u *Upstream) Served() int { return int(u.served.Load()) }

// Requests returns the requests that came in whole.
func (u *Upstream) Requests() []*Received {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]*Received(nil), u.requests...)
}

// Last returns the latest request.
func (u *Upstream) Last(tb testing.TB) *Received {
	tb.Helper()
	all := u.Requests()
	if len(all) == 0 {
		tb.Fatal("the upstream got no request")
	}
	return all[len(all)-1]
}

// Forget forgets the requests and counts so far.
func (u *Upstream) Forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests = nil
	u.served.Store(0)
	u.maxInflight.Store(u.inflight.Load())
}

func (u *Upstream) serve(conn net.Conn) {
	defer func() {
		u.mu.Lock()
		delete(u.conns, conn)
		u.mu.Unlock()
		_ = conn.Close()
	}()
	br := bufio.NewReader(&countingReader{conn, &u.received})
	for nth := 1; ; nth++ {
		if _, err := br.Peek(1); err != nil || !u.mark(conn, true) {
			return
		}
		r, err := receive(br)
		if err != nil {
			return
		}
		u.mu.Lock()
		u.requests = append(u.requests, r)
		u.mu.Unlock()
		u.served.Add(1)
		x := &Exchange{Received: r, Upstream: u, Nth: nth, conn: conn, br: br}
		u.begin()
		(*u.handle.Load())(x)
		x.End()
		if x.stopped || !u.mark(conn, false) || !x.waitUnwatched() {
			return
		}
	}
}

func (u *Upstream) begin() {
	n := u.inflight.Add(1)
	for {
		most := u.maxInflight.Load()
		if n <= most || u.maxInflight.CompareAndSwap(most, n) {
			return
		}
	}
}

type countingReader struct {
	io.Reader
	n *atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// receive reads one request, head and body.
func receive(br *bufio.Reader) (*Received, error) {
	var head bytes.Buffer
	for {
		line, err := br.ReadSlice('\n')
		head.Write(line)
		if err != nil && err != bufio.ErrBufferFull {
			return nil, err
		}
		if string(line) == "\r\n" {
			break
		}
	}
	r := &Received{Head: head.String()}
	req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(&head, br)))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(r.Head, "\r\n")
	r.Method, r.Target, _ = strings.Cut(first, " ")
	r.Target, _, _ = strings.Cut(r.Target, " ")
	r.Header = req.Header
	r.Header["Host"] = []string{req.Host}
	sum := sha256.New()
	kept := new(bytes.Buffer)
	r.Length, err = io.Copy(io.MultiWriter(sum, &limitedWriter{kept, keptBody}), req.Body)
	if err != nil {
		return nil, err
	}
	sum.Sum(r.Sum[:0])
	r.Body = kept.Bytes()
	r.Trailer = req.Trailer
	return r, nil
}

// A limitedWriter drops what goes beyond its limit.
type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if n > 0 {
		_, _ = l.w.Write(p[:n])
	}
	return len(p), nil
}
