package transport

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// The reason for a failed dial is known though Caddy's error hides it.
func TestDialReason(t *testing.T) {
	tests := []struct {
		name  string
		cause error
		want  string
	}{
		{"refused", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, "conn_refused"},
		{"no host", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, "host_unreachable"},
		{"no net", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}, "host_unreachable"},
		{"reset", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNRESET)}, "conn_reset"},
		{"timeout", &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, "timeout"},
		{"other", errors.New("other"), "dial"},
		{"unknown", nil, "dial"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := error(&dialError{DialError: reverseproxy.NewDialError(errors.New("dial")), cause: tt.cause})
			if got := err.(*dialError).reason(); got != tt.want { //nolint:errorlint // it is one
				t.Errorf("reason %q, want %q", got, tt.want)
			}
			if _, ok := errors.AsType[reverseproxy.DialError](err); !ok {
				t.Error("it is no dial error to the proxy")
			}
		})
	}
}

func TestDialWithCause(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ln.Close() // nobody listens there now
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, reverseproxy.NewDialError(err)
		}
		return conn, nil
	}
	_, err = dialWithCause(t.Context(), "tcp", address, dial)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error %v hides its cause", err)
	}
	d, ok := errors.AsType[*dialError](err)
	if !ok || d.reason() != "conn_refused" {
		t.Errorf("error %#v", err)
	}
}
