package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
)

var (
	errReset  = &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	errPipe   = &net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}
	errIdle   = errors.New("http: server closed idle connection")
	errNoHTTP = errors.New(`net/http: HTTP/1.x transport connection broken: malformed HTTP response "x"`)
)

func TestConnectionLost(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{io.ErrUnexpectedEOF, true},
		{fmt.Errorf("reading: %w", io.EOF), true},
		{&net.OpError{Op: "read", Err: net.ErrClosed}, true},
		{errReset, true},
		{errPipe, true},
		{errIdle, true},
		{fmt.Errorf("Post: %w", errIdle), true},
		{errNoHTTP, false},
		{os.ErrDeadlineExceeded, false},
		{context.Canceled, false},
		{errGap, false},
	} {
		if got := connectionLost(tt.err); got != tt.want {
			t.Errorf("%v: %v", tt.err, got)
		}
	}
}

// A lost connection is put down to its having been idle only if it was used
// before, nothing came back, and it broke at once.
func TestStale(t *testing.T) {
	const none = -1 * time.Second
	for _, tt := range []struct {
		name             string
		reused, answered bool
		err              error
		wrote, lost      time.Duration // since the attempt began; none if it did not happen
		want             bool
	}{
		{"before all was out", true, false, errReset, none, 0, true},
		{"at once", true, false, io.EOF, time.Second, time.Second, true},
		{"in the window", true, false, errIdle, time.Second, time.Second + raceWindow - 1, true},
		{"before the write was seen to end", true, false, errPipe, 2 * time.Second, time.Second, true},
		{"behind the window", true, false, io.EOF, time.Second, time.Second + raceWindow, false},
		{"much later", true, false, io.EOF, time.Second, time.Hour, false},
		{"a new connection", false, false, io.EOF, none, 0, false},
		{"in an answer", true, true, io.ErrUnexpectedEOF, time.Second, time.Second, false},
		{"nonsense", true, false, errNoHTTP, time.Second, time.Second, false},
		{"a timeout", true, false, errNoFirstByte, none, none, false},
		{"unknown connection, at once", true, false, io.EOF, 90 * time.Second, none, true},
		{"unknown connection, later", true, false, io.EOF, time.Second, none, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &attempt{began: time.Now()}
				a.reused.Store(tt.reused)
				a.answered.Store(tt.answered)
				if tt.wrote != none {
					a.wrote.Store(int64(tt.wrote))
				}
				if tt.lost != none {
					conn := newDirectConn(nil)
					at := a.began.Add(tt.lost)
					conn.lost.Store(&at)
					a.conn.Store(new(net.Conn(conn)))
				}
				time.Sleep(90 * time.Second) // it is looked at later
				if got := a.stale(tt.err); got != tt.want {
					t.Errorf("stale: %v", got)
				}
			})
		})
	}
}

// What net/http does not send for the client's own bytes is known by the text
// of its errors.
func TestBadRequest(t *testing.T) {
	request := func(change func(*http.Request)) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:1/", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		change(r)
		return r
	}
	for name, tt := range map[string]struct {
		change func(*http.Request)
		want   bool
	}{
		"method":        {func(r *http.Request) { r.Method = "A B" }, true},
		"field name":    {func(r *http.Request) { r.Header["a b"] = []string{"x"} }, true},
		"field value":   {func(r *http.Request) { r.Header["X"] = []string{"x\x00"} }, true},
		"trailer name":  {func(r *http.Request) { r.Trailer = http.Header{"a b": nil} }, true},
		"trailer value": {func(r *http.Request) { r.Trailer = http.Header{"X": {"\n"}} }, true},
		"nothing":       {func(*http.Request) {}, false},
	} {
		res, err := http.DefaultTransport.RoundTrip(request(tt.change))
		if err == nil {
			res.Body.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		if got := badRequest(err); got != tt.want {
			t.Errorf("%s: %v, of %v", name, got, err)
		}
	}
	for _, err := range []error{io.EOF, errIdle, errNoHTTP, errReset} {
		if badRequest(err) {
			t.Errorf("%v is the client's doing", err)
		}
	}
}

func TestStaleness(t *testing.T) {
	a := new(attempt)
	if got := a.staleness(); got != call.Unsent {
		t.Errorf("%d before the request was out", got)
	}
	a.wroteRequest(httptrace.WroteRequestInfo{Err: io.EOF})
	if got := a.staleness(); got != call.Unsent {
		t.Errorf("%d as the request did not get out", got)
	}
	a.wroteRequest(httptrace.WroteRequestInfo{})
	if got := a.staleness(); got != call.Stale {
		t.Errorf("%d once the request was out", got)
	}
}

func TestReason(t *testing.T) {
	dial := func(cause error) error {
		return &dialError{DialError: reverseproxy.NewDialError(errors.New("dial")), cause: cause}
	}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{dial(syscall.ECONNREFUSED), "conn_refused"},
		{fmt.Errorf("wrapped: %w", dial(syscall.ECONNRESET)), "conn_reset"},
		{dial(nil), "dial"},
		{http2.StreamError{StreamID: 1, Code: http2.ErrCodeRefusedStream}, "refused_stream"},
		{errors.New("http2: Transport: cannot retry err [x] after Request.Body was written"), "refused_stream"},
		{http2.StreamError{StreamID: 1, Code: http2.ErrCodeInternal}, "other"},
		{errReset, "conn_reset"},
		{errPipe, "conn_reset"},
		{io.EOF, "eof"},
		{io.ErrUnexpectedEOF, "eof"},
		{errIdle, "eof"},
		{net.ErrClosed, "eof"},
		{os.ErrDeadlineExceeded, "timeout"},
		{context.DeadlineExceeded, "timeout"},
		{fmt.Errorf("waiting: %w", errNoFirstByte), "timeout"},
		{errGap, "timeout"},
		{errNoHTTP, "other"},
		{context.Canceled, "other"},
	} {
		if got := reason(tt.err); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
