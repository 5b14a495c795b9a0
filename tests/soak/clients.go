package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// protocols are those that clients take turns with.
var protocols = []string{"HTTP/1.1", "HTTP/2"}

// body returns a chat of 2 to 200 KB, most of them short.
func body(r *rand.Rand, model string, stream bool) string {
	size := 2 << 10
	if r.IntN(4) == 0 {
		size += r.IntN(198 << 10)
	}
	const text = `The caller sees \"nil\" and not an error.\nКратко: ключ и ответ. `
	return fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":%d,"messages":[{"role":"system","content":"You are assistant %d."},{"role":"user","content":"%s"}]}`,
		model, stream, 1+r.IntN(30), r.IntN(50), strings.Repeat(text, size/len(text)+1))
}

// errCut is that of an answer that did not come to its end.
var errCut = errors.New("cut")

// ask sends a chat and reads its answer with read. An answer that is not whole
// gives errCut, anything else that is wrong another error.
func (s *scene) ask(ctx context.Context, client *http.Client, chat string, stream bool, read func(io.Reader) ([]byte, error)) error {
	req, err := s.gateway.NewRequest(ctx, http.MethodPost, "/v1/chat/completions", chat)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := read(res.Body)
	switch {
	case err != nil:
		return fmt.Errorf("%w after %d bytes of a %d: %w", errCut, len(answer), res.StatusCode, err)
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("status %d: %.200s", res.StatusCode, bytes.TrimSpace(answer))
	case stream && !bytes.HasSuffix(answer, []byte("data: [DONE]\n\n")):
		return fmt.Errorf("%w without an error: %d bytes", errCut, len(answer))
	case !stream && !bytes.Contains(answer, []byte(`"choices"`)):
		return fmt.Errorf("the answer is %.200s", answer)
	}
	return nil
}

// client returns one that sends a request again which a reload has lost.
func (s *scene) client(i int) *http.Client {
	client, _ := s.gateway.NewProtocolClient(s.tb, protocols[i%len(protocols)])
	client.Transport = harness.Resend{Transport: client.Transport.(*http.Transport)}
	return client
}

// chat is a client with steady traffic. What it begins it ends.
func (s *scene) chat(ctx context.Context, r *rand.Rand, i int) {
	client := s.client(i)
	defer client.CloseIdleConnections()
	for wait(ctx, time.Duration(r.IntN(40))*time.Millisecond) {
		model := []string{steady, steady, closing, mortal}[r.IntN(4)]
		stream := r.IntN(2) == 0
		begun := time.Now()
		err := s.ask(context.WithoutCancel(ctx), client, body(r, model, stream), stream, io.ReadAll)
		if err != nil && model == mortal && s.deaths.between(begun, time.Now()) {
			s.report.excused()
			continue
		}
		s.report.request(model, err)
	}
}

// readSlowly is a client that takes its time with an answer, which is not cut
// for it.
func (s *scene) readSlowly(ctx context.Context, r *rand.Rand, i int) {
	client := s.client(i)
	defer client.CloseIdleConnections()
	for wait(ctx, time.Duration(r.IntN(500))*time.Millisecond) {
		s.report.request(steady, s.ask(context.WithoutCancel(ctx), client, body(r, steady, true), true, func(answer io.Reader) ([]byte, error) {
			var all []byte
			p := make([]byte, 256)
			for {
				n, err := answer.Read(p)
				all = append(all, p[:n]...)
				if errors.Is(err, io.EOF) {
					return all, nil
				} else if err != nil {
					return all, err
				}
				time.Sleep(20 * time.Millisecond)
			}
		}))
	}
}

// provoke is a client of upstreams that misbehave.
func (s *scene) provoke(ctx context.Context, r *rand.Rand, i int) {
	client := s.client(i)
	defer client.CloseIdleConnections()
	for wait(ctx, time.Duration(r.IntN(80))*time.Millisecond) {
		stream := r.IntN(2) == 0
		_ = s.ask(ctx, client, body(r, chaos, stream), stream, io.ReadAll)
		s.report.provoked()
	}
}

// vanish is a client that leaves: in the upload, before the answer begins or in
// the middle of it; by giving up the request, which closes an HTTP/1.1
// connection and resets an HTTP/2 stream, or by a reset of the connection.
func (s *scene) vanish(ctx context.Context, r *rand.Rand, i int) {
	for wait(ctx, time.Duration(r.IntN(150))*time.Millisecond) {
		client, reset := s.gateway.NewProtocolClient(s.tb.passing(), protocols[i%len(protocols)])
		requestCtx, cancel := context.WithCancel(ctx)
		model := []string{steady, passing, chaos}[r.IntN(3)]
		chat := body(r, model, true)
		req, err := s.gateway.NewRequest(requestCtx, http.MethodPost, "/v1/chat/completions", chat)
		if err != nil {
			s.tb.Fatal(err)
		}
		phase := r.IntN(3)
		if phase == 0 {
			sent := strings.NewReader(chat[:r.IntN(len(chat))])
			req.Body, req.GetBody = io.NopCloser(io.MultiReader(sent, until{requestCtx})), nil
		}
		leave := func() {
			if r.IntN(2) == 0 {
				reset()
			}
			cancel()
		}
		if phase < 2 {
			time.AfterFunc(time.Duration(r.IntN(12))*time.Millisecond, leave)
		}
		if res, err := client.Do(req); err == nil {
			if phase == 2 {
				_, _ = io.CopyN(io.Discard, res.Body, int64(r.IntN(2000)))
				leave()
			}
			_ = res.Body.Close()
		}
		cancel()
		// The connection goes too, but not before the reset of its stream.
		time.AfterFunc(time.Second, reset)
		s.report.vanished()
	}
}

// until is the rest of a body that does not come.
type until struct{ ctx context.Context }

func (u until) Read([]byte) (int, error) {
	<-u.ctx.Done()
	return 0, u.ctx.Err()
}
