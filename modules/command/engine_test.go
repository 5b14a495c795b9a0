package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// run starts the command and returns the addresses of its engines, and what it
// returns in the end.
func run(t *testing.T, engines int, args ...string) (addresses []string, stop func() error) {
	t.Helper()
	cmd := newEngineCommand()
	cmd.SetArgs(args)
	out, in := io.Pipe()
	cmd.SetOut(in)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		in.Close()
		ended <- err
	}()
	stop = func() error {
		cancel()
		return <-ended
	}
	lines := bufio.NewScanner(out)
	for range engines {
		if !lines.Scan() {
			t.Fatal(<-ended)
		}
		address, ok := strings.CutPrefix(lines.Text(), "engine listening on ")
		if !ok {
			t.Fatal(lines.Text())
		}
		addresses = append(addresses, address)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return addresses, stop
}

func ask(t *testing.T, client *http.Client, address, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return client.Do(req)
}

func TestEngineCommand(t *testing.T) {
	addresses, stop := run(t, 3, "--listen", "127.0.0.1:0,127.0.0.1:0", "--listen", "127.0.0.1:0", "--model", "a", "-m", "b",
		"--ttft", "0", "--prefill-tokens-per-second", "0", "--tokens-per-second", "0", "--block-size", "4")
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	for name, client := range map[string]*http.Client{"HTTP/1.1": {Transport: &http.Transport{}}, "HTTP/2.0": {Transport: &http.Transport{Protocols: protocols}}} {
		for _, address := range addresses {
			res, err := ask(t, client, address, `{"model":"b","messages":[{"role":"user","content":"`+name+`"}]}`)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != 200 || res.Proto != name || res.Header.Get("X-Engine-Id") != address {
				t.Errorf("%s %s %v: %s, %v", res.Proto, res.Status, res.Header, body, err)
			}
			// Each has a cache of its own.
			if usage := gjson.GetBytes(body, "usage.prompt_tokens_details.cached_tokens"); !usage.Exists() || usage.Int() != 0 {
				t.Errorf("%s: %s", address, body)
			}
		}
		client.CloseIdleConnections()
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", addresses[0]); err == nil {
		conn.Close()
		t.Error("still listening")
	}
}

// A stream that would go on for hours does not keep the command from ending.
func TestEngineCommandEnds(t *testing.T) {
	addresses, stop := run(t, 1, "--listen", "127.0.0.1:0", "--name", "x", "--tokens-per-second", "0.001")
	res, err := ask(t, http.DefaultClient, addresses[0], `{"stream":true,"messages":[{"role":"user","content":"hi"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := res.Header.Get("X-Engine-Id"); got != "x" {
		t.Errorf("the engine is called %q", got)
	}
	start := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 3*time.Second { // a second, and patience with a busy machine
		t.Errorf("it took %v", took)
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("a cut stream looks complete")
	}
}

func TestEngineCommandRefuses(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "9001"}, `listening on "9001" (write <host>:<port>`},
		{[]string{"--listen", ln.Addr().String()}, "address already in use"},
		{[]string{"--listen", "127.0.0.1:0,127.0.0.1:0", "--name", "x"}, "--name is for a single engine"},
		{[]string{"--listen", "127.0.0.1:0", "--kv-blocks", "0"}, "kv_blocks 0 must be at least 1"},
		{[]string{"--listen", "127.0.0.1:0", "--ttft", "20"}, "invalid argument"},
		{[]string{"9001"}, "unknown command"},
	} {
		t.Run(fmt.Sprint(tt.args), func(t *testing.T) {
			cmd := newEngineCommand()
			cmd.SetArgs(tt.args)
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := cmd.ExecuteContext(ctx)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Error("it ran")
			}
		})
	}
}
