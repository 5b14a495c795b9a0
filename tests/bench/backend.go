package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// backendArg makes the command a backend. The load runs in another process so
// that neither waits for the other's scheduler.
const backendArg = "serve-backend"

// answer is a chat completion as a small model would give it.
const answer = `{"id":"chatcmpl-1","object":"chat.completion","created":1750000000,"model":"` + modelName + `",` +
	`"choices":[{"index":0,"message":{"role":"assistant","content":"The short answer is \"yes\".\nThe long one takes longer."},"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":512,"completion_tokens":16,"total_tokens":528,"prompt_tokens_details":{"cached_tokens":448}}}`

// serveBackend answers every request at once, on one port of all loopback
// addresses. It does as little as it can: its CPU time is nobody's.
func serveBackend() error {
	runtime.GOMAXPROCS(1)
	ln, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr().(*net.TCPAddr).Port)
	go func() {
		// The command that started this one holds the other end.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	response := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nDate: Mon, 02 Jun 2025 08:00:00 GMT\r\nServer: uvicorn\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(answer), answer)
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		if !c.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
			_ = c.Close()
			continue
		}
		go answerAll(c, response)
	}
}

func answerAll(c net.Conn, response []byte) {
	defer c.Close()
	br := bufio.NewReaderSize(c, 64<<10)
	for {
		h, err := readHead(br)
		if err != nil {
			return
		}
		if err := h.discardBody(br); err != nil {
			return
		}
		if _, err := c.Write(response); err != nil {
			return
		}
	}
}

// head is what framing needs to know of a message's head.
type head struct {
	first   [64]byte // of the first line
	length  int
	chunked bool
	closes  bool
}

var errHead = errors.New("malformed message")

// readHead reads a message up to its body.
func readHead(br *bufio.Reader) (h head, err error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	copy(h.first[:], line)
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, nil
		}
		switch {
		case line[0]|0x20 == 'c' && hasField(line, "content-length:"):
			if h.length, err = strconv.Atoi(string(bytes.TrimSpace(line[len("content-length:"):]))); err != nil {
				return h, errHead
			}
		case line[0]|0x20 == 't' && hasField(line, "transfer-encoding:"):
			h.chunked = true
		case line[0]|0x20 == 'c' && hasField(line, "connection:"):
			h.closes = strings.EqualFold(string(bytes.TrimSpace(line[len("connection:"):])), "close")
		}
	}
}

func hasField(line []byte, field string) bool {
	return len(line) >= len(field) && strings.EqualFold(string(line[:len(field)]), field)
}

// discardBody reads past the body that follows h.
func (h *head) discardBody(br *bufio.Reader) error {
	if !h.chunked {
		_, err := br.Discard(h.length)
		return err
	}
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 64)
		if err != nil {
			return errHead
		}
		if _, err := br.Discard(int(n) + 2); err != nil { // and the line break
			return err
		}
		if n == 0 {
			return nil
		}
	}
}

type backend struct {
	port  int
	cmd   *exec.Cmd
	stdin io.Closer
}

func startBackend() (*backend, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, backendArg)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b := &backend{cmd: cmd, stdin: stdin}
	if _, err := fmt.Fscan(stdout, &b.port); err != nil {
		b.stop()
		return nil, fmt.Errorf("backend: %w", err)
	}
	return b, nil
}

func (b *backend) stop() {
	_ = b.stdin.Close()
	_ = b.cmd.Wait()
}

// maxEndpoints is how many addresses loopback makes.
const maxEndpoints = 60_000

// loopback returns n addresses that all reach the same port: every address in
// 127.0.0.0/8 is this machine.
func loopback(n, port int) []string {
	addresses := make([]string, n)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("127.0.%d.%d:%d", i/250, i%250+1, port)
	}
	return addresses
}
