package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"text/tabwriter"
)

// result holds what was measured in one case.
type result struct {
	Size      int         `json:"body_bytes"`
	Endpoints int         `json:"endpoints"`
	Proxies   []*measured `json:"proxies"`
}

// measured holds the medians of a proxy over all rounds, and the medians of
// the ratios to stock Caddy, each within a round.
type measured struct {
	Name     string  `json:"name"`
	Rate     float64 `json:"requests_per_second"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	CPU      float64 `json:"cpu_us_per_request"`
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`

	ToStock *ratios `json:"ratio_to_caddy,omitempty"`

	samples []*sample
}

type ratios struct {
	Rate   float64    `json:"requests_per_second"`
	P50    float64    `json:"p50"`
	P99    float64    `json:"p99"`
	CPU    float64    `json:"cpu"`
	CPUAll [2]float64 `json:"cpu_lowest_and_highest"`
}

func (m *measured) add(s *sample) { m.samples = append(m.samples, s) }

func (s *sample) rate() float64   { return float64(s.requests) / s.took.Seconds() }
func (s *sample) cpuPer() float64 { return float64(s.cpu.Microseconds()) / float64(s.requests) }

// target is a bound that the gateway is held to.
type target struct {
	What  string  `json:"what"`
	Got   float64 `json:"got"`
	Bound float64 `json:"bound"`
	Least bool    `json:"bound_is_least"`
	Met   bool    `json:"met"`
}

type report struct {
	Machine     string    `json:"machine"`
	Rounds      int       `json:"rounds"`
	Concurrency int       `json:"concurrency"`
	Cases       []*result `json:"cases"`
	Targets     []target  `json:"targets"`
	Met         bool      `json:"met"`
}

