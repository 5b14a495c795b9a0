package strategies

import (
	"time"

	"github.com/caddyserver/caddy/v2"
)

// shared holds the one set of tables of the process, while any configuration
// uses it: a reload must not forget where chats are.
var shared = caddy.NewUsagePool()

const sharedKey = "prefix"

// tables are what the prefix strategy knows of keys and chats. They take
// 1 MiB, whatever the number of either.
type tables struct {
	heats heats
	chats chats
	now   func() time.Duration // monotonic
}

func newTables() *tables {
	base := time.Now()
	return &tables{now: func() time.Duration { return time.Since(base) }}
}

// Destruct implements [caddy.Destructor].
func (*tables) Destruct() error { return nil }
