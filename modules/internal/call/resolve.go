package call

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/catalog"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/coding"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/refusal"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/responses"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/validate"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const (
	modelHeader = "X-Model-Id"
	pathPrefix  = "/model/"

	// maxName bounds a model's name, in bytes. A longer one is nobody's.
	maxName = 1024
)

// Resolve finds out which of the catalog's models the request asks for. The
// first of these that names one counts:
//
//  1. the header X-Model-ID;
//  2. a path of the form /model/<name>/…, which loses the two segments (the
//     longest known name counts, since names may hold slashes);
//  3. the field model of a JSON body;
//  4. the form field model of a multipart body;
//  5. the query parameter model of a request without a body;
//  6. the answer that a path /v1/responses/<id>, or previous_response_id in a
//     body for /v1/responses, refers to, if one of its endpoints gave it.
//
// A name in the header or the path is judged before the body is read. The
// error is a [refusal.Refusal] or what came of reading the body; ReadBody's
// error of a body that is too large is turned into a refusal.
func (c *Call) Resolve(r *http.Request, cat *catalog.Catalog) error {
	if c.resolved {
		return nil
	}
	t := cat.Table()
	c.catalog, c.path = cat, r.URL.Path
	if ref := checkPath(r.URL.Path); ref != nil {
		return ref
	}
	name, ref := headerModel(r.Header)
	if ref != nil {
		return ref
	}
	if name == "" && strings.HasPrefix(r.URL.Path, pathPrefix) {
		rest := r.URL.Path[len(pathPrefix):]
		known, remainder, ok := t.LongestName(rest)
		if !ok {
			c.asked, _, _ = strings.Cut(rest, "/")
			return c.unknown(t)
		}
		name = known
		stripPath(r, len(r.URL.Path)-len(remainder))
		c.path = r.URL.Path
	}
	if name != "" {
		if ref := c.resolve(t, name); ref != nil {
			return ref
		}
		if c.group == nil {
			if err := c.mayWait(); err != nil {
				return err
			}
		}
	}
	if err := c.ReadWhole(r); err != nil {
		return err
	}
	if c.coded {
		c.decodes = true
		delete(r.Header, "Content-Encoding")
		c.raw.release()
		c.raw = nil
	}
	if name == "" {
		if name, ref = c.contentModel(r); ref != nil {
			return ref
		}
		followed := c.follow()
		switch {
		case name != "":
		case followed:
			name = c.bound.Model
		case strings.HasPrefix(c.path, responsesPath+"/"):
			return refusal.UnknownResponse()
		default:
			return refusal.NoModel()
		}
		if ref := c.resolve(t, name); ref != nil {
			return ref
		}
	} else {
		c.follow()
	}
	if c.group != nil {
		c.choose()
	}
	if c.bound.Model != c.model.Name {
		c.bound = responses.Place{} // of another model, by the same id
	}
	if ref := c.check(); ref != nil {
		return ref
	}
	c.edit()
	c.admitted = time.Now()
	if c.coded || len(c.edits) > 0 || name != c.model.Name { // the bytes are not what goes out
		c.Rewind(r)
	}
	return nil
}

// check refuses a request that engines would refuse for its shape, if the
// settings ask for it.
func (c *Call) check() *refusal.Refusal {
	d := c.doc
	if !c.set.Validate || d == nil {
		return nil
	}
	return validate.Request(c.path, d)
}

// choose finds the model of a label that gets the call: the one that holds what
// the call follows up, or the one that the group picks.
func (c *Call) choose() {
	c.model = nil // so that keys are the same whichever model it will be
	for _, m := range c.group.Members {
		if m.Name == c.bound.Model {
			c.model = m
		}
	}
	if c.model == nil {
		m, counter := c.group.Pick(c, c.dry)
		c.model = m
		c.counts(counter)
	}
	c.havePrefix = false // it has the model in it
	c.strategyName = cmp.Or(c.chosenName, c.model.StrategyName)
}

const responsesPath = "/v1/responses"

// follow finds out whether the request follows up an earlier answer of the API
// /v1/responses, and which endpoint holds that.
func (c *Call) follow() (ok bool) {
	if c.set.Responses == nil || !strings.HasPrefix(c.path, responsesPath) {
		return false
	}
	if id, below := strings.CutPrefix(c.path, responsesPath+"/"); below {
		id, _, _ = strings.Cut(id, "/")
		c.bound, ok = c.set.Responses.Find(id)
	} else if d := c.doc; d != nil {
		var id [responses.MaxID]byte
		if s, whole := d.AppendString(id[:0], d.Field(openai.FieldPreviousResponseID), len(id)); whole {
			c.bound, ok = c.set.Responses.Find(string(s))
		}
	}
	return ok
}

// Binds reports whether the answer gets an id that others will refer to.
func (c *Call) Binds() bool {
	return c.set.Responses != nil && c.model != nil && strings.HasSuffix(c.path, responsesPath)
}

// Bind notes that the endpoint holds the answer with this id.
func (c *Call) Bind(id string, e *routing.Endpoint) {
	if c.boundID != id {
		c.boundID = id
		c.set.Responses.Bind(id, responses.Place{Model: c.model.Name, Endpoint: e.ID})
	}
}

