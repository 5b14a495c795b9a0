package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// The figures below are about what is open for long: they are taken of a proxy
// that has nothing else to do, in a process that has just begun.

// event is what engines send for a token.
const event = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1750000000,"model":"` + modelName +
	`","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}` + "\n\n"

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	streamEnd  = "0\r\n\r\n"
)

func chunk(data string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(data), data) }

// An engine takes requests and leaves the answers to the measurement.
type engine struct {
	ln    net.Listener
	calls chan *engineCall
}

// engineCall is a request that has come in whole.
type engineCall struct{ conn net.Conn }

func startEngine() (*engine, error) {
	ln, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return nil, err
	}
	e := &engine{ln: ln, calls: make(chan *engineCall, maxEndpoints)}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go e.take(conn)
		}
	}()
	return e, nil
}

// take reads one request of a connection, which serves no other.
func (e *engine) take(conn net.Conn) {
	br := bufio.NewReaderSize(conn, 4<<10)
	h, err := readHead(br)
	if err == nil {
		err = h.discardBody(br)
	}
	if err != nil || !conn.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
		_ = conn.Close()
		return
	}
	e.calls <- &engineCall{conn}
}

// next returns the next request.
func (e *engine) next() (*engineCall, error) {
	select {
	case c := <-e.calls:
		return c, nil
	case <-time.After(30 * time.Second):
		return nil, errors.New("a request did not reach the engine")
	}
}

func (e *engine) port() int { return e.ln.Addr().(*net.TCPAddr).Port }

func (e *engine) stop() { _ = e.ln.Close() }

// runLong takes the figures that were asked for.
func runLong(ctx context.Context, o *options, candidates []*candidate, dir string) error {
	for _, m := range []struct {
		on   bool
		what func(context.Context, *options, []*candidate, string) error
	}{{o.streams > 0, measureStreams}, {o.uploads > 0, measureUploads}, {o.events > 0, measureEvents}} {
		if !m.on {
			continue
		}
		if err := m.what(ctx, o, candidates, dir); err != nil {
			return err
		}
	}
	return nil
}

