package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	modulePath  = "github.com/flexinfer/caddy-flexinfer"
	modelName   = "qwen3-8b"
	nameGateway = "gateway"
	nameStock   = "caddy"
)

// candidate is a proxy that can be measured.
type candidate struct {
	name string
	bin  string

	// edits has the gateway change each body.
	edits bool

	// configure returns the configuration file's name and text, and the
	// command that starts the proxy with it.
	configure func(c *candidate, dir, listen, admin string, upstreams []string) (file, text string, args []string)
}

var known = []*candidate{
	{name: nameGateway, configure: configureGateway},
	{name: nameStock, configure: configureStock},
	{name: "nginx", configure: configureNginx},
	{name: "haproxy", configure: configureHAProxy},
}

// prepare builds or finds the proxies that were asked for.
func prepare(ctx context.Context, o *options, root, dir string) ([]*candidate, error) {
	var list []*candidate
	for _, c := range known {
		if !slices.Contains(o.proxies, c.name) {
			continue
		}
		var err error
		switch c.name {
		case nameGateway:
			c.edits = o.edits
			c.bin, err = build(ctx, o.gateway, root, dir, c.name, "./xcaddy")
		case nameStock:
			c.bin, err = build(ctx, o.stock, root, dir, c.name, "github.com/caddyserver/caddy/v2/cmd/caddy")
		default:
			if c.bin, err = exec.LookPath(c.name); err != nil {
				fmt.Fprintf(os.Stderr, "%s is not installed: left out\n", c.name)
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	for _, name := range o.proxies {
		if !slices.ContainsFunc(known, func(c *candidate) bool { return c.name == name }) {
			return nil, fmt.Errorf("-proxies: unknown proxy %q", name)
		}
	}
	return list, nil
}

// build returns the binary given, or builds pkg with the module's own
// requirements.
func build(ctx context.Context, given, root, dir, name, pkg string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	fmt.Fprintf(os.Stderr, "building %s\n", pkg)
	bin := filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, pkg)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building %s: %w", pkg, err)
	}
	return bin, nil
}

func configureGateway(c *candidate, dir, listen, admin string, upstreams []string) (string, string, []string) {
	edits := ""
	if c.edits { // the chats ask for 256 tokens
		edits = " {\n\t\t\t\tmodel org/served-name\n\t\t\t}\n\t\t\tcontext_window 640"
	}
	text := fmt.Sprintf(`{
	admin %s
	persist_config off
	log {
		level ERROR
	}
	flexinfer {
		model %s {
			routing prefix
			to %s%s
		}
	}
}
http://%s {
	bind 127.0.0.1
	flexinfer
}
`, admin, modelName, strings.Join(upstreams, " "), edits, listen)
	return "gateway.caddyfile", text, []string{c.bin, "run", "--adapter", "caddyfile", "--config"}
}

func configureStock(c *candidate, dir, listen, admin string, upstreams []string) (string, string, []string) {
	text := fmt.Sprintf(`{
	admin %s
	persist_config off
	log {
		level ERROR
	}
}
http://%s {
	bind 127.0.0.1
	reverse_proxy %s {
		lb_policy header X-Session-ID
	}
}
`, admin, listen, strings.Join(upstreams, " "))
	return "stock.caddyfile", text, []string{c.bin, "run", "--adapter", "caddyfile", "--config"}
}

func configureNginx(c *candidate, dir, listen, _ string, upstreams []string) (string, string, []string) {
	text := fmt.Sprintf(`daemon off;
worker_processes 2;
pid %[1]s/nginx.pid;
error_log stderr error;
events { worker_connections 8192; }
http {
	access_log off;
	client_body_temp_path %[1]s/nginx-body;
	proxy_temp_path %[1]s/nginx-proxy;
	fastcgi_temp_path %[1]s/nginx-fastcgi;
	uwsgi_temp_path %[1]s/nginx-uwsgi;
	scgi_temp_path %[1]s/nginx-scgi;
	client_max_body_size 32m;
	client_body_buffer_size 256k;
	keepalive_requests 100000000;
	upstream engines {
		hash $http_x_session_id consistent;
		server %[2]s;
		keepalive 1024;
		keepalive_requests 100000000;
	}
	server {
		listen %[3]s;
		location / {
			proxy_pass http://engines;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`, dir, strings.Join(upstreams, ";\n\t\tserver "), listen)
	return "nginx.conf", text, []string{c.bin, "-p", dir, "-e", "stderr", "-c"}
}

func configureHAProxy(c *candidate, dir, listen, _ string, upstreams []string) (string, string, []string) {
	var servers strings.Builder
	for i, u := range upstreams {
		fmt.Fprintf(&servers, "\tserver e%d %s\n", i, u)
	}
	text := fmt.Sprintf(`global
	maxconn 8192
	nbthread 2
defaults
	mode http
	timeout connect 5s
	timeout client 60s
	timeout server 60s
	http-reuse always
frontend gateway
	bind %s
	default_backend engines
backend engines
	balance hdr(X-Session-ID)
	hash-type consistent
	hash-balance-factor 125
%s`, listen, servers.String())
	return "haproxy.cfg", text, []string{c.bin, "-db", "-q", "-f"}
}

// proxy is one that runs.
type proxy struct {
	candidate *candidate
	cmd       *exec.Cmd
	listen    string
	admin     string
	output    bytes.Buffer
	exited    chan struct{}
	clients   clients
}

// start starts the proxy in front of the upstreams and waits until it listens.
func (c *candidate) start(dir string, upstreams []string) (*proxy, error) {
	p := &proxy{candidate: c, exited: make(chan struct{})}
	var err error
	if p.listen, err = freeAddress(); err != nil {
		return nil, err
	}
	if p.admin, err = freeAddress(); err != nil {
		return nil, err
	}
	p.clients.addr = p.listen
	if dir, err = os.MkdirTemp(dir, c.name+"-"); err != nil {
		return nil, err
	}
	file, text, args := c.configure(c, dir, p.listen, p.admin, upstreams)
	path := filepath.Join(dir, file)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	args = append(args, path)
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		select {
		case <-p.exited:
			return nil, fmt.Errorf("it ended:\n%s", p.output.String())
		case <-time.After(20 * time.Millisecond):
		}
		if conn, err := net.Dial("tcp", p.listen); err == nil {
			_ = conn.Close()
			return p, nil
		}
	}
	p.stop()
	return nil, fmt.Errorf("it does not listen on %s:\n%s", p.listen, p.output.String())
}

