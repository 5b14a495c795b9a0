package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// footprint is what the gateway holds when nothing is under way.
type footprint struct {
	goroutines, descriptors int
	rss, heap               int64
}

func (f footprint) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %d MiB resident, %d KiB of heap", f.goroutines, f.descriptors, f.rss>>20, f.heap>>10)
}

// By how many goroutines and descriptors, and how much heap, two footprints may
// differ.
const (
	noise     = 25
	noiseHeap = 12 << 20
)

// within reports whether f is no more than begun but for noise.
func (f footprint) within(begun footprint) bool {
	return f.goroutines <= begun.goroutines+noise && f.descriptors <= begun.descriptors+noise && f.heap <= begun.heap+noiseHeap
}

// report counts.
type report struct {
	mu       sync.Mutex
	counts   counts
	examples []string
	leftover []string
	panics   int
	leaks    int
	races    int
}

type counts struct {
	requests             map[string]int
	failed, cut          int
	excused              int
	provoked, vanished   int
	reloads, badReloads  int
	kills, wentBack      int
	unexpectedlyReloaded int
}

func newReport() *report { return &report{counts: counts{requests: make(map[string]int)}} }

// reset forgets what the warming up counted, but not what was wrong.
func (r *report) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.counts
	r.counts = counts{
		requests: make(map[string]int), failed: old.failed, cut: old.cut,
		wentBack: old.wentBack, unexpectedlyReloaded: old.unexpectedlyReloaded,
	}
}

func (r *report) count(f func(*counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.counts)
}

func (r *report) excused()  { r.count(func(c *counts) { c.excused++ }) }
func (r *report) provoked() { r.count(func(c *counts) { c.provoked++ }) }
func (r *report) vanished() { r.count(func(c *counts) { c.vanished++ }) }
func (r *report) killed()   { r.count(func(c *counts) { c.kills++ }) }

func (r *report) reload(good bool) {
	r.count(func(c *counts) {
		if good {
			c.reloads++
		} else {
			c.badReloads++
		}
	})
}

// request counts one that should not have failed.
func (r *report) request(model string, err error) {
	r.count(func(c *counts) {
		c.requests[model]++
		switch {
		case errors.Is(err, errCut):
			c.cut++
		case err != nil:
			c.failed++
		default:
			return
		}
		r.example("%s: %v", model, err)
	})
}

func (r *report) fail(format string, args ...any) {
	r.count(func(c *counts) {
		c.unexpectedlyReloaded++
		r.example(format, args...)
	})
}

func (r *report) back(series string, from, to float64) {
	r.count(func(c *counts) {
		c.wentBack++
		r.example("%s went from %v to %v", series, from, to)
	})
}

// example keeps the first of what is wrong, and shows it at once.
func (r *report) example(format string, args ...any) {
	const most = 20
	if len(r.examples) < most {
		line := time.Now().Format("15:04:05.000 ") + fmt.Sprintf(format, args...)
		r.examples = append(r.examples, line)
		say("%s", line)
	}
}

// progress tells how it goes.
func (s *scene) progress(begun time.Time) {
	goroutines, descriptors := s.gateway.Goroutines(s.tb), s.gateway.Descriptors(s.tb)
	r := s.report
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts
	fmt.Printf("%8s  %d requests, %d failed, %d cut; %d + %d reloads, %d kills, %d vanished; %d goroutines, %d descriptors, %d MiB\n",
		time.Since(begun).Round(time.Second), total(c.requests), c.failed, c.cut, c.reloads, c.badReloads, c.kills, c.vanished,
		goroutines, descriptors, s.gateway.RSS(s.tb)>>20)
}

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// idle returns what is counted as in flight, reserved or queued two seconds
// after the last client has left.
func (s *scene) idle() (left []string) {
	harness.Within(2*time.Second, func() bool {
		left = nil
		for addr, n := range s.gateway.Inflight(s.tb) {
			if n != 0 {
				left = append(left, fmt.Sprintf("%s=%d", addr, n))
			}
		}
		m := s.gateway.Metrics(s.tb)
		for _, name := range []string{"flexinfer_proxy_active_connections", "flexinfer_proxy_upstream_inflight", "flexinfer_proxy_queue_depth"} {
			for _, series := range m.Series(name) {
				if series.Value != 0 {
					left = append(left, series.String())
				}
			}
		}
		return len(left) == 0
	})
	return left
}

// rest is how long the gateway may hold what clients have left behind.
const rest = 2 * idle