// alone starts a proxy of its own for a measurement, in front of the engine.
func alone(c *candidate, dir string, use func(p *proxy, e *engine) error) error {
	e, err := startEngine()
	if err != nil {
		return err
	}
	defer e.stop()
	p, err := c.start(dir, loopback(3, e.port()))
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.name, err)
	}
	defer p.stop()
	// What is made once is made now.
	conn, _, err := open(p, e, makeChats(1, 2048)[0])
	if err == nil {
		_ = conn.Close()
		time.Sleep(time.Second)
		err = use(p, e)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// open opens a stream through the proxy and returns when its first event is
// there.
func open(p *proxy, e *engine, c *chat) (net.Conn, *engineCall, error) {
	conn, err := net.DialTimeout("tcp", p.listen, 10*time.Second)
	if err != nil {
		return nil, nil, err
	}
	_, err = conn.Write(c.request(p.listen))
	if err != nil {
		return nil, nil, err
	}
	call, err := e.next()
	if err != nil {
		return nil, nil, err
	}
	if _, err := io.WriteString(call.conn, streamHead+chunk(event)); err != nil {
		return nil, nil, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	return conn, call, readUntil(conn, event)
}

// readUntil reads until the end of what came is text. It reads without a
// buffer: of thousands of connections the client should take little memory.
func readUntil(r io.Reader, text string) error {
	var got strings.Builder
	p := make([]byte, 1024)
	for {
		n, err := r.Read(p)
		got.Write(p[:n])
		if strings.Contains(got.String(), strings.TrimSpace(text)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("instead of an event came %.200q: %w", got.String(), err)
		}
	}
}

// connections are those that stay open while memory is measured.
type connections []net.Conn

func (c *connections) keep(conns ...net.Conn) { *c = append(*c, conns...) }

// weigh runs measure with a proxy alone, what it takes of memory before, and
// connections that are closed in the end.
func weigh(c *candidate, dir string, measure func(p *proxy, e *engine, before memory, conns *connections) error) error {
	return alone(c, dir, func(p *proxy, e *engine) error {
		before, err := memoryOf(p.cmd.Process.Pid)
		if err != nil {
			return err
		}
		var conns connections
		defer func() {
			for _, conn := range conns {
				_ = conn.Close()
			}
		}()
		return measure(p, e, before, &conns)
	})
}

// measureStreams compares what an open stream takes of a proxy's memory.
func measureStreams(ctx context.Context, o *options, candidates []*candidate, dir string) error {
	for _, size := range o.sizes {
		chats := makeChats(o.chats, size)
		perStream := make(map[string]float64)
		for _, c := range candidates {
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			progress("streams: %s", c.name)
			err := weigh(c, dir, func(p *proxy, e *engine, before memory, conns *connections) error {
				for i := range o.streams {
					conn, call, err := open(p, e, chats[i%len(chats)])
					if err != nil {
						return fmt.Errorf("stream %d: %w", i, err)
					}
					conns.keep(conn, call.conn)
				}
				time.Sleep(3 * time.Second)
				after, err := memoryOf(p.cmd.Process.Pid)
				perStream[c.name] = float64(after.now-before.now) / float64(o.streams)
				return err
			})
			if err != nil {
				return err
			}
		}
		progress("")
		fmt.Printf("\n%d open streams, bodies of %s\n", o.streams, sizeName(size))
		table(candidates, perStream, "resident KiB per stream", 1<<10)
	}
	return nil
}

// measureUploads compares how much memory bodies take that are uploaded at
// once: all but the last byte, and then all of it with the answer to come.
func measureUploads(ctx context.Context, o *options, candidates []*candidate, dir string) error {
	c8 := makeChats(1, o.uploadSize)[0]
	uploading, peak := make(map[string]float64), make(map[string]float64)
	all := float64(o.uploads) * float64(o.uploadSize)
	for _, c := range candidates {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		progress("uploads: %s", c.name)
		err := weigh(c, dir, func(p *proxy, e *engine, before memory, conns *connections) error {
			request := c8.request(p.listen)
			sent := make(chan error, o.uploads)
			for range o.uploads {
				conn, err := net.DialTimeout("tcp", p.listen, 10*time.Second)
				if err != nil {
					return err
				}
				conns.keep(conn)
				go func() {
					_, err := conn.Write(request[:len(request)-1])
					sent <- err
				}()
			}
			for range o.uploads {
				if err := <-sent; err != nil {
					return err
				}
			}
			time.Sleep(time.Second)
			during, err := memoryOf(p.cmd.Process.Pid)
			if err != nil {
				return err
			}
			for _, conn := range *conns {
				if _, err := conn.Write(request[len(request)-1:]); err != nil {
					return err
				}
			}
			for range o.uploads {
				call, err := e.next()
				if err != nil {
					return err
				}
				conns.keep(call.conn)
			}
			after, err := memoryOf(p.cmd.Process.Pid)
			uploading[c.name] = float64(during.now-before.now) / all
			peak[c.name] = float64(after.peak-before.now) / all
			return err
		})
		if err != nil {
			return err
		}
	}
	progress("")
	fmt.Printf("\n%d uploads of %s at once\n", o.uploads, sizeName(o.uploadSize))
	table(candidates, uploading, "resident copies of each body before its last byte", 1)
	table(candidates, peak, "resident copies of each body at the highest", 1)
	return nil
}

// table prints a figure of each proxy, and its ratio to that of stock Caddy where
// that one is not next to nothing.
func table(candidates []*candidate, figures map[string]float64, what string, unit float64) {
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "proxy\t%s\tto stock Caddy\t\n", what)
	for _, c := range candidates {
		ratio := "-"
		if stock, ok := figures[nameStock]; ok && stock > unit/10 {
			ratio = fmt.Sprintf("%.2f", figures[c.name]/stock)
		}
		fmt.Fprintf(tw, "%s\t%.2f\t%s\t\n", c.name, figures[c.name]/unit, ratio)
	}
	_ = tw.Flush()
}
