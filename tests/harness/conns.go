package harness

import (
	"context"
	"net"
	"sync"
)

// conns are the TCP connections of a client.
type conns struct {
	mu   sync.Mutex
	open []*net.TCPConn
}

func (c *conns) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, conn.(*net.TCPConn))
	return conn, nil
}

// reset tears down what is open.
func (c *conns) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
	c.open = nil
}
