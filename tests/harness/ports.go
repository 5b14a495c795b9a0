package harness

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Ports are taken from below the range that the system gives to clients, and
// none is handed out twice: between the moment a port is found free and the
// moment the gateway listens on it, nothing of the tests can take it.
var ports = struct {
	mu   sync.Mutex
	next int
}{next: firstPort + rand.IntN(numPorts)} // apart from other runs of tests

const (
	firstPort = 12000
	numPorts  = 19000
)

// FreePort returns a port of the loopback address on which nothing listens.
// Nothing will, unless the caller does: it also serves as the address of an
// upstream that is down.
func FreePort(tb testing.TB) int {
	tb.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for range numPorts {
		ports.next++
		if ports.next >= firstPort+numPorts {
			ports.next = firstPort
		}
		ln, err := net.Listen("tcp", Loopback(ports.next))
		if err != nil {
			continue
		}
		_ = ln.Close()
		return ports.next
	}
	tb.Fatal("no free port")
	return 0
}

// FreeAddr returns the loopback address with a free port.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	return Loopback(FreePort(tb))
}

// Loopback returns a loopback address.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
