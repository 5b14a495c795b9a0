package blackbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// B4: up to the limit a body that is edited arrives whole, but for the edits,
// with the length that it has then. The limit is that of what the client sent.
func TestB4_LargeBodiesWithEdits(t *testing.T) {
	t.Parallel()
	const limit = 2 << 20
	long := strings.Repeat("n", 200)
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias "+long,
		"to "+up.Addr+" {\n\t\tmodel a-name-that-is-longer\n\t}", "context_window 612") + "max_body 2MiB"})
	for _, size := range []int{6 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, limit - 1, limit, limit + 1} {
		for _, name := range []string{"m", long} { // it grows, and it shrinks
			for _, first := range []bool{true, false} {
				shape := `{%s"messages":[{"role":"user","content":"` + "%s" + `"}],"max_tokens":%s%s}`
				body := func(name, tokens, content string) string {
					member := `"model" : ` + quote(name)
					if first {
						return fmt.Sprintf(shape, member+",", content, tokens, "")
					}
					return fmt.Sprintf(shape, "", content, tokens, ","+member)
				}
				content := strings.Repeat("\\u00e9", 10)
				content += strings.Repeat("A", size-len(body(name, "5000", content)))
				sent, want := body(name, "5000", content), body("a-name-that-is-longer", "100", content)
				for _, chunked := range []bool{false, true} {
					what := fmt.Sprintf("%d bytes, a name of %d, model first %t, chunked %t", len(sent), len(name), first, chunked)
					before := up.Bytes()
					req, err := g.NewRequest(t.Context(), http.MethodPost, "/v1/chat/completions", sent)
					if err != nil {
						t.Fatal(err)
					}
					if chunked {
						req.ContentLength = -1
					}
					res, err := harness.DoWith(g.Client, req)
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if size > limit {
						if res.Status != http.StatusRequestEntityTooLarge || up.Bytes() != before {
							t.Errorf("%s: %s, and the upstream got %d bytes", what, res, up.Bytes()-before)
						}
						continue
					}
					got := up.Last(t)
					if res.Status != http.StatusOK || got.Length != int64(len(want)) || got.Sum != sum(want) {
						t.Errorf("%s: the upstream got other %d bytes, want %d: %s", what, got.Length, len(want), res)
					}
					if v := got.Header["Content-Length"]; len(v) != 1 || v[0] != fmt.Sprint(len(want)) || got.Header.Get("Transfer-Encoding") != "" {
						t.Errorf("%s: the upstream got the Content-Length %q", what, v)
					}
				}
			}
		}
	}
	g.WaitIdle(t)
}