func newReport(o *options, cases []*result) *report {
	r := &report{
		Machine: fmt.Sprintf("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()),
		Rounds:  o.rounds, Concurrency: o.concurrency, Cases: cases, Met: true,
	}
	for _, c := range cases {
		c.summarise()
	}
	for _, c := range cases {
		r.judge(c)
	}
	r.judgePools()
	for _, t := range r.Targets {
		r.Met = r.Met && t.Met
	}
	return r
}

func (r *result) proxy(name string) *measured {
	for _, m := range r.Proxies {
		if m.Name == name {
			return m
		}
	}
	return nil
}

func (r *result) summarise() {
	stock := r.proxy(nameStock)
	for _, m := range r.Proxies {
		m.Rate = m.median((*sample).rate)
		m.CPU = m.median((*sample).cpuPer)
		m.P50 = m.median(func(s *sample) float64 { return float64(s.p50.Microseconds()) / 1000 })
		m.P99 = m.median(func(s *sample) float64 { return float64(s.p99.Microseconds()) / 1000 })
		for _, s := range m.samples {
			m.Requests += s.requests
			m.Failed += s.failed
		}
		if stock == nil || m == stock {
			continue
		}
		cpu := m.against(stock, (*sample).cpuPer)
		m.ToStock = &ratios{
			Rate:   median(m.against(stock, (*sample).rate)),
			P50:    median(m.against(stock, func(s *sample) float64 { return float64(s.p50) })),
			P99:    median(m.against(stock, func(s *sample) float64 { return float64(s.p99) })),
			CPU:    median(cpu),
			CPUAll: [2]float64{slices.Min(cpu), slices.Max(cpu)},
		}
	}
}

func (m *measured) median(f func(*sample) float64) float64 {
	values := make([]float64, len(m.samples))
	for i, s := range m.samples {
		values[i] = f(s)
	}
	return median(values)
}

// against returns the ratios of a figure to that of another proxy in the same
// round.
func (m *measured) against(o *measured, f func(*sample) float64) []float64 {
	values := make([]float64, len(m.samples))
	for i, s := range m.samples {
		if values[i] = f(s) / f(o.samples[i]); math.IsNaN(values[i]) || math.IsInf(values[i], 0) {
			values[i] = 0 // too short a round to have taken any CPU time
		}
	}
	return values
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	if len(v)%2 == 1 {
		return v[mid]
	}
	return (v[mid-1] + v[mid]) / 2
}

// judge compares the gateway with stock Caddy.
func (r *report) judge(c *result) {
	g := c.proxy(nameGateway)
	if g == nil || g.ToStock == nil {
		return
	}
	cpu, rate := 1.05, 0.95
	if c.Size > 16<<10 {
		cpu, rate = 1.10, 0.90
	}
	where := fmt.Sprintf("%s, %d endpoints", sizeName(c.Size), c.Endpoints)
	r.want("CPU per request to stock Caddy, "+where, g.ToStock.CPU, cpu, false)
	r.want("requests/s to stock Caddy, "+where, g.ToStock.Rate, rate, true)
	r.want("p99 to stock Caddy, "+where, g.ToStock.P99, 1.10, false)
}

// judgePools compares the gateway's cost with many endpoints to that with few.
func (r *report) judgePools() {
	for _, few := range r.Cases {
		for _, many := range r.Cases {
			if few.Size != many.Size || few.Endpoints >= many.Endpoints {
				continue
			}
			a, b := few.proxy(nameGateway), many.proxy(nameGateway)
			if a == nil || b == nil {
				continue
			}
			r.want(fmt.Sprintf("CPU per request with %d endpoints to that with %d, %s", many.Endpoints, few.Endpoints, sizeName(few.Size)),
				median(b.against(a, (*sample).cpuPer)), 1.10, false)
		}
	}
}

func (r *report) want(what string, got, bound float64, least bool) {
	met := got <= bound
	if least {
		met = got >= bound
	}
	r.Targets = append(r.Targets, target{What: what, Got: got, Bound: bound, Least: least, Met: met})
}

func (r *report) failed() int {
	n := 0
	for _, c := range r.Cases {
		for _, m := range c.Proxies {
			n += m.Failed
		}
	}
	return n
}

func (r *report) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func (r *report) write(w io.Writer) {
	fmt.Fprintf(w, "%s; %d rounds, concurrency %d; medians, ratios to stock Caddy in the same round\n", r.Machine, r.Rounds, r.Concurrency)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range r.Cases {
		fmt.Fprintf(w, "\nBody %s, %d endpoints\n", sizeName(c.Size), c.Endpoints)
		fmt.Fprintln(tw, "proxy\trequests/s\tp50 ms\tp99 ms\tCPU µs/request\t│ requests/s\tp50\tp99\tCPU\t(lowest–highest)\t")
		for _, m := range c.Proxies {
			fmt.Fprintf(tw, "%s\t%.0f\t%.2f\t%.2f\t%.0f\t", m.Name, m.Rate, m.P50, m.P99, m.CPU)
			if t := m.ToStock; t != nil {
				fmt.Fprintf(tw, "│ %.2f\t%.2f\t%.2f\t%.2f\t(%.2f–%.2f)\t", t.Rate, t.P50, t.P99, t.CPU, t.CPUAll[0], t.CPUAll[1])
			} else {
				fmt.Fprint(tw, "│ \t\t\t\t\t")
			}
			fmt.Fprintln(tw)
		}
		_ = tw.Flush()
		for _, m := range c.Proxies {
			if m.Failed > 0 {
				fmt.Fprintf(w, "%s: %d requests failed\n", m.Name, m.Failed)
			}
		}
	}
	if len(r.Targets) == 0 {
		return
	}
	fmt.Fprintln(w, "\nTargets")
	tw = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, t := range r.Targets {
		sign, verdict := "≤", "met"
		if t.Least {
			sign = "≥"
		}
		if !t.Met {
			verdict = "MISSED"
		}
		fmt.Fprintf(tw, "  %s\t%.2f\t%s %.2f\t%s\n", t.What, t.Got, sign, t.Bound, verdict)
	}
	_ = tw.Flush()
}
