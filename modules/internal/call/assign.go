package call

import (
	"net/http"
	"strings"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/responses"
)

// Assign gives the call a model of cat, whatever the request asks for: the
// body's own name for it stays. A body that cannot be read streams on, without
// a key and for one attempt only.
func (c *Call) Assign(r *http.Request, cat *catalog.Catalog, name string) {
	res, ok := cat.Table().Resolve(name)
	if !ok || c.catalog == cat && c.assigned {
		return
	}
	judged := c.resolved // by a handler that found another model
	if c.primed {        // and has an endpoint of it
		c.primed, c.attempts = false, 0
		c.endAttempt()
	}
	c.catalog, c.model, c.adapter, c.resolved, c.assigned = cat, res.Model, "", true, true
	if c.strategyName = c.model.StrategyName; c.chosen != nil {
		c.strategyName = c.chosenName
	}
	if judged || c.ReadBody(r) != nil {
		c.bound = responses.Place{}
		return
	}
	c.admitted = time.Now()
	if strings.HasPrefix(c.path, responsesPath) && c.follow() && c.bound.Model != name {
		c.bound = responses.Place{}
	}
	if !c.coded { // else it goes out as it came
		c.edit()
	}
}
