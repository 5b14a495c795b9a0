package call

import (
	"strconv"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/metrics"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// log writes the decision, at level debug.
func (c *Call) log(d routing.Decision) {
	if d.Lease.IsService() {
		if e := c.set.Logger.Check(zapcore.DebugLevel, "routing fallback to service"); e != nil {
			e.Write(zap.String("model", c.model.Name), zap.String("strategy", c.strategyName),
				zap.Stringer("key_source", d.Key.Source))
		}
		return
	}
	if e := c.set.Logger.Check(zapcore.DebugLevel, "routing to pod"); e != nil {
		e.Write(zap.String("model", c.model.Name), zap.String("strategy", c.strategyName),
			zap.String("target", d.Lease.Endpoint().Target()), zap.Stringer("key_source", d.Key.Source))
	}
}

// Outcome returns how metrics call a decision's outcome.
func Outcome(d routing.Decision) string {
	if d.Lease.IsService() {
		return metrics.OutcomeService
	}
	return metrics.OutcomePod
}

// Target returns how metrics call the target of a decision, "" if there is
// none.
func Target(d routing.Decision) string {
	switch {
	case d.Lease == nil:
		return ""
	case d.Lease.IsService():
		return metrics.TargetService
	}
	return d.Lease.Endpoint().Target()
}

// AllowRoute says whether the answer tells the client how it was routed.
func (c *Call) AllowRoute(yes bool) { c.tellRoute = yes }

// RouteHeader is the field that tells a client how its call was routed.
const RouteHeader = "X-Flexinfer-Route"

// Route returns the value of RouteHeader, or "" if the client is not to
// be told.
func (c *Call) Route() string {
	if !c.tellRoute || c.decision.Lease == nil {
		return ""
	}
	d := c.decision
	return "target=" + Target(d) + " strategy=" + c.strategyName + " key_source=" + d.Key.Source.String() +
		" outcome=" + Outcome(d) + " attempt=" + strconv.Itoa(c.attempts)
}
