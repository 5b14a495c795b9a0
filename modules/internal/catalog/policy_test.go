package catalog

import (
	"sync/atomic"
	"testing"
)

func TestWindow(t *testing.T) {
	learned := new(atomic.Int64)
	for _, tt := range []struct {
		name   string
		policy Policy
		learn  int64
		want   int
	}{
		{"unknown", Policy{}, 0, 0},
		{"declared", Policy{ContextWindow: 4096}, 0, 4096},
		{"not learned yet", Policy{LearnedWindow: learned}, 0, 0},
		{"learned", Policy{LearnedWindow: learned}, 8192, 8192},
	} {
		learned.Store(tt.learn)
		if got := tt.policy.Window(); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}
