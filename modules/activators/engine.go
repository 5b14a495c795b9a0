package activators

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// engines holds what is known of each engine that any configuration wakes, so
// that a reload forgets nothing and ends no process.
var engines = caddy.NewUsagePool()

// A plan is what one configuration says about an engine. It does not change.
type plan struct {
	start    *action // of http
	ready    *action
	interval time.Duration // between probes of one that is awake
	idle     time.Duration // after which it is stopped; 0 is never
	lever    lever

	// inflight returns how many calls are under way where the engine
	// answers, whoever has made them; nil if nobody counts them.
	inflight func() int

	// asked is when start was answered well last and the engine has not
	// been awake since; zero if it was not. Guarded by the engine's mu.
	asked time.Time
}

// A lever switches an engine on and off.
type lever interface {
	// on begins to start e's engine; an error says that it does not.
	on(ctx context.Context, e *engine, model string) error

	// off stops it and returns when it is gone. Only one that can is asked.
	off(ctx context.Context, e *engine) error

	// can reports whether there is something to stop. The caller holds
	// e.mu.
	can(e *engine) bool

	// leave is called when the lever's plan is none of e's any more. The
	// caller holds e.mu.
	leave(e *engine)
}

// An engine is one that sleeps and wakes. What is known of it is found out by
// a goroutine that runs from the first start of a configuration that wakes it
// until the last is gone.
type engine struct {
	client *http.Client
	kick   chan struct{}   // look at once
	life   context.Context // of the goroutine; nil before that runs
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended; nil before it runs

	mu    sync.Mutex
	plans []*plan // of the configurations that have started; the last holds
	model string  // that was asked for last, for the log

	calls     int           // under way
	drained   chan struct{} // if somebody waits for none: closed then
	idleSince time.Time

	// What the probes say. A probe that began before the last turn is not
	// believed.
	known  chan struct{} // closed when the first since it was in doubt is in; nil from then on
	awake  bool
	turn   int
	misses int    // in a row
	asleep string // why it is not awake, for clients
	detail string // the same for the log

	waking   bool
	asking   *asking        // of http, while the start request is made
	requests sync.WaitGroup // for start
	wanted   int            // by how many that wake it for calls that still wait
	starting bool           // of exec: the process is being started
	failed   string         // why it could not be woken; "" if that is not known
	retryAt  time.Time
	backOff  time.Duration
	parting  chan struct{} // before it is stopped: closed when it is used after all
	stopped  chan struct{} // while it is being stopped: closed when it is gone
	process  *process      // of exec, while it runs
	readyAt  time.Time     // when that was ready first; zero before

	state   routing.State
	changed chan struct{}
}

