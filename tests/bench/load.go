package main

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// load says what is sent to a proxy in one round.
type load struct {
	chats       []*chat
	concurrency int
	duration    time.Duration
	requests    int // 0: as many as the duration allows
}

// sample is what one round measured.
type sample struct {
	requests int
	failed   int
	took     time.Duration
	cpu      time.Duration // of the proxy
	p50, p99 time.Duration
}

// clients are connections to one proxy, kept between rounds.
type clients struct {
	addr     string
	conns    []*client
	requests [][]byte
}

type client struct {
	conn net.Conn
	br   *bufio.Reader
}

// send sends the load and returns when the last answer is there.
func (cs *clients) send(l load) (*sample, error) {
	if cs.requests == nil {
		for _, c := range l.chats {
			cs.requests = append(cs.requests, c.request(cs.addr))
		}
	}
	for len(cs.conns) < l.concurrency {
		cs.conns = append(cs.conns, new(client))
	}
	var (
		wg     sync.WaitGroup
		next   atomic.Int64
		failed atomic.Int64
		mu     sync.Mutex
		all    []time.Duration
		first  error
	)
	start := time.Now()
	deadline := start.Add(l.duration)
	for _, c := range cs.conns[:l.concurrency] {
		wg.Go(func() {
			times := make([]time.Duration, 0, 4096)
			for {
				n := next.Add(1) - 1
				if l.requests > 0 && n >= int64(l.requests) || !time.Now().Before(deadline) {
					break
				}
				// A stride without a divisor in common with the number of chats
				// keeps neighbours in time from being neighbours in the list.
				t, err := c.exchange(cs.addr, cs.requests[int(n*7919)%len(cs.requests)])
				if err != nil {
					mu.Lock()
					first = cmpOr(first, err)
					mu.Unlock()
					if failed.Add(1) > 100 {
						break
					}
					continue
				}
				times = append(times, t)
			}
			mu.Lock()
			all = append(all, times...)
			mu.Unlock()
		})
	}
	wg.Wait()
	s := &sample{requests: len(all), failed: int(failed.Load()), took: time.Since(start)}
	if s.requests == 0 {
		return nil, fmt.Errorf("no request was answered: %w", first)
	}
	slices.Sort(all)
	s.p50, s.p99 = quantile(all, 0.50), quantile(all, 0.99)
	return s, nil
}

func cmpOr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// exchange sends a request and reads the whole answer.
func (c *client) exchange(addr string, request []byte) (time.Duration, error) {
	fresh := c.conn == nil
	t, reused, err := c.try(addr, request)
	if err != nil && reused && !fresh {
		// The proxy may close a connection that was idle between rounds.
		t, _, err = c.try(addr, request)
	}
	return t, err
}

func (c *client) try(addr string, request []byte) (took time.Duration, idle bool, err error) {
	if c.conn == nil {
		if c.conn, err = net.DialTimeout("tcp", addr, 5*time.Second); err != nil {
			c.conn = nil
			return 0, false, err
		}
		c.br = bufio.NewReaderSize(c.conn, 16<<10)
	}
	start := time.Now()
	_ = c.conn.SetDeadline(start.Add(30 * time.Second))
	_, err = c.conn.Write(request)
	if err != nil {
		c.close()
		return 0, true, err
	}
	h, err := readHead(c.br)
	if err != nil {
		c.close()
		return 0, true, err
	}
	if err := h.discardBody(c.br); err != nil {
		c.close()
		return 0, false, err
	}
	took = time.Since(start)
	if h.closes {
		c.close()
	}
	if status := string(h.first[9:12]); status != "200" {
		return 0, false, fmt.Errorf("status %s", status)
	}
	return took, false, nil
}

func (c *client) close() {
	_ = c.conn.Close()
	c.conn = nil
}

func (cs *clients) close() {
	for _, c := range cs.conns {
		if c.conn != nil {
			c.close()
		}
	}
}
