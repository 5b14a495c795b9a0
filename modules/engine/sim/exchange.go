package sim

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// errGone ends an exchange whose client left.
var errGone = errors.New("the client left")

// An exchange is one request and its answer, with the fault that befalls it.
type exchange struct {
	engine *Engine
	w      http.ResponseWriter
	ctl    *http.ResponseController
	r      *http.Request
	body   []byte
	note   *note
	fault  Fault

	api   api  // whose shape errors have
	began bool // the answer's headers are sent
	sent  int  // tokens of a stream
	usage usage
	buf   []byte
}

// An api is one of the APIs that an engine speaks.
type api uint8

const (
	openAI api = iota
	anthropicAPI
	ollamaAPI
)

func apiOf(path string) api {
	switch {
	case path == "/v1/messages":
		return anthropicAPI
	case strings.HasPrefix(path, "/api/"):
		return ollamaAPI
	}
	return openAI
}

// handle makes an http.Handler of one endpoint: it reads the body, writes the
// request down, lets the fault that is set strike, and answers errors.
func (e *Engine) handle(inference bool, serve func(x *exchange) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{engine: e, w: w, r: r, ctl: http.NewResponseController(w), api: apiOf(r.URL.Path)}
		body, err := readBody(w, r)
		x.body = body
		x.note = e.history.add(r, body)
		x.fault = e.faults.strike(r.URL.Path, inference)
		if err == nil {
			err = x.serve(serve)
		}
		if err != nil {
			x.fail(err)
		}
	})
}

func (x *exchange) serve(serve func(x *exchange) error) error {
	if err := sleep(x.r.Context(), time.Duration(x.fault.DelayHeaders)); err != nil {
		return err
	}
	if x.fault.Reset == ResetBeforeHeaders {
		if err := sleep(x.r.Context(), time.Duration(x.fault.Delay)); err != nil {
			return err
		}
		x.reset()
	}
	if x.fault.Status != 0 {
		return x.refuse()
	}
	return serve(x)
}

// refuse answers with the status, header and body of the fault.
func (x *exchange) refuse() error {
	body := x.fault.Body
	if body == "" {
		body = string(x.errorBody(&apiError{status: x.fault.Status, message: "simulated failure"}))
	}
	if strings.HasPrefix(body, "{") {
		x.w.Header().Set("Content-Type", "application/json")
	}
	return x.write(x.fault.Status, []byte(body))
}

