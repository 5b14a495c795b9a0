package harness

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// Blackhole returns an address in the place of an engine's whose machine is
// off: nothing answers there, not even with a refusal.
func Blackhole(tb testing.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		tb.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	addr := Loopback(name.(*syscall.SockaddrInet4).Port)
	// A listener that nobody accepts from drops what comes once its queue
	// is full.
	for range 16 {
		conn, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if err != nil {
			return addr
		}
		tb.Cleanup(func() { _ = conn.Close() })
	}
	tb.Fatal("a listener's queue does not fill up")
	return ""
}
