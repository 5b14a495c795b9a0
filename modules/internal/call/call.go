// Package call holds what the gateway knows of one request: the model it asks
// for, the bytes of its body, its routing keys, and the lease of the attempt
// under way. Every part of the gateway that takes part in a request finds the
// same Call in the request's context, or makes it.
package call

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/coding"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/key"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/responses"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/usage"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Settings are what a configuration says about all calls. They do not change.
type Settings struct {
	// MaxBody is the largest body that is read, in bytes.
	MaxBody int64

	// Keys says how keys are found.
	Keys *key.Config

	// Clamp has limits of tokens cut down to the model's context window
	// less PromptReserve tokens, or less an estimate of the prompt if
	// PromptReserve is 0.
	Clamp         bool
	PromptReserve int

	// MapModel has answers name the model as the request does.
	MapModel bool

	// AskUsage has streams report their usage even if the client does not
	// ask for it, and hides the report from the client.
	AskUsage bool

	// Validate refuses requests that engines would refuse for their shape.
	Validate bool

	// Responses knows which endpoints hold the answers of /v1/responses.
	Responses *responses.Store

	// Lanes are told when a call ends, so that one that waits can go.
	Lanes *catalog.Lanes

	// LeaseTTL is the age at which the ledger takes a lease for a leak.
	LeaseTTL time.Duration

	// Logger gets the routing decisions, at level debug.
	Logger *zap.Logger
}

// A Call is one request on its way. Its methods are for the request's own
// goroutine.
type Call struct {
	set     *Settings
	started time.Time
	method  string
	id      string // see RequestID

	// The request as it came.
	header  http.Header
	path    string // without /model/<name>
	body    []byte
	buf     *buffer     // holds body, unless body is small
	length  int64       // of the body, -1 if it was not read to its end
	doc     *openai.Doc // the scanned body, nil if it is none, or no more there
	read    bool
	readErr error
	badDoc  error
	form    bool // the body is a multipart form

	// A body that came compressed: body is what was in it.
	coded     bool
	raw       *buffer
	badCoding error
	decodes   bool // it goes on without its coding

	// What endpoints are to see otherwise.
	edits      []openai.Edit
	clamped    string
	hidesUsage bool
	sentName   string // of the model, in the last attempt

	// Where a form names the model, once that is asked for.
	formModels     []openai.Span
	haveFormModels bool

	// What it asks for.
	asked    string
	resolved bool
	assigned bool // see Assign
	model    *catalog.Model
	adapter  string
	group    *catalog.Group // the label that it asks for, nil if it is none
	catalog  *catalog.Catalog
	dry      bool // see DryRun

	// How it waits.
	background bool
	primed     bool // the first attempt has its endpoint already

	// The keys, once they are asked for.
	session, prefix         routing.Key
	haveSession, havePrefix bool

	// What routes it, and where it went.
	chosen       routing.Strategy // instead of the model's own
	chosenName   string
	strategyName string // of the last decision
	request      routing.Request
	decision     routing.Decision
	attempts     int
	retried      string // why the next attempt is one more
	gaveUp       bool
	stale, fresh bool           // see Stale and WantsFresh
	held         *http.Response // see Hold
	admitted     time.Time      // when it was found fit to be passed on
	refused      time.Time      // when it was, after all, since it waited in vain
	refusal      *refusal.Refusal
	dialled      time.Time       // when the first attempt began
	bound        responses.Place // what the request follows up
	boundID      string          // of the answer
	foreign      bool            // the attempt's endpoint is of another's pool
	tellRoute    bool
	answered     Answer
	ended        bool

	mu      sync.Mutex // guards what is below
	lease   *routing.Lease
	renew   *time.Timer
	counted *atomic.Int64 // the calls of the model, this one included
	used    func()        // tells the model's keeper that the call has ended
	over    bool          // nothing may be held any more
}

// An Answer is what an upstream said, as far as the gateway watched it.
type Answer struct {
	// TTFT is the time from the request's arrival to the first byte of the
	// answer's body that is not a comment; 0 if none came.
	TTFT time.Duration

	// Broken reports that the upstream broke off in the middle.
	Broken bool

	// Usage is what the engine counted.
	Usage usage.Tokens
}

type contextKey struct{}

// From returns the call of the request that ctx belongs to, or nil.
func From(ctx context.Context) *Call {
	c, _ := ctx.Value(contextKey{}).(*Call)
	return c
}

// Begin returns the request's call, and makes it if there is none yet: then it
// becomes part of the request's context. Nothing of the body is read. The
// caller ends the call when it is done with the request, with End.
func Begin(r *http.Request, set *Settings) *Call {
	if c := From(r.Context()); c != nil {
		return c
	}
	return begin(r, set)
}

// Join is Begin for those who do not know when the request is done with. A
// call that it makes gives up its lease when the server is done with the
// request, or the client has left, and leaves its memory to the garbage
// collector unless somebody ends it.
func Join(r *http.Request, set *Settings) *Call {
	if c := From(r.Context()); c != nil {
		return c
	}
	done := r.Context()
	c := begin(r, set)
	context.AfterFunc(done, c.letGo)
	return c
}

func begin(r *http.Request, set *Settings) *Call {
	c := &Call{set: set, started: time.Now(), method: r.Method, header: r.Header, path: r.URL.Path, length: -1}
	c.background = isBackground(r.Header)
	// In place, so that whoever holds r already sees the same context.
	*r = *r.WithContext(context.WithValue(r.Context(), contextKey{}, c))
	return c
}

