package transport

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/direct"
)

// h2Server speaks h2c to one connection after the other, and has each request
// that has come whole answered by what answer writes.
func h2Server(t *testing.T, answer func(f *http2.Framer, stream uint32)) (address string) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serveH2(conn, answer)
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-served
	})
	return ln.Addr().String()
}

func serveH2(conn net.Conn, answer func(f *http2.Framer, stream uint32)) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(conn, conn)
	_ = f.WriteSettings()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			if frame.StreamEnded() {
				answer(f, frame.StreamID)
			}
		case *http2.DataFrame:
			if frame.StreamEnded() {
				answer(f, frame.StreamID)
			}
		}
	}
}

// writeOK answers with an empty 200.
func writeOK(f *http2.Framer, stream uint32) {
	var b bytes.Buffer
	_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: true})
}

// ask sends a request to an HTTP/2 server, with a body that can be read once as
// those of attempts are, if it has one.
func ask(t *testing.T, address, body string) error {
	t.Helper()
	client := direct.NewClient("h2c", nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	method, r := http.MethodGet, io.Reader(nil)
	if body != "" {
		method, r = http.MethodPost, io.NopCloser(strings.NewReader(body))
	}
	req, err := http.NewRequestWithContext(ctx, method, direct.URL("h2c", address, "/v1/chat/completions"), r)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = int64(len(body))
	res, err := client.Transport.RoundTrip(req)
	if err == nil {
		res.Body.Close()
	}
	return err
}

// What HTTP/2 servers say of requests that they did not look at is known by
// errors of net/http that have no type, or one that it does not export.
func TestRefusedStream(t *testing.T) {
	goAway := func(code http2.ErrCode, last uint32) func(f *http2.Framer, stream uint32) {
		return func(f *http2.Framer, _ uint32) { _ = f.WriteGoAway(last, code, nil) }
	}
	reset := func(code http2.ErrCode) func(f *http2.Framer, stream uint32) {
		return func(f *http2.Framer, stream uint32) { _ = f.WriteRSTStream(stream, code) }
	}
	closing := func(answer func(f *http2.Framer, stream uint32)) func(f *http2.Framer, stream uint32) {
		return func(f *http2.Framer, stream uint32) {
			answer(f, stream)
			_ = f.WriteRawFrame(http2.FrameData, 0, 0, nil) // an error of the connection, which the client closes
		}
	}
	for _, tt := range []struct {
		name   string
		answer func(f *http2.Framer, stream uint32)
		want   bool
	}{
		{"REFUSED_STREAM", reset(http2.ErrCodeRefusedStream), true},
		{"GOAWAY", goAway(http2.ErrCodeNo, 0), true},
		{"INTERNAL_ERROR", reset(http2.ErrCodeInternal), false},
		{"CANCEL", reset(http2.ErrCodeCancel), false},
		{"GOAWAY for later streams, then the end", closing(goAway(http2.ErrCodeNo, 1)), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := ask(t, h2Server(t, tt.answer), "a body")
			if err == nil {
				t.Fatal("no error")
			}
			if got := refusedStream(err); got != tt.want {
				t.Errorf("refused: %v, want %v, of %T: %v", got, tt.want, err, err)
			}
			if got := reason(err) == "refused_stream"; got != tt.want {
				t.Errorf("reason %s, of %T: %v", reason(err), err, err)
			}
		})
	}
}

// Without a body net/http repeats such a request by itself.
func TestRefusedStreamRepeated(t *testing.T) {
	requests := make(chan struct{}, 10)
	address := h2Server(t, func(f *http2.Framer, stream uint32) {
		requests <- struct{}{}
		if len(requests) == 1 {
			_ = f.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
			return
		}
		writeOK(f, stream)
	})
	if err := ask(t, address, ""); err != nil {
		t.Error(err)
	}
	if n := len(requests); n != 2 {
		t.Errorf("%d requests came, want 2", n)
	}
}
