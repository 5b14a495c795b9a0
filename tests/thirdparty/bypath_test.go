package bypath

import (
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A strategy is tested with plain values: no Caddy, no server, no sockets.
func TestPick(t *testing.T) {
	small := map[string]string{"pool": "small"}
	s := routing.NewSnapshot("m",
		routing.Spec{Scheme: "http", Address: "10.0.0.1:80"},
		routing.Spec{Scheme: "http", Address: "10.0.0.2:80"},
		routing.Spec{Scheme: "http", Address: "10.0.1.1:80", Labels: small},
		routing.Spec{Scheme: "http", Address: "10.0.1.2:80", Labels: small},
	)
	b := &ByPath{Pools: map[string]string{"/v1/embeddings": "small", "/v1/embeddings/big": ""}}
	for _, tc := range []struct {
		path  string
		tried []string
		want  string
	}{
		{"/v1/chat/completions", nil, "10.0.0.1:80"},
		{"/v1/chat/completions", nil, "10.0.0.2:80"}, // the first is busy now
		{"/v1/embeddings", nil, "10.0.1.1:80"},
		{"/v1/embeddings", nil, "10.0.1.2:80"},
		{"/v1/embeddings", []string{"http://10.0.1.1:80"}, "10.0.1.2:80"},
		{"/v1/embeddings/big", nil, "10.0.0.1:80"},
		{"/v1/embeddings", []string{"http://10.0.1.1:80", "http://10.0.1.2:80"}, ""},
	} {
		d := b.Pick(&routing.Request{Keys: routing.FixedKeys{}, Path: tc.path, Tried: tc.tried}, s)
		got := ""
		if d.Lease != nil {
			got = d.Lease.Endpoint().Address
		}
		if got != tc.want {
			t.Errorf("%s, tried %v: picked %q, want %q", tc.path, tc.tried, got, tc.want)
		}
	}
}

func TestPoolsAreNeeded(t *testing.T) {
	if err := new(ByPath).Validate(); err == nil {
		t.Error("no pools are no error")
	}
	if err := (&ByPath{Pools: map[string]string{"v1": "small"}}).Validate(); err == nil {
		t.Error("a path without a slash is no error")
	}
}