// B9: a body in chunks of a byte each arrives whole, however it was framed, with
// trailers or without, and with edits or without.
func TestB9_ChunkedBodies(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias another", to(up), "to "+harness.FreeAddr(t), "routing round-robin", health("eject_after 10000"))})
	for _, name := range []string{"m", "another"} {
		for _, size := range []int{10, 3000, 9000} { // below and above what is kept without a buffer
			for _, trailers := range []string{"", "X-Checksum: abc\r\nX-Other: d\r\n"} {
				body, want := chatOf(name, strings.Repeat("é", size)), chatOf("m", strings.Repeat("é", size))
				var raw bytes.Buffer
				raw.WriteString("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n")
				if trailers != "" {
					raw.WriteString("Trailer: X-Checksum, X-Other\r\n")
				}
				raw.WriteString("\r\n")
				for _, c := range []byte(body) {
					raw.WriteString("1;ext=\"x\"\r\n")
					raw.WriteByte(c)
					raw.WriteString("\r\n")
				}
				raw.WriteString("0\r\n" + trailers + "\r\n")
				conn := g.Dial(t)
				conn.Send(t, raw.String())
				if res := conn.Response(t); res.Status != http.StatusOK {
					t.Fatalf("%s, %d, trailers %q: %s", name, size, trailers, res)
				}
				got := up.Last(t)
				if got.Sum != sum(want) {
					t.Errorf("%s, %d, trailers %q: the upstream got other %d bytes of %d", name, size, trailers, got.Length, len(want))
				}
				if sum, other := got.Trailer.Get("X-Checksum"), got.Trailer.Get("X-Other"); trailers != "" && (sum != "abc" || other != "d") {
					t.Errorf("%s, %d: the upstream got the trailers %v", name, size, got.Trailer)
				}
				// The connection serves on: nothing of the body is left on it.
				conn.Send(t, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
				if res := conn.Response(t); res.Status != http.StatusOK {
					t.Errorf("the next request on the connection: %s", res)
				}
			}
		}
	}
	g.WaitIdle(t)
}

// B9: a body that breaks off or is framed wrongly is not taken for a whole one.
func TestB9_BrokenBodiesAreNotForwarded(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := serve(t, "prefix", up)
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for name, raw := range map[string]string{
		"a length that is never reached": head + "Content-Length: 100\r\n\r\n" + bare("m"),
		"no last chunk":                  head + "Transfer-Encoding: chunked\r\n\r\nd\r\n" + bare("m") + "\r\n",
		"no chunk at all":                head + "Transfer-Encoding: chunked\r\n\r\nd;\r\n" + bare("m") + "xx0\r\n\r\n",
		"a length and chunks":            head + "Content-Length: 13\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + bare("m"),
		"two lengths":                    head + "Content-Length: 13\r\nContent-Length: 14\r\n\r\n" + bare("m"),
	} {
		conn := g.Dial(t)
		conn.Send(t, raw)
		_ = conn.CloseWrite()
		if answer, err := io.ReadAll(conn); err != nil && !errors.Is(err, net.ErrClosed) || bytes.HasPrefix(answer, []byte("HTTP/1.1 2")) {
			t.Errorf("%s: the answer is %q, %v", name, answer, err)
		}
	}
	if n := up.Served(); n != 0 {
		t.Errorf("%d broken requests reached the upstream", n)
	}
	g.WaitIdle(t)
}

// B9: a client that waits for 100 Continue gets it if its body is wanted, and
// else at once an answer that is final; it never hangs.
func TestB9_ExpectContinue(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias another", to(up), "context_window 1024") + "max_body 64KiB"})
	plain := `{"model":"another","max_tokens":9000,"messages":[{"role":"user","content":"` + strings.Repeat("x", 9000) + `"}]}`
	want := strings.Replace(strings.Replace(plain, "another", "m", 1), ":9000", ":512", 1)
	const head = "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
	send := func(conn *harness.Conn, path, more string) {
		conn.Send(t, fmt.Sprintf(head, path)+more+"\r\n")
	}
	const path = "/v1/chat/completions"
	for name, tt := range map[string]struct{ more, body string }{
		"a length":   {fmt.Sprintf("Content-Length: %d\r\n", len(plain)), plain},
		"chunks":     {"Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(plain), plain)},
		"compressed": {fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n", len(encode(t, "gzip", plain))), encode(t, "gzip", plain)},
		"header":     {fmt.Sprintf("X-Model-ID: m\r\nContent-Length: %d\r\n", len(plain)), plain},
	} {
		conn := g.Dial(t)
		begun := time.Now()
		send(conn, path, tt.more)
		if line := conn.Line(t); line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%s: the answer begins with %q", name, line)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%s: 100 Continue took %s", name, took)
		}
		_ = conn.Line(t) // the empty one
		conn.Send(t, tt.body)
		if res := conn.Response(t); res.Status != http.StatusOK {
			t.Errorf("%s: %s", name, res)
		}
		got := up.Last(t)
		if string(got.Body) != want {
			t.Errorf("%s: the upstream got %d bytes, want %d", name, got.Length, len(want))
		}
	}

	up.Forget()
	for name, tt := range map[string]struct {
		path, more string
		status     int
	}{
		"too large":                   {path, "Content-Length: 100000\r\n", 413},
		"too large for a known model": {path, "X-Model-ID: m\r\nContent-Length: 100000\r\n", 413},
		"unknown model in the header": {path, "X-Model-ID: nobody\r\nContent-Length: 100\r\n", 404},
		"unknown model in the path":   {"/model/nobody" + path, "Content-Length: 100\r\n", 404},
		"unknown model, chunks":       {path, "X-Model-ID: nobody\r\nTransfer-Encoding: chunked\r\n", 404},
		"two models in the header":    {path, "X-Model-ID: m\r\nX-Model-ID: n\r\nContent-Length: 100\r\n", 400},
	} {
		conn := g.Dial(t)
		begun := time.Now()
		send(conn, tt.path, tt.more)
		res := conn.Response(t)
		if res.Status != tt.status {
			t.Errorf("%s: %s, want %d", name, res, tt.status)
		}
		res.Refusal(t)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%s: the refusal took %s", name, took)
		}
	}
	if up.Served() != 0 {
		t.Error("a request that is refused reached the upstream")
	}
	g.WaitIdle(t)
}

