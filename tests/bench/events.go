package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// direct stands for no proxy at all.
const direct = "none"

// measureEvents compares how long an event takes from the engine to the
// client. Each is sent when the client has the one before, so that nothing is
// ever on the way but one.
func measureEvents(ctx context.Context, o *options, candidates []*candidate, dir string) error {
	times := make(map[string][]time.Duration)
	take := func(name, addr string, e *engine) error {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		took, err := timeEvents(conn, addr, e, o.events)
		times[name] = append(times[name], took...)
		return err
	}
	e, err := startEngine()
	if err != nil {
		return err
	}
	defer e.stop()
	var proxies []*proxy
	defer func() {
		for _, p := range proxies {
			p.stop()
		}
	}()
	for _, c := range candidates {
		p, err := c.start(dir, loopback(3, e.port()))
		if err != nil {
			return fmt.Errorf("starting %s: %w", c.name, err)
		}
		proxies = append(proxies, p)
	}
	for round := range o.rounds {
		progress("events: round %d of %d", round+1, o.rounds)
		if err := take(direct, fmt.Sprintf("127.0.0.1:%d", e.port()), e); err != nil {
			return err
		}
		for _, p := range proxies {
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			if err := take(p.candidate.name, p.listen, e); err != nil {
				return fmt.Errorf("%s: %w", p.candidate.name, err)
			}
		}
		slices.Reverse(proxies)
	}
	progress("")

	fmt.Printf("\n%d events of a stream, one at a time, from the engine to the client; what a proxy adds is beside the time without one\n", o.rounds*o.events)
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "proxy\tp50 µs\tp99 µs\tadded p50 µs\tadded p50 to stock Caddy\t")
	slices.Sort(times[direct])
	base := quantile(times[direct], 0.5)
	added := func(name string) float64 {
		slices.Sort(times[name])
		return float64(quantile(times[name], 0.5)-base) / 1e3
	}
	for _, name := range append([]string{direct}, names(candidates)...) {
		ratio := "-"
		if stock := times[nameStock]; len(stock) > 0 && name != direct {
			ratio = fmt.Sprintf("%.2f", added(name)/added(nameStock))
		}
		a := added(name)
		fmt.Fprintf(tw, "%s\t%.0f\t%.0f\t%.0f\t%s\t\n", name, float64(quantile(times[name], 0.5))/1e3, float64(quantile(times[name], 0.99))/1e3, a, ratio)
	}
	return tw.Flush()
}

func names(candidates []*candidate) []string {
	list := make([]string, len(candidates))
	for i, c := range candidates {
		list[i] = c.name
	}
	return list
}

// timeEvents sends n events of a stream and returns how long each took.
func timeEvents(conn net.Conn, addr string, e *engine, n int) ([]time.Duration, error) {
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Write(makeChats(1, 2048)[0].request(addr)); err != nil {
		return nil, err
	}
	call, err := e.next()
	if err != nil {
		return nil, err
	}
	defer call.conn.Close()
	if _, err := io.WriteString(call.conn, streamHead); err != nil {
		return nil, err
	}
	br := bufio.NewReader(conn)
	times := make([]time.Duration, 0, n)
	message := chunk(event)
	for range n {
		begun := time.Now()
		if _, err := io.WriteString(call.conn, message); err != nil {
			return nil, err
		}
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				return nil, fmt.Errorf("in the place of an event: %q, %w", line, err)
			}
			if strings.HasPrefix(line, "data: ") {
				break
			}
		}
		times = append(times, time.Since(begun))
	}
	_, err = io.WriteString(call.conn, streamEnd)
	return times, err
}
