package openai

import (
	"strings"
	"testing"
)

func TestMediaType(t *testing.T) {
	for _, tt := range []struct {
		values []string
		want   string
	}{
		{nil, ""},
		{[]string{""}, ""},
		{[]string{" \t"}, ""},
		{[]string{";"}, ""},
		{[]string{"; charset=utf-8"}, ""},
		{[]string{"application/json"}, "application/json"},
		{[]string{"text/event-stream"}, "text/event-stream"},
		{[]string{"application/json; charset=utf-8"}, "application/json"},
		{[]string{"text/event-stream;charset=utf-8"}, "text/event-stream"},
		{[]string{"\tText/Event-Stream ; Charset=UTF-8"}, "text/event-stream"},
		{[]string{"APPLICATION/JSON"}, "application/json"},
		{[]string{"application/vnd.API+JSON;v=1;x=2"}, "application/vnd.api+json"},
		{[]string{`multipart/form-data; boundary="a;b"`}, "multipart/form-data"},
		{[]string{"application/json, text/plain"}, "application/json, text/plain"},
		{[]string{"application/json ", "text/plain"}, "application/json"},
		{[]string{"", "application/json"}, ""},
		{[]string{"application/jsonl"}, "application/jsonl"},
		{[]string{"none"}, "none"},
	} {
		if got := MediaType(tt.values); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.values, got, tt.want)
		}
	}
}

func TestMediaTypeAllocatesNothing(t *testing.T) {
	for _, v := range []string{"application/json", "text/event-stream", "text/event-stream; charset=utf-8", ""} {
		values := []string{v}
		if n := testing.AllocsPerRun(100, func() { MediaType(values) }); n != 0 {
			t.Errorf("%q: %v allocations", v, n)
		}
	}
}

func BenchmarkMediaType(b *testing.B) {
	for _, v := range []string{"application/json", "text/event-stream", "text/event-stream; charset=utf-8", "Application/JSON"} {
		b.Run(strings.ReplaceAll(v, "/", "_"), func(b *testing.B) {
			values := []string{v}
			b.ReportAllocs()
			for b.Loop() {
				MediaType(values)
			}
		})
	}
}
