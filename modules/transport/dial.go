package transport

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"syscall"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// A dialError is a failure to connect. It is a [reverseproxy.DialError], which
// tells the proxy that nothing was sent yet but hides why.
type dialError struct {
	reverseproxy.DialError
	cause error // nil if unknown
}

// Unwrap makes both errors known to errors.Is and errors.As.
func (e *dialError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.DialError}
	}
	return []error{e.DialError, e.cause}
}

// reason names the failure as metrics do.
func (e *dialError) reason() string {
	var ne net.Error
	switch {
	case errors.Is(e.cause, syscall.ECONNREFUSED):
		return "conn_refused"
	case errors.Is(e.cause, syscall.EHOSTUNREACH), errors.Is(e.cause, syscall.ENETUNREACH):
		return "host_unreachable"
	case errors.Is(e.cause, syscall.ECONNRESET):
		return "conn_reset"
	case errors.As(e.cause, &ne) && ne.Timeout():
		return "timeout"
	}
	return "dial"
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialWithCause dials and, if that fails, finds out why.
func dialWithCause(ctx context.Context, network, address string, dial dialFunc) (net.Conn, error) {
	var mu sync.Mutex // IPv4 and IPv6 may be tried at once
	var cause error
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			cause = err
		}
	}
	conn, err := dial(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSDone:     func(info httptrace.DNSDoneInfo) { note(info.Err) },
		ConnectDone: func(_, _ string, err error) { note(err) },
	}), network, address)
	dialErr, ok := errors.AsType[reverseproxy.DialError](err)
	if !ok {
		return conn, err
	}
	mu.Lock()
	defer mu.Unlock()
	return nil, &dialError{DialError: dialErr, cause: cause}
}
