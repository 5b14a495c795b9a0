package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// resolver is where the cluster's DNS answers.
const resolver = "127.0.0.1:53"

// useResolver has this mount namespace ask the cluster's DNS. hide is called on
// the way, and may hide the file that says so.
func useResolver(hide func() error) error {
	path, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		path = "/etc/resolv.conf"
	}
	if err := hide(); err != nil {
		return err
	}
	text := []byte("nameserver 127.0.0.1\noptions timeout:5\n")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, text, 0o644)
	}
	own := "/var/run/resolv.conf"
	if err := os.WriteFile(own, text, 0o644); err != nil {
		return err
	}
	return syscall.Mount(own, path, "", syscall.MS_BIND, "")
}

// startDNS answers for the names of Services, for as long as the tests run. A
// name stands for the Service's own address, at which a test may listen; there
// is no kube-proxy.
func (c *Cluster) startDNS() error {
	conn, err := net.ListenPacket("udp", resolver)
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer, err := c.resolve(buf[:n]); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return nil
}

// resolve answers a question.
func (c *Cluster) resolve(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	m.Response, m.Authoritative, m.Additionals = true, true, nil
	for _, q := range m.Questions {
		ip, err := c.addressOf(q.Name.String())
		if err != nil {
			m.RCode = dnsmessage.RCodeNameError
			break
		}
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 5},
				Body:   &dnsmessage.AResource{A: [4]byte(ip.To4())},
			})
		}
	}
	return m.Pack()
}

// addressOf returns the address of the Service with a name such as
// m.models.svc.cluster.local.
func (c *Cluster) addressOf(name string) (net.IP, error) {
	service, ok := strings.CutSuffix(strings.TrimSuffix(name, "."), ".svc.cluster.local")
	name, namespace, isService := strings.Cut(service, ".")
	if !ok || !isService {
		return nil, fmt.Errorf("%s is not the name of a Service", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startup)
	defer cancel()
	s, err := c.Client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(s.Spec.ClusterIP); s.Spec.ClusterIP != corev1.ClusterIPNone && ip.To4() != nil {
		return ip, nil
	}
	return nil, fmt.Errorf("%s has no address", name)
}
