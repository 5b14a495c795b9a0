package sources

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/direct"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const (
	defaultPollInterval = 30 * time.Second
	firstPollRetry      = 500 * time.Millisecond
	pollTimeout         = 5 * time.Second
	maxModelList        = 4 << 20 // bytes
)

// pollers holds a poller for each upstream that any configuration asks for
// its models, so that a reload neither forgets the answers nor asks anew.
var pollers = caddy.NewUsagePool()

// A poller asks one upstream for its models again and again, once started.
// It knows nothing of the configuration that made it: what it learns it
// tells the sources that subscribe to it.
type poller struct {
	key    pollerKey
	spec   routing.Spec
	client *http.Client
	retime chan struct{} // the interval has changed

	mu       sync.Mutex
	names    []string  // as last listed, sorted; kept through an outage
	answered bool      // ever
	since    time.Time // when it was first asked; zero before
	failing  bool      // the last time
	subs     map[*UpstreamModels]time.Duration
	stop     context.CancelFunc // nil until started
}

type pollerKey struct {
	url    string
	header [sha256.Size]byte // hashed, for it may hold secrets
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// loadPoller returns the poller for spec's address and header.
func loadPoller(spec *routing.Spec, dial dialFunc) (*poller, error) {
	key := pollerKey{url: spec.URL()}
	hash := sha256.New()
	for _, field := range slices.Sorted(maps.Keys(spec.Header)) {
		fmt.Fprintf(hash, "%q %q\n", field, spec.Header[field])
	}
	hash.Sum(key.header[:0])
	value, _, err := pollers.LoadOrNew(key, func() (caddy.Destructor, error) {
		return &poller{
			key:    key,
			spec:   *spec,
			client: newPollClient(spec.Scheme, dial),
			retime: make(chan struct{}, 1),
			subs:   make(map[*UpstreamModels]time.Duration),
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return value.(*poller), nil
}

func newPollClient(scheme string, dial dialFunc) *http.Client {
	client := direct.NewClient(scheme, dial)
	client.Timeout = pollTimeout
	return client
}

// subscribe makes p tell s what it learns.
func (p *poller) subscribe(s *UpstreamModels) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs[s] = 0
}

func (p *poller) unsubscribe(s *UpstreamModels) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.subs, s)
}

// start has p ask at s's interval, or more often if another source wants it.
func (p *poller) start(s *UpstreamModels, interval time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.interval()
	p.subs[s] = interval
	if p.stop == nil {
		var ctx context.Context
		ctx, p.stop = context.WithCancel(context.Background())
		go p.run(ctx)
	} else if p.interval() < before {
		select {
		case p.retime <- struct{}{}:
		default:
		}
	}
}

// interval returns the shortest interval of those who started p. Called
// with p.mu held.
func (p *poller) interval() time.Duration {
	shortest := time.Duration(0)
	for _, d := range p.subs {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	return cmp.Or(shortest, defaultPollInterval)
}

// Destruct implements [caddy.Destructor].
func (p *poller) Destruct() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		p.stop()
	}
	return nil
}

// A pollState is what a poller knows at one moment.
type pollState struct {
	names    []string // as listed last; not to be modified
	asked    bool     // ever, with or without an answer
	answered bool     // ever
	overdue  bool     // asked for a while without any answer
}

// settleTime is how long an upstream may take to answer for the first time
// before the gateway stops saying that it is starting.
const settleTime = 10 * time.Second

func (p *poller) state() pollState {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := !p.since.IsZero()
	return pollState{
		names: p.names, asked: asked, answered: p.answered,
		overdue: asked && !p.answered && time.Since(p.since) >= settleTime,
	}
}

func (p *poller) run(ctx context.Context) {
	for retry := firstPollRetry; ; retry = min(2*retry, defaultPollInterval) {
		names, err := p.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		p.record(names, err)

		p.mu.Lock()
		pause := p.interval()
		if !p.answered {
			pause = min(pause, retry)
		}
		p.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.retime:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// ask returns the names of the models that the upstream lists now, sorted.
// Those that no model can have are left out.
func (p *poller) ask(ctx context.Context) ([]string, error) {
	listed, err := list(ctx, p.client, &p.spec)
	if err != nil {
		return nil, err
	}
	return namesOf(listed), nil
}

// A Listed is a model as an upstream lists it.
type Listed struct {
	Name string

	// Window is the context window in tokens, max_model_len; 0 if the
	// upstream does not say.
	Window int
}

// List asks an upstream for its models, over a connection of its own.
func List(ctx context.Context, upstream *routing.Spec) ([]Listed, error) {
	return list(ctx, newPollClient(upstream.Scheme, nil), upstream)
}

func list(ctx context.Context, client *http.Client, upstream *routing.Spec) ([]Listed, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, direct.URL(upstream.Scheme, upstream.Target(), "/v1/models"), nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, upstream.Header)
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the upstream answered /v1/models with status %d", resp.StatusCode)
	}
	return readModelList(resp.Body)
}

// readModelList reads an answer to GET /v1/models.
func readModelList(body io.Reader) ([]Listed, error) {
	b, err := io.ReadAll(io.LimitReader(body, maxModelList+1))
	if err != nil {
		return nil, fmt.Errorf("reading the list of models: %w", err)
	}
	if len(b) > maxModelList {
		return nil, fmt.Errorf("the list of models is longer than %d bytes", maxModelList)
	}
	var list struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("reading the list of models: %w", err)
	}
	if list.Data == nil {
		return nil, errors.New("the list of models has no data")
	}
	var models []struct {
		ID          string          `json:"id"`
		MaxModelLen json.RawMessage `json:"max_model_len"` // may be anything
	}
	if err := json.Unmarshal(list.Data, &models); err != nil { // null is an empty list, as Ollama says it
		return nil, fmt.Errorf("reading the list of models: %w", err)
	}
	listed := make([]Listed, len(models))
	for i, m := range models {
		listed[i].Name = m.ID
		if n, err := strconv.ParseInt(string(m.MaxModelLen), 10, 32); err == nil && n > 0 {
			listed[i].Window = int(n)
		}
	}
	return listed, nil
}

func namesOf(listed []Listed) []string {
	names := make([]string, 0, len(listed))
	for _, m := range listed {
		if CheckName(m.Name) == nil {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// record takes over the outcome of a question and tells the subscribers.
func (p *poller) record(names []string, err error) {
	p.mu.Lock()
	was := p.failing
	news := p.since.IsZero() || !p.answered && err == nil
	p.failing = err != nil
	if p.since.IsZero() {
		p.since = time.Now()
	}
	if err == nil {
		news = news || !slices.Equal(names, p.names)
		p.names, p.answered = names, true
	}
	changed := news || !p.answered // which may be overdue by now
	subs := slices.Collect(maps.Keys(p.subs))
	p.mu.Unlock()

	for _, s := range subs {
		if changed {
			s.refresh()
		}
		s.log(p.spec.Target(), len(names), err, news, was)
	}
}
