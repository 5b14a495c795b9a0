package activators

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/guard"
)

func init() {
	caddy.OnExit(func(context.Context) { processes.finish() })
}

// A process is one that exec has started.
type process struct {
	*guard.Process
	model string
	owner *engine
	grace time.Duration
	ready string // where it answers; guarded by processes.mu
	tail  tail

	outputs [2]*os.File
	written chan struct{} // closed when all output has been read
	over    chan struct{} // closed when nothing of it is left
}

// processes are those that run, also such that no configuration has any more.
var processes = processList{running: make(map[*process]bool), exit: make(chan struct{})}

type processList struct {
	mu      sync.Mutex
	running map[*process]bool
	exit    chan struct{}  // closed when the gateway exits
	stops   sync.WaitGroup // of those that are being stopped
}

// finish waits until all processes are gone. Each is being stopped by then, and
// is killed when its time is over.
func (l *processList) finish() {
	close(l.exit)
	l.stops.Wait()
}

// at returns a process of another engine than e that answers at this URL.
func (l *processList) at(url string, e *engine) *process {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.running {
		if p.owner != e && p.ready == url {
			return p
		}
	}
	return nil
}

// move notes where the process is asked whether it is ready.
func (p *process) move(url string) {
	processes.mu.Lock()
	defer processes.mu.Unlock()
	p.ready = url
}

// startProcess starts a command for e. What it writes is logged; its end is not
// noticed before begin.
func startProcess(e *engine, model, ready string, grace time.Duration, c guard.Command) (*process, error) {
	p := &process{model: model, owner: e, grace: grace, ready: ready, written: make(chan struct{}), over: make(chan struct{})}
	for i, write := range []**os.File{&c.Stdout, &c.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(err, closeAll(p.outputs[:i]))
		}
		p.outputs[i], *write = r, w
		defer w.Close()
	}
	var err error
	if p.Process, err = guard.Start(c); err != nil {
		return nil, errors.Join(err, closeAll(p.outputs[:]))
	}
	processes.mu.Lock()
	processes.running[p] = true
	processes.mu.Unlock()

	var output sync.WaitGroup
	output.Go(func() { p.log(p.outputs[0], "stdout") })
	output.Go(func() { p.log(p.outputs[1], "stderr") })
	go func() {
		output.Wait()
		close(p.written)
	}()
	return p, nil
}

// begin has the end of the process noticed.
func (p *process) begin() { go p.follow() }

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// log logs what the process writes to one of its outputs.
func (p *process) log(r *os.File, stream string) {
	eachLine(r, func(line string) {
		if stream == "stderr" {
			p.tail.add(line)
		}
		caddy.Log().Named("flexinfer.exec").Info("output", zap.String("model", p.model), zap.String("stream", stream), zap.String("line", line))
	})
}

// How long output that a process has written may take to be read: of one that
// has ended, and then of those that it has left behind.
const (
	readTime  = 250 * time.Millisecond
	closeTime = time.Second
)

// follow waits for the end of the process, and ends what it leaves behind.
func (p *process) follow() {
	<-p.Exited()
	within(p.written, readTime)
	p.owner.exited(p)
	p.Stop(p.grace)
	<-p.Gone()
	if !within(p.written, closeTime) {
		for _, f := range p.outputs {
			_ = f.SetReadDeadline(time.Now()) // somebody has left the group and holds it
		}
		<-p.written
	}
	_ = closeAll(p.outputs[:])
	processes.mu.Lock()
	delete(processes.running, p)
	processes.mu.Unlock()
	close(p.over)
}

// within waits for a channel to be closed, for a while.
func within(c <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}

// stop ends the process in the background.
func (p *process) stop(grace time.Duration) { processes.stops.Go(func() { p.Stop(grace) }) }

// retire ends the process in the background, when the calls that are under way
// have ended or the gateway exits.
func (p *process) retire(drained <-chan struct{}, grace time.Duration) {
	processes.stops.Go(func() {
		if !caddy.Exiting() {
			select {
			case <-drained:
			case <-p.over:
			case <-processes.exit:
			}
		}
		p.Stop(grace)
	})
}

// exited notes that e's process has ended by itself, if it did.
func (e *engine) exited(p *process) {
	reason := p.Reason().Error()
	logger := caddy.Log().Named("flexinfer.exec").With(zap.String("model", p.model), zap.String("reason", reason), zap.String("stderr", bounded(p.tail.String())))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.process != p || e.stopped != nil {
		logger.Info("process has ended")
		return
	}
	logger.Warn("process has ended by itself")
	e.process, e.detail = nil, bounded(p.tail.String())
	switch {
	case e.readyAt.IsZero():
		background := ""
		if reason == "exit status 0" {
			background = "; the command must not go to the background"
		}
		_ = e.fail(ended(reason) + " while it started" + background)
	case e.steady():
		e.backOff = 0
	default:
		_ = e.fail(ended(reason) + " soon after it was ready")
	}
	gone := e.stopping()
	go func() {
		<-p.over
		e.mu.Lock()
		defer e.mu.Unlock()
		e.gone(gone)
	}()
}

func ended(reason string) string {
	if strings.HasPrefix(reason, "the ") {
		return reason // that of the guard
	}
	return "the process ended with " + reason
}

// steadyTime is how long a process has to run after it was ready: one that ends
// earlier has failed, for the next may well end as soon.
const steadyTime = 10 * time.Second

// steady reports whether the process has run for that long. The caller holds mu.
func (e *engine) steady() bool {
	return !e.readyAt.IsZero() && time.Since(e.readyAt) >= steadyTime
}

var errTaken = errors.New("another process answers where this one is asked whether it is ready")

// taken returns an error if the process of another engine answers where p's is
// asked whether it is ready: one that is to be stopped, because it has other
// options.
func (e *engine) taken(p *plan) error {
	if other := processes.at(p.ready.url, e); other != nil {
		return errTaken
	}
	return nil
}
