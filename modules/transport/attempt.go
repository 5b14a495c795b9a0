package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/net/http2"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/call"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/usage"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// An attempt is one exchange of a call with an endpoint.
type attempt struct {
	t        *Transport
	call     *call.Call
	model    *catalog.Model
	endpoint *routing.Endpoint
	lease    *routing.Lease
	began    time.Time
	idle     time.Duration // for how long the endpoint keeps the connection; 0 if it does not say
	fine     bool          // the status is no failure
	client   context.Context
	ctx      context.Context // the client's, unless a watchdog may end it
	cancel   context.CancelCauseFunc
	watchdog watchdog
	hitRate  *hitRate // nil unless the client wants to know

	// What net/http tells of the connection, from goroutines of its own.
	conn     atomic.Pointer[net.Conn]
	reused   atomic.Bool
	answered atomic.Bool
	wrote    atomic.Int64 // when the request was out, in ns since began

	// Parts that nearly every attempt needs, here so that they are one
	// allocation with it.
	trace  httptrace.ClientTrace
	body   watchedBody
	usage  usage.Reader
	whole  gatheredBody
	values [8]string // of header fields
	nvalue int
}

// begin makes req that of an attempt.
func (t *Transport) begin(c *call.Call, lease *routing.Lease, req *http.Request) (*attempt, *http.Request) {
	a := &attempt{t: t, call: c, model: c.Model(), endpoint: lease.Endpoint(), lease: lease, began: time.Now(), client: req.Context()}
	a.ctx = a.client
	c.Dial()
	if c.Stream() {
		a.ctx, a.cancel = context.WithCancelCause(a.client)
		a.watchdog.start(a, a.model.Policy.FirstByte)
	}
	a.trace = httptrace.ClientTrace{GotConn: a.gotConn, WroteRequest: a.wroteRequest, GotFirstResponseByte: a.gotFirstByte}
	if proxy := httptrace.ContextClientTrace(a.ctx); proxy != nil && proxy.Got1xxResponse != nil {
		pass := proxy.Got1xxResponse
		proxy.Got1xxResponse = func(status int, h textproto.MIMEHeader) error {
			dropOwn(http.Header(h))
			return pass(status, h)
		}
	}
	return a, req.WithContext(httptrace.WithClientTrace(a.ctx, &a.trace))
}

// value returns what a header field that has this one value holds.
func (a *attempt) value(v string) []string {
	if a.nvalue == len(a.values) {
		return []string{v}
	}
	a.values[a.nvalue] = v
	a.nvalue++
	return a.values[a.nvalue-1 : a.nvalue : a.nvalue]
}

func (a *attempt) gotConn(info httptrace.GotConnInfo) {
	a.reused.Store(info.Reused)
	a.conn.Store(&info.Conn)
}

func (a *attempt) wroteRequest(info httptrace.WroteRequestInfo) {
	if info.Err == nil {
		a.wrote.Store(max(int64(time.Since(a.began)), 1))
	}
}

func (a *attempt) gotFirstByte() { a.answered.Store(true) }

// end is called when nothing of the attempt is left.
func (a *attempt) end() {
	a.watchdog.stop()
	if a.cancel != nil {
		a.cancel(nil)
	}
}

// raceWindow is how long after the last byte of a request the loss of a reused
// connection is put down to the endpoint having closed it as idle. Later the
// endpoint may have read the request, and died of it.
const raceWindow = 100 * time.Millisecond

// stale reports whether an attempt failed with err because the endpoint had
// closed the connection while nothing went over it.
func (a *attempt) stale(err error) bool {
	if !a.reused.Load() || a.answered.Load() || !connectionLost(err) {
		return false
	}
	wrote := a.wrote.Load()
	return wrote == 0 || a.lost()-time.Duration(wrote) < raceWindow
}

// staleness tells whether the request of a stale attempt got out.
func (a *attempt) staleness() call.Failure {
	if a.wrote.Load() == 0 {
		return call.Unsent
	}
	return call.Stale
}

// lost returns how long after the attempt began its connection broke.
func (a *attempt) lost() time.Duration {
	if conn := a.tcpConn(); conn != nil {
		if at := conn.lost.Load(); at != nil {
			return at.Sub(a.began)
		}
	}
	return time.Since(a.began)
}

// refusedStream reports whether an HTTP/2 server says that it did not look at
// the request. net/http repeats it by itself only if nothing of the body was
// read, and wraps the reason in text alone.
func refusedStream(err error) bool {
	if se, ok := errors.AsType[http2.StreamError](err); ok && se.Code == http2.ErrCodeRefusedStream {
		return true
	}
	return strings.Contains(err.Error(), "http2: Transport: cannot retry err [")
}

