package app

import (
	"strings"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// warnOfNoDrain warns if the http app of ctx's configuration, which need not
// have started yet, does not say how a stop goes. It is for Start, when all
// apps are provisioned: looking does not bring one about.
func warnOfNoDrain(ctx caddy.Context, logger *zap.Logger) {
	v, err := ctx.AppIfConfigured("http")
	if err != nil {
		return
	}
	srv, ok := v.(*caddyhttp.App)
	if !ok {
		return
	}
	var unset []string
	if srv.ShutdownDelay == 0 {
		unset = append(unset, "shutdown_delay 5s")
	}
	if srv.GracePeriod == 0 {
		unset = append(unset, "grace_period 10m")
	}
	if len(unset) > 0 {
		logger.Warn("a stop gives load balancers no time to turn away, or streams no bound; set Caddy's global options",
			zap.String("options", strings.Join(unset, ", ")))
	}
}
