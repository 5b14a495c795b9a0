package health

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/direct"
)

// A Target is an endpoint that is to be probed.
type Target struct {
	// ID is the endpoint's identity. One endpoint is probed once, however
	// many targets with equal probes have its ID.
	ID string

	// Scheme is http, https or h2c; Base is host:port and the base path.
	Scheme, Base string

	// Header holds fields to set on each request.
	Header http.Header

	Probe Probe
	State *State
}

// A Prober probes a set of targets. Create one with [NewProber].
type Prober struct {
	clients          map[string]*http.Client // by scheme
	untested, failed func(target string, err error)

	running map[probed]*running
	wg      sync.WaitGroup
}

type probed struct {
	id    string
	probe Probe
}

type running struct {
	Target
	stop context.CancelFunc
}

// NewProber returns a prober without targets. untested is told of a target
// whose certificate the prober does not trust: the probe counts for nothing,
// because calls may be set up to trust it. failed is told of a probe that
// failed while nothing ill was thought of the target. Both may be nil.
func NewProber(untested, failed func(target string, err error)) *Prober {
	p := &Prober{
		clients:  make(map[string]*http.Client),
		untested: untested, failed: failed,
		running: make(map[probed]*running),
	}
	for _, scheme := range []string{"http", "https", "h2c"} {
		p.clients[scheme] = direct.NewClient(scheme, nil)
	}
	return p
}

// Follow makes targets those that are probed, until ctx is done. It goes on
// with those that stay. It must not be called by two goroutines at once.
func (p *Prober) Follow(ctx context.Context, targets []Target) {
	gone := maps.Clone(p.running)
	for _, t := range targets {
		t.Probe = t.Probe.normal()
		k := probed{t.ID, t.Probe}
		if r := p.running[k]; r != nil {
			if _, first := gone[k]; !first || r.same(&t) {
				delete(gone, k)
				continue
			}
			r.stop()
		}
		delete(gone, k)
		own, stop := context.WithCancel(ctx)
		p.running[k] = &running{Target: t, stop: stop}
		p.wg.Go(func() { p.probe(own, &t) })
	}
	for k, r := range gone {
		r.stop()
		delete(p.running, k)
	}
}

func (t *Target) same(o *Target) bool {
	return t.Scheme == o.Scheme && t.Base == o.Base && t.State == o.State && maps.EqualFunc(t.Header, o.Header, slices.Equal)
}

// Close ends all probes and waits for their end.
func (p *Prober) Close() {
	p.Follow(context.Background(), nil)
	p.wg.Wait()
}

// firstWithin is the time over which the first probes of many endpoints are
// spread.
const firstWithin = time.Second

// probe probes a target until ctx is done.
func (p *Prober) probe(ctx context.Context, t *Target) {
	timer := time.NewTimer(rand.N(min(t.Probe.Interval, firstWithin)))
	defer timer.Stop()
	warned := false
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if wait := t.State.Claim(t.Probe); wait > 0 {
			timer.Reset(wait)
			continue
		}
		err := p.ask(ctx, t)
		_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
		switch {
		case ctx.Err() != nil:
			t.State.Abandon(t.Probe)
			return
		case distrusted:
			if !warned && p.untested != nil {
				warned = true
				p.untested(t.Base, err)
			}
		default:
			if err != nil && t.State.Healthy() && p.failed != nil {
				p.failed(t.Base, err)
			}
			t.State.Probed(t.Probe, err == nil)
		}
		timer.Reset(0) // Claim knows when
	}
}

// ask makes one probe. The error says why it failed; nil is a pass.
func (p *Prober) ask(ctx context.Context, t *Target) error {
	ctx, cancel := context.WithTimeout(ctx, t.Probe.Timeout)
	defer cancel()
	path := t.Probe.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, direct.URL(t.Scheme, t.Base, path), nil)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, t.Header)
	res, err := p.clients[t.Scheme].Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return errors.New("it answered " + res.Status)
	}
	return nil
}
