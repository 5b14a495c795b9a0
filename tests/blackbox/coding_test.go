package blackbox

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// An encoder is a writer under a content coding.
type encoder interface {
	io.WriteCloser
	Flush() error
}

func newEncoder(t *testing.T, coding string, to io.Writer) encoder {
	t.Helper()
	switch coding {
	case "gzip":
		return gzip.NewWriter(to)
	case "deflate":
		return zlib.NewWriter(to)
	case "br":
		return brotli.NewWriter(to)
	case "zstd":
		w, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	t.Fatalf("no coding is called %q", coding)
	return nil
}

// encode returns body under a content coding.
func encode(t *testing.T, coding, body string) string {
	t.Helper()
	var b bytes.Buffer
	w := newEncoder(t, coding, &b)
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// B5: a compressed body is routed by what is in it, and arrives as that.
func TestB5_CompressedBodies(t *testing.T) {
	t.Parallel()
	ups := harness.NewUpstreams(t, 3, nil)
	g := serve(t, "prefix", ups...)
	body := chat(strings.Repeat("compressible ", 5000))
	plain := upstreamOf(t, g.Chat(t, body))
	tests := []struct {
		header []string
		body   string
	}{
		{[]string{"gzip"}, encode(t, "gzip", body)},
		{[]string{"GZIP"}, encode(t, "gzip", body)},
		{[]string{"x-gzip"}, encode(t, "gzip", body)},
		{[]string{"zstd"}, encode(t, "zstd", body)},
		{[]string{"br"}, encode(t, "br", body)},
		{[]string{"deflate"}, encode(t, "deflate", body)},
		{[]string{"identity"}, body},
		{[]string{"gzip, gzip"}, encode(t, "gzip", encode(t, "gzip", body))},
		{[]string{"br", "zstd"}, encode(t, "zstd", encode(t, "br", body))},
	}
	for _, tt := range tests {
		for _, model := range []string{"", "m"} {
			headers := []string{}
			for _, coding := range tt.header {
				headers = append(headers, "Content-Encoding", coding)
			}
			if model != "" {
				headers = append(headers, "X-Model-ID", model)
			}
			res := g.Chat(t, tt.body, headers...)
			if got := upstreamOf(t, res); got != plain {
				t.Errorf("%v: routed to %s, the plain body to %s", tt.header, got, plain)
			}
			for _, up := range ups {
				if up.Addr != plain {
					continue
				}
				if got := up.Last(t); got.Sum != sum(body) || len(got.Header["Content-Encoding"]) != 0 {
					t.Errorf("%v: the upstream got %d bytes, want %d, under the coding %q", tt.header, got.Length, len(body), got.Header["Content-Encoding"])
				}
			}
		}
	}

	for _, up := range ups {
		up.Forget()
	}
	bad := []struct {
		name, header, body string
		status             int
	}{
		{"unknown", "snappy", body, 415},
		{"too many", "gzip, gzip, gzip, gzip", body, 415},
		{"a lie", "gzip", body, 400},
		{"cut off", "gzip", encode(t, "gzip", body)[:100], 400},
		{"cut off zstd", "zstd", encode(t, "zstd", body)[:20], 400},
		{"no header", "", encode(t, "zstd", body), 400},
		{"garbage behind it", "gzip", encode(t, "gzip", body) + "garbage", 400},
	}
	for _, tt := range bad {
		var headers []string
		if tt.header != "" {
			headers = []string{"Content-Encoding", tt.header}
		}
		res := g.Post(t, "/v1/chat/completions", tt.body, headers...)
		if res.Status != tt.status {
			t.Errorf("%s: %s, want %d", tt.name, res, tt.status)
		}
		if e := res.Refusal(t); e.Error.Message == "" {
			t.Errorf("%s: the error has no message", tt.name)
		}
		if tt.status == 415 && !strings.Contains(res.Header.Get("Accept-Encoding"), "gzip") {
			t.Errorf("%s: the answer does not say what is accepted: %q", tt.name, res.Header)
		}
	}
	for _, up := range ups {
		if up.Served() != 0 {
			t.Errorf("an upstream got a refused request")
		}
	}
	g.WaitIdle(t)
}

// B5: a bomb is refused once it is too large, and a policy that stands alone
// passes on what came as it came.
func TestB5_BombsAndLonePolicies(t *testing.T) {
	t.Parallel()
	up := harness.NewUpstream(t, nil)
	g := harness.Start(t, harness.Config{Flexinfer: model("m", to(up)) + "max_body 1MiB"})
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 500 {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	for _, headers := range [][]string{{"Content-Encoding", "gzip"}, {"Content-Encoding", "gzip", "X-Model-ID", "m"}} {
		if res := g.Post(t, "/v1/chat/completions", bomb.String(), headers...); res.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("a bomb of %d bytes: %s", bomb.Len(), res)
		}
	}
	if up.Served() != 0 {
		t.Error("the bomb reached the upstream")
	}
	g.WaitIdle(t)

	ups := harness.NewUpstreams(t, 3, nil)
	lone := harness.Start(t, harness.Config{Site: "reverse_proxy " + addrs(ups...) + " {\n\tlb_policy flexinfer prefix\n}"})
	body := chatOf("anything", "hello")
	want := upstreamOf(t, lone.Chat(t, body))
	coded := encode(t, "gzip", body)
	if got := upstreamOf(t, lone.Chat(t, coded, "Content-Encoding", "gzip")); got != want {
		t.Errorf("the compressed body went to %s, the plain one to %s", got, want)
	}
	lone.Post(t, "/v1/chat/completions", "garbage", "Content-Encoding", "snappy")
	for _, up := range ups {
		for _, r := range up.Requests() {
			switch r.Header.Get("Content-Encoding") {
			case "gzip":
				if string(r.Body) != coded {
					t.Errorf("the upstream got other %d bytes of %d", len(r.Body), len(coded))
				}
			case "snappy":
				if string(r.Body) != "garbage" {
					t.Errorf("the upstream got %q", r.Body)
				}
			}
		}
	}
}
