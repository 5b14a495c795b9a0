package app

import (
	"encoding/json"
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddyserver/caddy/v2"
)

func TestWarnOfNoDrain(t *testing.T) {
	for _, tt := range []struct{ name, http, want string }{
		{"no http app", ``, ""},
		{"neither", `{}`, "shutdown_delay 5s, grace_period 10m"},
		{"no delay", `{"grace_period": "1s"}`, "shutdown_delay 5s"},
		{"no grace period", `{"shutdown_delay": "1s"}`, "grace_period 10m"},
		{"both", `{"shutdown_delay": "1s", "grace_period": "1s"}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			apps := caddy.ModuleMap{}
			if tt.http != "" {
				apps["http"] = json.RawMessage(tt.http)
			}
			ctx, err := caddy.ProvisionContext(&caddy.Config{AppsRaw: apps})
			if err != nil {
				t.Fatal(err)
			}
			core, logs := observer.New(zap.WarnLevel)
			warnOfNoDrain(ctx, zap.New(core))
			got := ""
			for _, entry := range logs.All() {
				got += fmt.Sprint(entry.ContextMap()["options"])
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if _, err := ctx.AppIfConfigured("http"); (err == nil) != (tt.http != "") {
				t.Errorf("the http app: %v", err)
			}
		})
	}
}