func (p *proxy) stop() {
	p.clients.close()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(3 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// check sends one request and sees that it is answered, and that the gateway
// routes it as it should in this comparison.
func (p *proxy) check(c *chat) error {
	conn, err := net.Dial("tcp", p.listen)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write(c.request(p.listen, "X-Flexinfer-Debug: 1", "Connection: close")); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK || string(b) != answer {
		return fmt.Errorf("the first request was answered with status %d: %s", res.StatusCode, b)
	}
	route := res.Header.Get("X-Flexinfer-Route")
	if p.candidate.name == nameGateway && (!strings.Contains(route, "strategy=prefix") || !strings.Contains(route, "key_source=canonical")) {
		return fmt.Errorf("the first request was not routed by its prefix, but: %q", route)
	}
	return nil
}

// measure runs one round.
func (p *proxy) measure(l load) (*sample, error) {
	before, err := cpuTime(p.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	s, err := p.clients.send(l)
	if err != nil {
		return nil, err
	}
	after, err := cpuTime(p.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	s.cpu = after - before
	return s, nil
}

// profile takes a CPU profile while a round runs.
func (p *proxy) profile(path string, chats []*chat, concurrency int) error {
	const seconds = 5
	stop := make(chan error, 1)
	go func() {
		_, err := p.clients.send(load{chats: chats, concurrency: concurrency, duration: (seconds + 1) * time.Second})
		stop <- err
	}()
	res, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.admin, seconds))
	if err != nil {
		return errors.Join(err, <-stop)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err := errors.Join(err, <-stop); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", res.StatusCode, b)
	}
	return os.WriteFile(path, b, 0o644)
}

func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}
