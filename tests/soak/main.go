// Command soak runs the built gateway under everything at once, for as long as
// it is told to, and then tells what came of it: steady chats of many clients
// over HTTP/1.1 and HTTP/2, reloads of which half fail late, clients that vanish
// in every phase of a request, clients that read slowly, engines that are
// killed and come back, and upstreams that reset, refuse and close.
//
// Requests to engines that nothing happens to must never fail. Requests to a
// model with an engine that is killed may fail if that was while they were under
// way. Requests to upstreams that misbehave may fail as they like. Whatever
// happens, nothing may be left of it.
//
// It ends with status 1 unless all that has to be zero is. It talks to loopback
// addresses only, and needs Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

type options struct {
	duration time.Duration
	gateway  string
	race     bool
	seed     uint64
	clients  int
	reload   time.Duration
	kill     time.Duration
	profiles string
}

func main() {
	o := new(options)
	flag.DurationVar(&o.duration, "duration", 10*time.Minute, "how long it runs")
	flag.StringVar(&o.gateway, "gateway", "", "a gateway built already (default: build ./xcaddy)")
	flag.BoolVar(&o.race, "race", false, "build the gateway with the race detector")
	flag.Uint64Var(&o.seed, "seed", 1, "what the clients do, and when, depends on this alone")
	flag.IntVar(&o.clients, "clients", 24, "clients with steady traffic, each with one request at a time")
	flag.DurationVar(&o.reload, "reload", time.Second, "time between two reloads, on average")
	flag.DurationVar(&o.kill, "kill", 3*time.Second, "time between two kills of an engine, on average")
	flag.StringVar(&o.profiles, "profiles", "", "a directory for profiles of the goroutines and the heap that are left at the end")
	flag.Parse()
	if flag.NArg() > 0 || o.duration <= 0 || o.clients < 1 || o.reload <= 0 || o.kill <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok := soak(ctx, o)
	harness.RemoveBinary()
	if !ok {
		os.Exit(1)
	}
}

// soak runs everything and reports whether all is well.
func soak(ctx context.Context, o *options) bool {
	if o.gateway != "" {
		_ = os.Setenv("GATEWAY_BIN", o.gateway)
	}
	if o.race {
		_ = os.Setenv("GATEWAY_RACE", "1")
	}
	t := newTB(ctx)
	defer t.cleanUp()
	s := &scene{options: o, tb: t, report: newReport()}
	s.set()

	warm := min(max(o.duration/20, 2*time.Second), 15*time.Second)
	say("warming up for %s", warm)
	s.play(ctx, warm, nil)
	before := s.settle(nil, 0)
	s.report.reset()
	fmt.Printf("soaking for %s with seed %d; at the beginning %s\n", o.duration, o.seed, before)
	begun := time.Now()
	s.play(ctx, o.duration, func() { s.progress(begun) })
	idle := s.idle()
	after := s.settle(&before, rest)
	s.profile()
	s.report.write(os.Stdout, time.Since(begun), before, after, idle, s.gateway.Logs().Lines())
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		fmt.Println("interrupted")
	}
	return s.report.good(before, after) && !t.Failed()
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
