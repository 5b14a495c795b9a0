// Command bench compares the gateway with other reverse proxies on this
// machine: a stock Caddy of the same version, and nginx and HAProxy where they
// are installed. All of them proxy the same chats to the same backend, which
// answers at once, in rounds that alternate between them.
//
// What counts are the ratios to stock Caddy within one run, and of the figures
// the CPU time that the proxy takes per request: it is the one that moves least
// with whatever else the machine is doing.
//
// It talks to loopback addresses only, for a bounded time. It needs Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	rounds      int
	duration    time.Duration
	requests    int
	sizes       []int
	endpoints   []int
	concurrency int
	chats       int
	proxies     []string
	gateway     string
	stock       string
	asJSON      bool
	strict      bool
	cpuProfile  string
	edits       bool

	// Figures of their own, in the place of the comparison.
	streams, uploads, events int
	uploadSize               int
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == backendArg {
		fmt.Fprintln(os.Stderr, "backend:", serveBackend())
		os.Exit(1)
	}
	opts, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = run(ctx, opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.IntVar(&o.rounds, "rounds", 9, "rounds per proxy and case")
	f.DurationVar(&o.duration, "duration", 700*time.Millisecond, "length of a round")
	f.IntVar(&o.requests, "requests", 0, "end a round after this many requests, if that is sooner (0: the duration alone)")
	sizes := f.String("sizes", "2k,100k", "sizes of chat bodies in bytes; k stands for 1024")
	endpoints := f.String("endpoints", "3,1000", "numbers of endpoints behind each proxy")
	f.IntVar(&o.concurrency, "concurrency", 16, "connections that send requests, each one at a time")
	f.IntVar(&o.chats, "chats", 64, "different chats, each with a system prompt and a session of its own")
	proxies := f.String("proxies", "gateway,caddy,nginx,haproxy", "what to measure; what is not installed is left out")
	f.StringVar(&o.gateway, "gateway", "", "a gateway built already (default: build ./xcaddy)")
	f.BoolVar(&o.edits, "edits", false, "have the gateway change each body: engines with a name of their own for the model, and limits of tokens that are cut")
	f.StringVar(&o.stock, "caddy", "", "a stock Caddy built already (default: build the version of go.mod)")
	f.BoolVar(&o.asJSON, "json", false, "print the results as JSON")
	f.BoolVar(&o.strict, "strict", false, "exit with status 1 if a target is missed")
	f.StringVar(&o.cpuProfile, "cpuprofile", "", "write CPU profiles of the gateway, and beside them of stock Caddy (for pprof -diff_base), taken in rounds of their own")
	f.IntVar(&o.streams, "streams", 0, "measure instead the memory that so many open streams take, with bodies of each of -sizes")
	f.IntVar(&o.uploads, "uploads", 0, "measure instead the memory that so many uploads at once take")
	f.IntVar(&o.uploadSize, "upload-size", 8<<20, "size of each upload in bytes")
	f.IntVar(&o.events, "events", 0, "measure instead how long so many events of a stream take to the client, in each round")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.streams+o.uploads+o.events > 0 {
		chosen := false
		f.Visit(func(set *flag.Flag) { chosen = chosen || set.Name == "proxies" })
		if !chosen { // the others are not set up for so many connections
			*proxies = nameGateway + "," + nameStock
		}
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: everything is set by flags", f.Arg(0))
	}
	var err error
	if o.sizes, err = parseCounts(*sizes); err != nil {
		return nil, fmt.Errorf("-sizes: %w", err)
	}
	if o.endpoints, err = parseCounts(*endpoints); err != nil {
		return nil, fmt.Errorf("-endpoints: %w", err)
	}
	for _, n := range o.endpoints {
		if n > maxEndpoints {
			return nil, fmt.Errorf("-endpoints: %d is more than the %d that loopback addresses are made for", n, maxEndpoints)
		}
	}
	for _, size := range o.sizes {
		if size < minBody {
			return nil, fmt.Errorf("-sizes: a chat takes %d bytes at least", minBody)
		}
	}
	if o.rounds < 1 || o.duration <= 0 || o.concurrency < 1 || o.chats < 1 {
		return nil, errors.New("-rounds, -duration, -concurrency and -chats must be above 0")
	}
	if o.streams < 0 || o.streams > maxEndpoints/2 || o.uploads < 0 || o.events < 0 || o.uploadSize < minBody {
		return nil, fmt.Errorf("-streams, -uploads, -events and -upload-size must not be negative, and streams at most %d", maxEndpoints/2)
	}
	o.proxies = strings.Split(*proxies, ",")
	return o, nil
}

// parseCounts reads whole numbers separated by commas.
func parseCounts(s string) ([]int, error) {
	var counts []int
	for field := range strings.SplitSeq(s, ",") {
		digits, thousands := strings.CutSuffix(strings.ToLower(strings.TrimSpace(field)), "k")
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number above 0", field)
		}
		if thousands {
			n *= 1024
		}
		counts = append(counts, n)
	}
	return counts, nil
}

