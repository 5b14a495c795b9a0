package refusal

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestWrite(t *testing.T) {
	tests := []struct{ path, want string }{
		{"/v1/chat/completions", `{"error":{"message":"the model \"m\" does not exist","type":"not_found_error","param":"model","code":"model_not_found"}}`},
		{"/anything", `{"error":{"message":"the model \"m\" does not exist","type":"not_found_error","param":"model","code":"model_not_found"}}`},
		{"/v1/messages", `{"type":"error","error":{"type":"not_found_error","message":"the model \"m\" does not exist"}}`},
		{"/model/a/b/v1/messages", `{"type":"error","error":{"type":"not_found_error","message":"the model \"m\" does not exist"}}`},
		{"/model/a/api/chat", `{"error":"the model \"m\" does not exist"}`},
		{"/api/chat", `{"error":"the model \"m\" does not exist"}`},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			w := httptest.NewRecorder()
			if err := UnknownModel("m").Write(w, tt.path); err != nil {
				t.Fatal(err)
			}
			if got := w.Body.String(); got != tt.want+"\n" {
				t.Errorf("got %s", got)
			}
			if w.Code != http.StatusNotFound || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("status %d, headers %v", w.Code, w.Header())
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "", time.Millisecond: "1", time.Second: "1", 1500 * time.Millisecond: "2"} {
		w := httptest.NewRecorder()
		r := Upstream(http.StatusServiceUnavailable)
		r.RetryAfter = d
		if err := r.Write(w, "/v1/x"); err != nil {
			t.Fatal(err)
		}
		if got := w.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: Retry-After %q, want %q", d, got, want)
		}
	}
}

func TestHeader(t *testing.T) {
	w := httptest.NewRecorder()
	if err := UnsupportedCoding("no", "gzip, br").Write(w, "/v1/messages"); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusUnsupportedMediaType || w.Header().Get("Accept-Encoding") != "gzip, br" {
		t.Errorf("status %d, headers %v", w.Code, w.Header())
	}
	if got, want := w.Body.String(), `{"type":"error","error":{"type":"invalid_request_error","message":"no"}}`+"\n"; got != want {
		t.Errorf("got %s", got)
	}
}

// Z4: what a client sent is shown escaped and bounded.
func TestZ4HostileNames(t *testing.T) {
	for _, name := range []string{
		"a\r\nX-Evil: 1", "a\x00b", "http://169.254.169.254/", strings.Repeat("é", 1<<20), "\xff\xfe", "<script>",
	} {
		w := httptest.NewRecorder()
		if err := UnknownModel(name).Write(w, "/v1/chat/completions"); err != nil {
			t.Fatal(err)
		}
		if w.Body.Len() > 1024 {
			t.Errorf("an answer of %d bytes", w.Body.Len())
		}
		if !json.Valid(w.Body.Bytes()) || strings.ContainsAny(strings.TrimSuffix(w.Body.String(), "\n"), "\r\n\x00") {
			t.Errorf("answer %q", w.Body)
		}
	}
}