func loadEngine(key any, dial dialFunc) (*engine, error) {
	v, _, err := engines.LoadOrNew(key, func() (caddy.Destructor, error) {
		return &engine{
			client: newClient(dial), kick: make(chan struct{}, 1), known: make(chan struct{}),
			state: probing, changed: make(chan struct{}),
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*engine), nil
}

// begin makes p, for this model, the plan that holds.
func (e *engine) begin(p *plan, model string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.plan(); old != nil {
		if reflect.DeepEqual(old.start, p.start) {
			p.asked = old.asked
		} else {
			e.waking = false // perhaps now it does wake
		}
	}
	e.plans = append(e.plans, p)
	e.model = cmp.Or(e.model, model)
	if e.process != nil {
		e.process.move(p.ready.url)
	}
	if e.done == nil {
		e.life, e.cancel = context.WithCancel(context.Background())
		e.done = make(chan struct{})
		go e.run(e.life)
		return
	}
	e.publish()
	e.look()
}

// end forgets p. If it was the last to begin, because its configuration failed
// to start, the one before holds again.
func (e *engine) end(p *plan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(e.plans, p)
	if i < 0 {
		return
	}
	e.plans = slices.Delete(e.plans, i, i+1)
	if now := e.plan(); now != nil {
		if e.process != nil {
			e.process.move(now.ready.url)
		}
		if i == len(e.plans) && !now.asked.IsZero() {
			now.asked = time.Now() // the calls that wait are about to have it woken again
		}
	}
	p.lever.leave(e)
}

// Destruct implements [caddy.Destructor]. Calls may still be under way.
func (e *engine) Destruct() error {
	e.mu.Lock()
	cancel, done := e.cancel, e.done
	e.mu.Unlock()
	if done != nil {
		cancel()
		<-done
		e.requests.Wait()
	}
	return nil
}

// look has the goroutine look at once.
func (e *engine) look() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// plan returns the plan that holds, nil if there is none any more. The caller
// holds mu.
func (e *engine) plan() *plan {
	if len(e.plans) == 0 {
		return nil
	}
	return e.plans[len(e.plans)-1]
}

// use counts a call.
func (e *engine) use(model string) (done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	e.model = model
	e.stay()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.calls--
		if e.calls > 0 {
			return
		}
		e.idleSince = time.Now()
		if e.drained != nil {
			close(e.drained)
			e.drained = nil
		}
	}
}

// stay calls off what is about to stop the engine. The caller holds mu.
func (e *engine) stay() {
	if e.parting == nil {
		return
	}
	close(e.parting)
	e.parting = nil
	e.idleSince = time.Now()
	e.publish()
}

// busy reports whether calls are under way where the engine answers, also such
// as it was not told of: they began before its model was one that sleeps, or
// when it was asked elsewhere whether it is ready.
func (e *engine) busy() bool {
	e.mu.Lock()
	plans := slices.Clone(e.plans)
	e.mu.Unlock()
	return slices.ContainsFunc(plans, func(p *plan) bool { return p.inflight != nil && p.inflight() > 0 })
}

// none returns a channel that is closed as soon as no call is under way. The
// caller holds mu.
func (e *engine) none() <-chan struct{} {
	if e.calls == 0 {
		atOnce := make(chan struct{})
		close(atOnce)
		return atOnce
	}
	if e.drained == nil {
		e.drained = make(chan struct{})
	}
	return e.drained
}

// settled waits until it is known whether the engine is awake and it is not
// being stopped. The caller holds mu.
func (e *engine) settled(ctx context.Context) error {
	for e.known != nil || e.stopped != nil {
		known, gone, done := e.known, e.stopped, e.done
		e.mu.Unlock()
		var err error
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-done:
			err = errLeft
		case <-known:
		case <-gone:
		}
		e.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

var errLeft = errors.New("the model has left the configuration")

// activate has the engine woken as p says, unless it turns out to be awake.
func (e *engine) activate(ctx context.Context, p *plan, model string) error {
	e.mu.Lock()
	if e.known != nil {
		e.waking = true // if it sleeps: nobody else is to begin then
	}
	if err := e.settled(ctx); err != nil {
		e.waking = false
		e.publish()
		e.mu.Unlock()
		return err
	}
	e.model = model
	e.stay()
	if e.awake {
		e.mu.Unlock()
		return nil
	}
	if wait := time.Until(e.retryAt); wait > 0 && e.backOff > 0 {
		defer e.mu.Unlock()
		return &startError{e.failed, wait}
	}
	e.waking, e.failed, e.idleSince = true, "", time.Now()
	e.wanted++
	context.AfterFunc(ctx, e.unwanted)
	e.publish()
	e.look()
	e.mu.Unlock()

	err := p.lever.on(ctx, e, model)
	if err != nil {
		e.mu.Lock()
		e.waking = false
		e.publish()
		e.mu.Unlock()
	}
	return err
}

// refused notes that a call could not connect to the engine: whether it is
// awake is to be found out anew.
func (e *engine) refused() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.awake || e.known != nil || e.plan() == nil {
		return // no news
	}
	e.known = make(chan struct{})
	e.turn++
	e.publish()
	e.look()
}

// unwanted notes that the calls that somebody woke it for wait no more.
func (e *engine) unwanted() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted--
	e.idleSince = time.Now()
	e.forsaken()
}

// probing is the state until a probe is in, at the start and when the engine
// refuses calls, which wait for it.
var probing = routing.State{Phase: routing.Asleep, Message: "it is not known yet whether it is awake", Substage: "probing"}

// publish works out the state and tells those who wait for another. The caller
// holds mu.
func (e *engine) publish() {
	var s routing.State
	switch {
	case e.known != nil:
		s = probing
	case e.parting != nil:
		s = routing.State{Phase: routing.Asleep, Message: "it is idle", Substage: "stopping"}
	case e.stopped != nil && e.failed == "":
		s = routing.State{Phase: routing.Asleep, Message: "it is being stopped", Substage: "stopping"}
	case e.awake:
	case e.failed != "":
		s = routing.State{Phase: routing.Failed, Message: e.failed, RetryAfter: e.backOff}
	case e.waking || e.process != nil:
		s = routing.State{Phase: routing.Asleep, Message: cmp.Or(e.asleep, "it has not answered yet"), Substage: "starting"}
	default:
		s = routing.State{Phase: routing.Asleep, Message: e.asleep}
	}
	if s == e.state {
		return
	}
	before := e.state
	e.state = s
	close(e.changed)
	e.changed = make(chan struct{})
	if p := e.plan(); p != nil && (before.Phase != s.Phase || before == probing) {
		fields := []zap.Field{zap.String("model", e.model), zap.String("ready", p.ready.place()), zap.String("message", s.Message)}
		if s.Phase != routing.Serving && e.detail != "" {
			fields = append(fields, zap.String("detail", e.detail))
		}
		caddy.Log().Named("flexinfer").Info("model is "+s.Phase.String(), fields...)
	}
}

// fail notes that the engine could not be woken, for now. The reason is one that
// clients may know. The caller holds mu.
func (e *engine) fail(reason string) error {
	e.backOff = min(max(2*e.backOff, firstBackOff), longestBackOff)
	e.retryAt = time.Now().Add(e.backOff)
	err := &startError{bounded(reason), e.backOff}
	e.waking, e.failed = false, err.message
	return err
}

// How long an engine that could not be woken is left alone.
const (
	firstBackOff   = time.Second
	longestBackOff = time.Minute
)

// State implements [routing.Watcher] for the activators.
func (e *engine) State() (routing.State, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state, e.changed
}