func run(ctx context.Context, o *options) error {
	// The load shares the machine with what it measures: it takes no more
	// than one core, and the same for every proxy.
	runtime.GOMAXPROCS(1)

	root, err := moduleRoot()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	candidates, err := prepare(ctx, o, root, dir)
	if err != nil {
		return err
	}
	if o.streams+o.uploads+o.events > 0 {
		return runLong(ctx, o, candidates, dir)
	}
	backend, err := startBackend()
	if err != nil {
		return err
	}
	defer backend.stop()

	var cases []*result
	for _, size := range o.sizes {
		more, err := runSize(ctx, o, candidates, dir, backend.port, size)
		if err != nil {
			return fmt.Errorf("%s: %w", sizeName(size), err)
		}
		cases = append(cases, more...)
	}
	r := newReport(o, cases)
	if o.asJSON {
		err = r.writeJSON(os.Stdout)
	} else {
		r.write(os.Stdout)
	}
	if err != nil {
		return err
	}
	if failed := r.failed(); failed > 0 {
		return fmt.Errorf("%d requests failed", failed)
	}
	if o.strict && !r.Met {
		return errors.New("a target was missed")
	}
	return nil
}

// entrant is a proxy that runs in front of a number of endpoints, and what is
// measured of it.
type entrant struct {
	*proxy
	endpoints int
	measured  *measured
}

// runSize measures all proxies with all numbers of endpoints with bodies of
// one size. All run side by side, idle but for the one whose turn it is.
func runSize(ctx context.Context, o *options, candidates []*candidate, dir string, backendPort, size int) ([]*result, error) {
	chats := makeChats(o.chats, size)
	var cases []*result
	var entrants []*entrant
	defer func() {
		for _, e := range entrants {
			e.stop()
		}
	}()
	for _, n := range o.endpoints {
		res := &result{Size: size, Endpoints: n}
		cases = append(cases, res)
		for _, c := range candidates {
			p, err := c.start(dir, loopback(n, backendPort))
			if err != nil {
				return nil, fmt.Errorf("starting %s with %d endpoints: %w", c.name, n, err)
			}
			m := &measured{Name: c.name}
			res.Proxies = append(res.Proxies, m)
			entrants = append(entrants, &entrant{proxy: p, endpoints: n, measured: m})
			if err := p.check(chats[0]); err != nil {
				return nil, fmt.Errorf("%s with %d endpoints: %w", c.name, n, err)
			}
		}
	}

	order := slices.Clone(entrants)
	// A round that does not count opens the connections.
	for round := range o.rounds + 1 {
		progress("%s: round %d of %d", sizeName(size), round, o.rounds)
		l := load{chats: chats, concurrency: o.concurrency, duration: o.duration, requests: o.requests}
		if round == 0 {
			l.duration = min(l.duration, 500*time.Millisecond)
		}
		for _, e := range order {
			if ctx.Err() != nil {
				return nil, errors.New("interrupted")
			}
			m, err := e.measure(l)
			if err != nil {
				return nil, fmt.Errorf("%s with %d endpoints: %w", e.candidate.name, e.endpoints, err)
			}
			if round > 0 {
				e.measured.add(m)
			}
		}
		slices.Reverse(order) // A B B A: what drifts, drifts for all
	}
	progress("")

	for _, e := range entrants {
		if o.cpuProfile == "" || e.candidate.name != nameGateway && e.candidate.name != nameStock {
			continue
		}
		path := profilePath(o, e.candidate.name, size, e.endpoints)
		if err := e.profile(path, chats, o.concurrency); err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
		fmt.Fprintln(os.Stderr, "CPU profile in", path)
	}
	return cases, nil
}

// profilePath returns the file that -cpuprofile names, or one beside it for
// stock Caddy and for each of several cases.
func profilePath(o *options, proxy string, size, endpoints int) string {
	ext := filepath.Ext(o.cpuProfile)
	path := strings.TrimSuffix(o.cpuProfile, ext)
	if len(o.sizes) > 1 || len(o.endpoints) > 1 {
		path += fmt.Sprintf("-%s-%d", strings.ReplaceAll(sizeName(size), " ", ""), endpoints)
	}
	if proxy != nameGateway {
		path += "-" + proxy
	}
	return path + ext
}

// moduleRoot returns the directory of the gateway's module, which is the
// working directory or one above it.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module "+modulePath+"\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("run this inside a clone of the repository: it builds the gateway")
		}
		dir = parent
	}
}

// progress shows a line that the next one takes the place of, on a terminal.
func progress(format string, args ...any) {
	if st, err := os.Stderr.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		fmt.Fprintf(os.Stderr, "\r\033[K"+format, args...)
	}
}