// Named finds the name of the model that the request asks for, in the same
// order as Resolve, without judging it. Only for matchers: the path stays.
func (c *Call) Named(r *http.Request, cat *catalog.Catalog) (string, error) {
	if c.asked != "" {
		return c.asked, nil
	}
	name, ref := headerModel(r.Header)
	if ref != nil {
		return "", nil
	}
	if name == "" && strings.HasPrefix(r.URL.Path, pathPrefix) {
		name, _, _ = cat.Table().LongestName(r.URL.Path[len(pathPrefix):])
		return name, nil
	}
	if name != "" {
		return name, nil
	}
	if err := c.ReadWhole(r); err != nil {
		return "", err
	}
	if name, _ = c.contentModel(r); name == "" && c.follow() {
		name = c.bound.Model
	}
	return name, nil
}

// ReadWhole is ReadBody for those who cannot do without the whole body: one
// that is too large is a refusal.
func (c *Call) ReadWhole(r *http.Request) error {
	err := c.ReadBody(r)
	if errors.Is(err, errTooLarge) {
		return refusal.TooLarge(c.set.MaxBody)
	}
	if err == nil && c.badCoding != nil {
		if ref := coding.Refusal(c.badCoding); ref != nil {
			return ref
		}
		return refusal.TooLarge(c.set.MaxBody)
	}
	return err
}

// resolve notes the model that name stands for.
func (c *Call) resolve(t *catalog.Table, name string) *refusal.Refusal {
	c.asked = name
	res, ok := t.Resolve(name)
	if !ok {
		return c.unknown(t)
	}
	c.resolved = true
	c.model, c.adapter = res.Model, res.Adapter
	c.group = res.Group
	c.strategyName = cmp.Or(c.chosenName, c.model.StrategyName)
	return nil
}

func (c *Call) unknown(t *catalog.Table) *refusal.Refusal {
	if !t.Settled() {
		return refusal.Starting(c.asked)
	}
	return refusal.UnknownModel(c.asked)
}

// UseStrategy makes s pick for this call instead of the model's own strategy.
func (c *Call) UseStrategy(s routing.Strategy, name string) {
	c.chosen, c.chosenName, c.strategyName = s, name, name
}

// headerModel returns the model that the header names, or "".
func headerModel(h http.Header) (string, *refusal.Refusal) {
	name := ""
	for _, v := range h[modelHeader] {
		v = strings.TrimSpace(v)
		switch {
		case v == "" || v == name:
		case name == "":
			name = v
		default:
			return "", refusal.BadRequest("invalid_model", "the header X-Model-ID is there twice, with different names")
		}
	}
	return name, nil
}

// contentModel returns the model that the body names or, where there is none,
// the query; or "".
func (c *Call) contentModel(r *http.Request) (string, *refusal.Refusal) {
	if c.length == 0 {
		return strings.TrimSpace(r.URL.Query().Get("model")), nil
	}
	return c.bodyModel(r)
}

// bodyModel returns the model that the body names, or "".
func (c *Call) bodyModel(r *http.Request) (name string, _ *refusal.Refusal) {
	var err error
	switch {
	case c.length <= 0:
		return "", nil
	case mediaType(r.Header) == typeForm:
		name, err = openai.FormModel(c.body, r.Header.Get("Content-Type"))
	case c.badDoc != nil:
		return "", refusal.BadRequest("invalid_json", c.badDoc.Error())
	case c.doc != nil:
		name, err = c.doc.Model(maxName)
		if errors.Is(err, openai.ErrNoModel) {
			name, err = c.oldName()
		}
	}
	switch {
	case err == nil:
		return name, nil
	case errors.Is(err, openai.ErrNoModel):
		return "", nil
	case errors.Is(err, openai.ErrModelTooLong):
		return "", refusal.UnknownModel("(a name of more than " + strconv.Itoa(maxName) + " bytes)")
	}
	ref := refusal.BadRequest("invalid_model", err.Error())
	ref.Param = "model"
	return "", ref
}

// oldName returns the model's name where Ollama's clients once wrote it.
func (c *Call) oldName() (string, error) {
	if s := c.oldNameSpan(); s.Present() {
		if name, ok := c.doc.String(s, maxName); ok && name != "" {
			return name, nil
		}
	}
	return "", openai.ErrNoModel
}

func (c *Call) oldNameSpan() (s openai.Span) {
	if strings.HasPrefix(c.path, "/api/") {
		s = c.doc.Lookup("name")
	}
	return s
}

// checkPath refuses a path that means another one to whoever cleans it: what
// the gateway judged must be what the upstream serves.
func checkPath(path string) *refusal.Refusal {
	if !strings.HasPrefix(path, "/") {
		return refusal.BadRequest("invalid_path", "the path does not start with a slash")
	}
	if !strings.Contains(path, "/.") && !strings.ContainsAny(path, "\\\x00") {
		return nil
	}
	if strings.ContainsAny(path, "\\\x00") {
		return refusal.BadRequest("invalid_path", "the path holds a character that a path cannot hold")
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return refusal.BadRequest("invalid_path", "the path holds a . or .. segment")
		}
	}
	return nil
}

// stripPath cuts the first n bytes off r's path, in its decoded and in its
// encoded form.
func stripPath(r *http.Request, n int) {
	escaped := r.URL.EscapedPath()
	i := 0
	for decoded := 0; decoded < n && i < len(escaped); decoded++ {
		if escaped[i] == '%' {
			i += 2
		}
		i++
	}
	path, raw := r.URL.Path[n:], escaped[min(i, len(escaped)):]
	if path == "" {
		path, raw = "/", "/"
	}
	u := *r.URL
	u.Path, u.RawPath = path, ""
	if (&url.URL{Path: path}).EscapedPath() != raw {
		u.RawPath = raw
	}
	r.URL = &u
	r.RequestURI = u.RequestURI()
}
