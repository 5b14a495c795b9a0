package sim

import (
	"strings"
	"testing"
)

func newTestEngine(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestConfigValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"default", func(*Config) {}, ""},
		{"no delays", func(c *Config) { c.TTFT, c.PrefillRate, c.DecodeRate = 0, 0, 0 }, ""},
		{"no model", func(c *Config) { c.Models = nil }, "no model"},
		{"empty model", func(c *Config) { c.Models = []string{""} }, "must not be empty"},
		{"double model", func(c *Config) { c.Models = []string{"a", "a"} }, `"a" is named twice`},
		{"ttft", func(c *Config) { c.TTFT = -1 }, "ttft"},
		{"prefill", func(c *Config) { c.PrefillRate = -1 }, "prefill_tokens_per_second"},
		{"decode", func(c *Config) { c.DecodeRate = -1 }, "tokens_per_second"},
		{"blocks", func(c *Config) { c.KVBlocks = 0 }, "kv_blocks"},
		{"block size", func(c *Config) { c.BlockSize = 0 }, "block_size"},
		{"seqs", func(c *Config) { c.MaxNumSeqs = -5 }, "max_num_seqs"},
		{"window", func(c *Config) { c.MaxModelLen = 65537 }, "max_model_len 65537 must be at most kv_blocks × block_size = 65536"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := DefaultConfig()
			tt.change(&cfg)
			_, err := New(cfg)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
