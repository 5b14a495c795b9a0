package gateway

import "testing"

func TestPlainVersion(t *testing.T) {
	for in, want := range map[string]string{
		"v0.1.0": "0.1.0", "v1.2.3-rc.1": "1.2.3-rc.1", "v0.1.0+dirty": "0.1.0", "(devel)": "0.0.0", "": "0.0.0",
		"v0.0.0-20261130014928-a6e762c0068f+dirty": "0.0.0-20261130014928-a6e762c0068f",
	} {
		if got := plainVersion(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}