// ReadBody reads the request's body to its end, once, and gives r a body that
// reads the same bytes again. It returns an error if the body is larger than
// the settings allow, or that of reading it; r's body then reads what has come
// and goes on where the reading stopped.
func (c *Call) ReadBody(r *http.Request) error {
	if c.read {
		return c.readErr
	}
	c.read = true
	c.readErr = c.readBody(r)
	return c.readErr
}

func (c *Call) readBody(r *http.Request) error {
	switch {
	case r.Method == http.MethodConnect: // a connection, which has no end
		return nil
	case r.Body == nil, r.Body == http.NoBody, r.ContentLength == 0:
		c.length = 0
		return nil
	}
	if r.ContentLength > c.set.MaxBody {
		return errTooLarge
	}
	buf, err := readBody(r.Body, r.ContentLength, c.set.MaxBody)
	c.buf = buf
	if err != nil {
		r.Body = &resumedBody{Reader: io.MultiReader(&attemptBody{buf: buf, rest: [][]byte{buf.b}}, r.Body), Closer: r.Body}
		return err
	}
	if coding.Encoded(r.Header) {
		c.decode(r)
	}
	if c.buf != nil {
		c.body = c.buf.b
		if len(c.body) <= small {
			c.body = bytes.Clone(c.body)
			c.buf.release()
			c.buf = nil
		}
	}
	c.length = int64(len(c.body))
	c.Rewind(r)
	r.TransferEncoding = nil
	c.scan(r)
	return nil
}

// decode reads a body that came compressed, and keeps it as it came too: it
// may go to somebody who expects that. The caller holds the body in buf.
func (c *Call) decode(r *http.Request) {
	c.coded, c.raw, c.buf = true, c.buf, nil
	plain, err := coding.NewReader(r.Header["Content-Encoding"], bytes.NewReader(c.raw.b), c.set.MaxBody)
	if err == nil {
		defer func() { _ = plain.Close() }()
		c.buf, err = readBody(plain, -1, c.set.MaxBody)
	}
	if err != nil {
		if c.buf != nil {
			c.buf.release()
			c.buf = nil
		}
		c.badCoding = err
	}
}

// scan looks at a body that is JSON, by its type or, where the type is
// missing or odd, by its first byte.
func (c *Call) scan(r *http.Request) {
	switch mediaType(r.Header) {
	case typeForm:
		c.form = true
		return
	case typeOther:
		if !startsLikeObject(c.body) {
			return
		}
	}
	doc := docs.Get().(*openai.Doc)
	if c.badDoc = doc.Scan(c.body); c.badDoc == nil {
		c.doc = doc
	}
}

var docs = sync.Pool{New: func() any { return new(openai.Doc) }}

// startsLikeObject reports whether a body of no known type may be JSON.
func startsLikeObject(body []byte) bool {
	body = bytes.TrimLeft(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")), " \t\r\n")
	return len(body) > 0 && body[0] == '{'
}

// Unread reports whether r's body was left where it is, in part at least.
func (c *Call) Unread(r *http.Request) bool {
	return c.length < 0 && r.ContentLength != 0
}

// Body returns the length of the body in bytes, or -1 if it was not read.
func (c *Call) Body() int64 { return c.length }

// DryRun has the call only be explained: it counts nothing.
func (c *Call) DryRun() { c.dry = true }

// Started returns the time at which the call was made.
func (c *Call) Started() time.Time { return c.started }

// Asked returns the model's name as the request has it, or "".
func (c *Call) Asked() string { return c.asked }

// Model returns the model that the request resolved to, or nil.
func (c *Call) Model() *catalog.Model { return c.model }

// Adapter returns the LoRA adapter that was asked for, or "".
func (c *Call) Adapter() string { return c.adapter }

// StrategyName returns the name of the strategy that picks for this call.
func (c *Call) StrategyName() string { return c.strategyName }

// Decision returns the last decision about the call.
func (c *Call) Decision() routing.Decision { return c.decision }

// Attempts returns how many endpoints were picked so far.
func (c *Call) Attempts() int { return c.attempts }

// Answer is where the transport notes what the upstream said.
func (c *Call) Answer() *Answer { return &c.answered }

// SessionKey implements [routing.Keys].
func (c *Call) SessionKey() routing.Key {
	if !c.haveSession {
		c.haveSession = true
		c.session = c.set.Keys.Session(c.header, c.doc)
	}
	return c.session
}

// PrefixKey implements [routing.Keys].
func (c *Call) PrefixKey() routing.Key {
	if !c.havePrefix {
		c.havePrefix = true
		c.prefix = c.set.Keys.Head(c.modelName(), c.adapter, c.header, c.doc)
		if !c.prefix.Usable() {
			c.prefix = key.Fallback(c.SessionKey())
		}
	}
	return c.prefix
}

// Holds reports whether the request has a usable key in a source.
func (c *Call) Holds(source routing.KeySource) bool {
	return c.set.Keys.Holds(source, c.modelName(), c.adapter, c.header, c.doc)
}

func (c *Call) modelName() string {
	if c.model == nil {
		return ""
	}
	return c.model.Name
}

// Continues implements [routing.Keys].
func (c *Call) Continues() bool { return key.Continues(c.doc) }

// Interface guard
var _ routing.Keys = (*Call)(nil)