// Z6: a client whose request is refused and that goes on sending is cut off
// soon, and what it sends is not kept.
func TestZ6_RefusedUploadsAreCutOff(t *testing.T) {
	t.Parallel()
	const (
		senders = 8
		most    = 128 << 20 // what the gateway reads, and what the kernel's buffers hold
	)
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "max_body 64KiB"})
	g.Chat(t, chat("warm"))
	heap := g.Heap(t)
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	chunk := strings.Repeat("x", 64<<10)
	framed := fmt.Sprintf("%x\r\n%s\r\n", len(chunk), chunk)
	for name, tt := range map[string]struct {
		head, piece string
		pause       time.Duration
		status      int
	}{
		"a length too large":           {head + "Content-Length: 100000000000\r\n\r\n", chunk, 0, 413},
		"unknown model":                {head + "X-Model-ID: nobody\r\nTransfer-Encoding: chunked\r\n\r\n", framed, 0, 404},
		"chunks beyond the limit":      {head + "Transfer-Encoding: chunked\r\n\r\n", framed, 0, 413},
		"compressed, beyond the limit": {head + "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", framed, 0, 413},
		"byte by byte":                 {head + "X-Model-ID: nobody\r\nContent-Length: 100000000000\r\n\r\n", "x", 50 * time.Millisecond, 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all sync.WaitGroup
			for range senders {
				conn := g.Dial(t)
				conn.Send(t, tt.head)
				all.Go(func() {
					begun, sent := time.Now(), 0
					for {
						n, err := io.WriteString(conn, tt.piece)
						if sent += n; err != nil {
							break
						}
						if tt.pause > 0 {
							<-time.After(tt.pause) // a slow client
						}
					}
					if took := time.Since(begun); took > 8*time.Second || sent > most {
						t.Errorf("the client could send %d bytes in %s", sent, took)
					}
				})
			}
			if now := g.Heap(t); now > heap+32<<20 {
				t.Errorf("the heap grew from %d to %d bytes", heap, now)
			}
			all.Wait()
			// A client that sends and then reads sees why.
			conn := g.Dial(t)
			conn.Send(t, tt.head+tt.piece+tt.piece)
			if tt.piece == "x" {
				conn.Send(t, strings.Repeat("x", 10_000))
			}
			if res := conn.Response(t); res.Status != tt.status {
				t.Errorf("the answer is %s, want %d", res, tt.status)
			}
			_ = conn.Close()
		})
	}
	t.Cleanup(func() {
		if n := up.Served(); n != 1 {
			t.Errorf("the upstream got %d requests", n)
		}
	})
}

// S12: an upstream that answers 429 or 503 before it has read the upload, and
// closes or goes on reading, does not spoil the body that another one gets.
func TestS12_EarlyRefusalIsRetriedWhole(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	early := func(status string, linger bool) string {
		return harness.NewRawUpstream(t, func(conn *harness.RawConn) {
			conn.ReadHead()
			conn.Write("HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbusy")
			if linger {
				_, _ = io.Copy(io.Discard, conn.Conn)
			}
		})
	}
	g := harness.Start(t, harness.Config{Flexinfer: model("m", "alias another",
		"to "+early("503 Busy", false)+" "+early("429 Busy", true)+" "+up.Addr, "routing round-robin", "retries 2 {\n\t\tbudget 100% 1000\n\t}")})
	for i := range 5 {
		for _, size := range []int{1000, 100_000, 6 << 20} {
			content := strings.Repeat(fmt.Sprint(i%10), size)
			if res := g.Post(t, "/v1/chat/completions", chatOf("another", content)); res.Status != http.StatusOK {
				t.Fatalf("call %d of %d bytes: %s", i, size, res)
			}
			if got := up.Last(t); got.Sum != sum(chat(content)) {
				t.Fatalf("call %d: the upstream got other %d bytes of %d", i, got.Length, size)
			}
		}
	}
	g.WaitIdle(t)
}