// fail answers err, if there is anybody to tell and still a way to.
func (x *exchange) fail(err error) {
	refusal, ok := errors.AsType[*apiError](err)
	if x.began || !ok {
		// A stream that cannot go on must not look complete.
		panic(http.ErrAbortHandler)
	}
	x.w.Header().Set("Content-Type", "application/json")
	if err := x.write(refusal.status, x.errorBody(refusal)); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// errorBody is what vLLM says, in the shape of the API that was called.
func (x *exchange) errorBody(e *apiError) []byte {
	var body any
	switch x.api {
	case ollamaAPI:
		body = map[string]string{"error": e.message}
	case anthropicAPI:
		kind := anthropicErrors[e.status]
		if kind == "" {
			kind = "api_error"
		}
		body = struct {
			Type  string            `json:"type"`
			Error map[string]string `json:"error"`
		}{"error", map[string]string{"type": kind, "message": e.message}}
	default:
		var refusal struct {
			Error struct {
				Message string  `json:"message"`
				Type    string  `json:"type"`
				Param   *string `json:"param"`
				Code    int     `json:"code"`
			} `json:"error"`
		}
		refusal.Error.Message, refusal.Error.Code = e.message, e.status
		refusal.Error.Type = strings.TrimSuffix(strings.ReplaceAll(http.StatusText(e.status), " ", ""), "Error") + "Error"
		if e.param != "" {
			refusal.Error.Param = &e.param
		}
		body = refusal
	}
	b, _ := json.Marshal(body) // strings and numbers: cannot fail
	return b
}

var anthropicErrors = map[int]string{
	http.StatusBadRequest:            "invalid_request_error",
	http.StatusNotFound:              "not_found_error",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests:       "rate_limit_error",
	529:                              "overloaded_error",
}

// reply answers with v in one piece.
func (x *exchange) reply(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.replyBytes("application/json", b)
}

func (x *exchange) replyBytes(mediaType string, body []byte) error {
	x.w.Header().Set("Content-Type", mediaType)
	return x.write(http.StatusOK, body)
}

// write answers with a status and a whole body, or with as much of it as the
// fault allows.
func (x *exchange) write(status int, body []byte) error {
	for name, value := range x.fault.Headers {
		x.w.Header().Set(name, value)
	}
	if err := x.delay(); err != nil {
		return err
	}
	bodyless := status == http.StatusNoContent || status == http.StatusNotModified
	if !bodyless {
		x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	x.began = true
	x.w.WriteHeader(status)
	switch x.fault.Reset {
	case ResetAfterHeaders:
		x.reset()
	case ResetMidStream:
		_, _ = x.w.Write(body[:len(body)/2])
		x.reset()
	}
	if bodyless || x.r.Method == http.MethodHead {
		return nil
	}
	_, err := x.w.Write(body)
	return err
}

// delay holds back the first byte of the body for as long as the fault says.
func (x *exchange) delay() error {
	d := x.fault.Delay
	x.fault.Delay = 0
	return sleep(x.r.Context(), time.Duration(d))
}

// The media types of streams.
const (
	eventStream = "text/event-stream; charset=utf-8"
	lineStream  = "application/x-ndjson"
)

// stream sends status and headers of a stream, at once, as engines do before
// they have computed anything.
func (x *exchange) stream(mediaType string) error {
	h := x.w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", "no-cache")
	for name, value := range x.fault.Headers {
		h.Set(name, value)
	}
	x.began = true
	x.w.WriteHeader(http.StatusOK)
	if err := x.ctl.Flush(); err != nil {
		return err
	}
	if x.fault.Reset == ResetAfterHeaders {
		x.reset()
	}
	return x.delay()
}

// event writes one event, with a name if it has one.
func (x *exchange) event(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b := x.buf[:0]
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	b = append(append(append(b, "data: "...), data...), "\n\n"...)
	x.buf = b
	_, err = x.w.Write(b)
	return err
}

// line writes one line of JSON.
func (x *exchange) line(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = x.w.Write(append(data, '\n'))
	return err
}

// token ends the writing of a token's events. They are sent off at once unless
// nothing holds up the next ones.
func (x *exchange) token() error {
	x.sent++
	if x.fault.Reset == ResetMidStream && x.sent >= max(1, x.fault.AfterTokens) {
		x.reset()
	}
	if x.sent > 1 && x.engine.cfg.DecodeRate == 0 {
		return nil
	}
	return x.ctl.Flush()
}

// run takes a sequence through the engine and adds up what it took.
func (x *exchange) run(s *sequence, emit func(word string) error) error {
	defer x.tally(s) // also if a fault resets the connection
	return x.engine.run(x.r.Context(), s, emit)
}

func (x *exchange) tally(s *sequence) {
	if s.choice == 0 {
		x.usage.Prompt += s.prompt
		x.usage.Details.Cached += s.cached
	}
	x.usage.Completion += s.generated
	x.usage.Total = x.usage.Prompt + x.usage.Completion
	x.engine.history.update(x.note, func(n *note) {
		n.PromptTokens, n.CachedTokens = x.usage.Prompt, x.usage.Details.Cached
	})
}

// collect runs a sequence and returns its answer in one piece.
func (x *exchange) collect(s *sequence) (string, error) {
	err := x.run(s, func(string) error { return nil })
	return s.said(), err
}

// reset sends what was written and tears the connection down: a TCP reset under
// HTTP/1, the reset of the stream under HTTP/2, where others share the
// connection. It does not return.
func (x *exchange) reset() {
	if x.began {
		_ = x.ctl.Flush()
	}
	if conn, _, err := x.ctl.Hijack(); err == nil {
		for {
			wrapped, ok := conn.(interface{ NetConn() net.Conn })
			if !ok {
				break
			}
			conn = wrapped.NetConn()
		}
		if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
	panic(http.ErrAbortHandler)
}

// id returns a new name for an answer: the client's own request ID where it
// sent one, as in vLLM.
func (x *exchange) id(prefix string) string {
	if id := x.r.Header.Get("X-Request-Id"); id != "" && len(id) <= 128 {
		return prefix + id
	}
	var b [16]byte
	_, _ = rand.Read(b[:])
	return prefix + hex.EncodeToString(b[:])
}