// settle returns what the gateway holds when nothing is under way, once that is
// no more than begun, or at the latest after so long.
func (s *scene) settle(begun *footprint, atMost time.Duration) (f footprint) {
	const grace = 2 * time.Second // as the harness configures
	deadline := time.Now().Add(atMost)
	for {
		time.Sleep(2 * grace)
		heap := s.gateway.Heap(s.tb)
		f = footprint{s.gateway.Goroutines(s.tb), s.gateway.Descriptors(s.tb), s.gateway.RSS(s.tb), heap}
		if begun == nil || f.within(*begun) || time.Now().After(deadline) || s.tb.ctx.Err() != nil {
			return f
		}
	}
}

// profile writes what is left, for a look at who holds it.
func (s *scene) profile() {
	if s.profiles == "" {
		return
	}
	for file, path := range map[string]string{"goroutines.txt": "goroutine?debug=2", "heap.pprof": "heap?gc=1"} {
		res := s.gateway.AdminGet(s.tb, "/debug/pprof/"+path)
		if err := os.WriteFile(filepath.Join(s.profiles, file), res.Body, 0o600); err != nil {
			s.tb.Errorf("%v", err)
		}
	}
}

// zero is what has to be zero.
type zero struct {
	what string
	n    int
}

// zeros lists what has to be zero.
func (r *report) zeros(before, after footprint) []zero {
	over := func(n int) int { return max(0, n-noise) }
	c := r.counts
	return []zero{
		{"requests that failed and should not have", c.failed},
		{"answers that were cut and should not have been", c.cut},
		{"reloads that went wrong", c.unexpectedlyReloaded},
		{"counters that went back", c.wentBack},
		{"in flight, reserved or queued after 2 s", len(r.leftover)},
		{fmt.Sprintf("goroutines more than at the beginning, beyond %d", noise), over(after.goroutines - before.goroutines)},
		{fmt.Sprintf("descriptors more than at the beginning, beyond %d", noise), over(after.descriptors - before.descriptors)},
		{fmt.Sprintf("KiB of heap more than at the beginning, beyond %d", noiseHeap>>10), int(max(0, after.heap-before.heap-noiseHeap) >> 10)},
		{"panics in the log", r.panics},
		{"leaked counts in the log", r.leaks},
		{"races in the log", r.races},
	}
}

func (r *report) good(before, after footprint) bool {
	for _, z := range r.zeros(before, after) {
		if z.n != 0 {
			return false
		}
	}
	return true
}

func (r *report) write(w io.Writer, took time.Duration, before, after footprint, leftover, log []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leftover = leftover
	for _, line := range log {
		switch {
		case strings.Contains(line, "DATA RACE"):
			r.races++
		case strings.Contains(line, "panic:"), strings.Contains(line, "panic serving"):
			r.panics++
		case strings.Contains(line, "dropped in-flight calls that were never released"):
			r.leaks++
		default:
			continue
		}
		fmt.Fprintf(w, "log: %.2000s\n", line)
	}
	for _, s := range append(r.examples, leftover...) {
		fmt.Fprintln(w, s)
	}
	c := r.counts
	fmt.Fprintf(w, "\n%s\n", took.Round(time.Second))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what string, value any) { fmt.Fprintf(tw, "  %s\t%v\n", what, value) }
	row("requests", total(c.requests))
	for _, model := range []string{steady, closing, mortal} {
		row("  to "+model, c.requests[model])
	}
	row("failed because their engine was killed", c.excused)
	row("requests to upstreams that misbehave", c.provoked)
	row("requests whose client vanished", c.vanished)
	row("reloads", c.reloads)
	row("reloads that failed, as they should", c.badReloads)
	row("engines killed", c.kills)
	row("goroutines", grown(int64(before.goroutines), int64(after.goroutines)))
	row("descriptors", grown(int64(before.descriptors), int64(after.descriptors)))
	row("resident MiB", grown(before.rss>>20, after.rss>>20))
	row("heap KiB", grown(before.heap>>10, after.heap>>10))
	_ = tw.Flush()
	fmt.Fprintln(w, "to be zero:")
	for _, z := range r.zeros(before, after) {
		mark := ""
		if z.n != 0 {
			mark = "WRONG"
		}
		fmt.Fprintf(tw, "  %s\t%v\t%s\n", z.what, z.n, mark)
	}
	_ = tw.Flush()
}

func grown(from, to int64) string { return fmt.Sprintf("%d → %d (%+d)", from, to, to-from) }
