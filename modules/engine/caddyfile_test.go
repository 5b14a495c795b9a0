package engine

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func TestUnmarshalCaddyfile(t *testing.T) {
	for _, tt := range []struct {
		name, input, want, err string
	}{
		{name: "bare", input: `flexinfer_engine`, want: `{}`},
		{name: "empty block", input: "flexinfer_engine {\n}", want: `{}`},
		{
			name: "all",
			input: `flexinfer_engine {
				name a
				model x y
				model z
				ttft 1d
				prefill_tokens_per_second 1.5
				tokens_per_second 0
				kv_blocks 100
				block_size 32
				max_num_seqs 8
				max_model_len 2048
			}`,
			want: `{"name":"a","model":["x","y","z"],"ttft":86400000000000,"prefill_tokens_per_second":1.5,"tokens_per_second":0,` +
				`"kv_blocks":100,"block_size":32,"max_num_seqs":8,"max_model_len":2048}`,
		},
		{name: "no delay", input: "flexinfer_engine {\n ttft 0\n}", want: `{"ttft":0}`},
		{name: "argument", input: `flexinfer_engine x`, err: "flexinfer_engine { model x }"},
		{name: "unknown", input: "flexinfer_engine {\n blocks 5\n}", err: "Testfile:2"},
		{name: "unknown lists the known", input: "flexinfer_engine {\n blocks 5\n}", err: "kv_blocks, block_size"},
		{name: "twice", input: "flexinfer_engine {\n ttft 1s\n ttft 2s\n}", err: "ttft is already set"},
		{name: "no value", input: "flexinfer_engine {\n kv_blocks\n}", err: "wrong argument count"},
		{name: "two values", input: "flexinfer_engine {\n kv_blocks 1 2\n}", err: `kv_blocks takes one value: remove "2"`},
		{name: "a block", input: "flexinfer_engine {\n ttft 1s {\n x\n}\n}", err: "takes no block"},
		{name: "no model", input: "flexinfer_engine {\n model\n}", err: "model needs a name"},
		{name: "model twice", input: "flexinfer_engine {\n model a\n model b a\n}", err: `model "a" is named twice`},
		{name: "duration", input: "flexinfer_engine {\n ttft 20\n}", err: "write one such as 20ms"},
		{name: "negative duration", input: "flexinfer_engine {\n ttft -1s\n}", err: "write one such as 20ms"},
		{name: "rate", input: "flexinfer_engine {\n tokens_per_second fast\n}", err: "write a number of tokens per second"},
		{name: "negative rate", input: "flexinfer_engine {\n tokens_per_second -1\n}", err: "write a number of tokens per second"},
		{name: "no number", input: "flexinfer_engine {\n prefill_tokens_per_second NaN\n}", err: "write a number of tokens per second"},
		{name: "zero blocks", input: "flexinfer_engine {\n kv_blocks 0\n}", err: "write a whole number of at least 1"},
		{name: "half a block", input: "flexinfer_engine {\n block_size 0.5\n}", err: "write a whole number of at least 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h Handler
			err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			if tt.err != "" {
				return
			}
			if got, err := json.Marshal(h); err != nil || string(got) != tt.want {
				t.Errorf("got  %s, %v\nwant %s", got, err, tt.want)
			}
		})
	}
}
