package matchers

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func TestLike(t *testing.T) {
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{"chat", "chat", true},
		{"chat", "chat2", false},
		{"chat", "Chat", false},
		{"qwen3-*", "qwen3-8b", true},
		{"qwen3-*", "qwen3-", true},
		{"qwen3-*", "qwen2-8b", false},
		{"*", "org/name:tag", true},
		{"*", "", true},
		{"org/*", "org/name", true},
		{"*-8b", "qwen3-8b", true},
		{"*-8b", "qwen3-8b-instruct", false},
		{"q*-*b", "qwen3-8b", true},
		{"q*3*b", "q3b", true},
		{"a*a", "a", false},
		{"*a*b*", "xxaxxbxx", true},
		{"*a*b*", "xxbxxaxx", false},
		{"a**b", "ab", true},
	}
	for _, tt := range tests {
		if got := like(tt.pattern, tt.name); got != tt.want {
			t.Errorf("like(%q, %q) = %v", tt.pattern, tt.name, got)
		}
	}
}

func FuzzLike(f *testing.F) {
	f.Add("a*b*c", "axbxc")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if like(pattern, name) && !strings.Contains(pattern, "*") && pattern != name {
			t.Errorf("%q matches %q", pattern, name)
		}
		if !strings.Contains(name, "*") && !like(name+"*", name) {
			t.Errorf("%q does not match %q", name+"*", name)
		}
	})
}

func TestUnmarshalKey(t *testing.T) {
	tests := []struct{ input, err string }{
		{"flexinfer_key explicit-header explicit-body", ""},
		{"flexinfer_key none", ""},
		{"flexinfer_key", "expected a source of keys"},
		{"flexinfer_key header", "write one of: none, explicit-header"},
		{"flexinfer_key session-fallback", "unknown source of keys"},
		{"flexinfer_key none {\n\tx\n}", "no block"},
	}
	for _, tt := range tests {
		t.Run(tt.input, func(t *testing.T) {
			var m MatchKey
			err := m.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			switch {
			case tt.err == "" && err != nil:
				t.Error(err)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}