// connectionLost reports whether the connection broke, rather than that what
// came over it made no sense.
func connectionLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "server closed idle connection")
}

// badRequest reports whether it is for the request's own bytes that net/http
// did not send it, which is the client's doing and no endpoint's.
func badRequest(err error) bool {
	text := err.Error()
	for _, prefix := range []string{"net/http: invalid ", "http: invalid ", "http2: invalid "} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// reason names a failure as metrics do.
func reason(err error) string {
	var ne net.Error
	switch dialErr, dial := errors.AsType[*dialError](err); {
	case dial:
		return dialErr.reason()
	case refusedStream(err):
		return "refused_stream"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "conn_reset"
	case connectionLost(err):
		return "eof"
	case errors.As(err, &ne) && ne.Timeout():
		return "timeout"
	}
	return "other"
}

// failed turns the failure of an attempt into what makes the proxy do the
// right thing: try again, pass an earlier answer on, or give up.
func (a *attempt) failed(err error) (*http.Response, error) {
	late := context.Cause(a.ctx)
	a.end()
	c := a.call
	if gone := a.client.Err(); gone != nil {
		c.GiveUp()
		return nil, gone // which HTTP/3 has another cause for
	}
	_, unreachable := errors.AsType[*dialError](err)
	again, begun := false, false
	switch {
	case errors.Is(late, errNoFirstByte):
		a.blame()
		err = errNoFirstByte
	case badRequest(err):
		c.GiveUp()
		return nil, refusal.BadRequest("invalid_request", "the request cannot be passed on: "+err.Error())
	case unreachable, a.conn.Load() == nil:
		a.endpoint.Health().Failed(&a.model.Policy.Health, true, nil)
		again = c.Failed(call.Unreached, reason(err))
	case refusedStream(err):
		again = c.Failed(call.Unreached, reason(err))
	case a.stale(err) && (a.staleness() == call.Unsent || !c.WasStale()):
		again = c.Failed(a.staleness(), reason(err))
	default:
		a.blame()
		begun = true
		again = a.model.Policy.RetryReset && c.Failed(call.Declined, reason(err))
	}
	if e := a.t.logger.Check(zapcore.WarnLevel, "exchange with endpoint failed"); e != nil && a.t.mayLog(time.Now()) {
		e.Write(zap.String("model", a.model.Name), zap.String("target", a.endpoint.Target()),
			zap.Int("attempt", c.Attempts()), zap.Bool("may_have_begun", begun), zap.Error(err))
	}
	return a.conclude(err, again)
}

// conclude has the proxy try again after err or, if no attempt follows, passes
// on the answer of an earlier one in the place of err.
func (a *attempt) conclude(err error, again bool) (*http.Response, error) {
	if again {
		return nil, reverseproxy.NewDialError(err)
	}
	a.call.GiveUp()
	if res := a.call.Held(); res != nil {
		a.call.Accept()
		return res, nil
	}
	return nil, err
}

// logInterval is the least time between two log lines about failures. A box
// that is off is worth a line now and then, not one per request.
const logInterval = 10 * time.Second

func (t *Transport) mayLog(now time.Time) bool {
	last := t.logged.Load()
	return now.UnixNano()-last >= int64(logInterval) && t.logged.CompareAndSwap(last, now.UnixNano())
}

// blame books a failure of the endpoint that a call found out about.
func (a *attempt) blame() {
	a.endpoint.Health().Failed(&a.model.Policy.Health, false, a.mayEject)
}

// mayEject reports whether one more of the model's endpoints may be ejected.
func (a *attempt) mayEject() bool {
	return a.call.Model().Snapshot.MayEject(a.model.Policy.Health.MaxEjected)
}

// tcpConn returns the attempt's connection, or nil if it is not known.
func (a *attempt) tcpConn() *directConn {
	p := a.conn.Load()
	if p == nil {
		return nil
	}
	conn := *p
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	direct, _ := conn.(*directConn)
	return direct
}

// A timeoutError says which of the times ran out. To the proxy it is a
// timeout, which it answers with 504.
type timeoutError string

func (e timeoutError) Error() string   { return string(e) }
func (e timeoutError) Timeout() bool   { return true }
func (e timeoutError) Temporary() bool { return true }

const (
	errNoFirstByte = timeoutError("no byte of the answer came within timeouts first_byte")
	errGap         = timeoutError("no further byte of the answer came within timeouts gap")
)
