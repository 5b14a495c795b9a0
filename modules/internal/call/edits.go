package call

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/clamp"
	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
)

// edit works out what endpoints are to see otherwise than the client wrote it,
// whichever endpoint it is. The body itself stays as it is.
func (c *Call) edit() {
	d := c.doc
	if d == nil {
		return
	}
	if window := c.model.Policy.Window(); c.set.Clamp && window > 0 {
		reserve := c.set.PromptReserve
		if reserve == 0 {
			reserve = clamp.Estimate(d)
		}
		edits, change := clamp.Edits(c.edits, d, clamp.Cap(window, reserve))
		if len(edits) > 0 {
			c.edits, c.clamped = edits, change.String()
			c.model.Metrics.Clamped()
		}
	}
	if c.set.AskUsage && c.speaksOpenAI() {
		if e, ok := d.AskUsage(); ok {
			c.edits, c.hidesUsage = append(c.edits, e), true
		}
	}
}

// Clamped returns how a limit of tokens was cut down, as <old>-><new>, or "".
func (c *Call) Clamped() string { return c.clamped }

// HidesUsage reports whether the stream will tell of its usage though the
// client did not ask for it.
func (c *Call) HidesUsage() bool { return c.hidesUsage }

// upstreamName returns the name by which the endpoint of the attempt under way
// knows what was asked for.
func (c *Call) upstreamName() string {
	own := ""
	if e := c.Lease().Endpoint(); e != nil {
		own = e.Model
	}
	return cmp.Or(c.adapter, own, c.model.Name)
}

// Renamed returns the name that the answer is to give the model, or "" if the
// endpoint knows it by the name that was asked for.
func (c *Call) Renamed() string {
	if !c.set.MapModel || c.model == nil || c.assigned || c.asked == c.upstreamName() {
		return ""
	}
	return c.asked
}

// UpstreamModel returns the name of the model in the last attempt's request.
func (c *Call) UpstreamModel() string {
	if c.model == nil || c.attempts == 0 {
		return ""
	}
	return c.sentName
}

// outgoing returns the pieces of the body as the endpoint of the attempt under
// way is to see it.
func (c *Call) outgoing() [][]byte {
	if c.model == nil {
		return [][]byte{c.body}
	}
	edits := slices.Clip(c.edits)
	if !c.assigned {
		c.sentName = c.upstreamName()
	}
	switch {
	case c.assigned:
	case c.form:
		edits = append(edits, c.renameForm(c.sentName)...)
	case c.doc != nil:
		if e, ok := c.rename(c.sentName); ok {
			edits = append(edits, e)
		}
	}
	if len(edits) == 0 {
		return [][]byte{c.body}
	}
	return openai.Splice(nil, c.body, edits)
}

// rename returns the edit that gives the value of the field model, if there is
// one, the name.
func (c *Call) rename(name string) (e openai.Edit, ok bool) {
	value := c.doc.Field(openai.FieldModel)
	now, err := c.doc.Model(maxName)
	if errors.Is(err, openai.ErrNoModel) && !value.Present() {
		value = c.oldNameSpan()
		now, err = c.oldName()
	}
	if err != nil || now == name {
		return e, false
	}
	quoted, err := json.Marshal(name)
	return openai.Edit{Span: value, With: quoted}, err == nil
}

// renameForm returns the edits that give a form's field model the value name.
func (c *Call) renameForm(name string) (edits []openai.Edit) {
	if !c.haveFormModels { // there may be several attempts, and files are large
		c.haveFormModels = true
		c.formModels = openai.FormModels(c.body, c.header.Get("Content-Type"))
	}
	for _, s := range c.formModels {
		if string(c.body[s.Start:s.End]) != name {
			edits = append(edits, openai.Edit{Span: s, With: []byte(name)})
		}
	}
	return edits
}

// Rewind gives r a body that reads the call's bytes from the start, for one
// attempt: those that came, but for what the endpoint is to see otherwise.
func (c *Call) Rewind(r *http.Request) {
	if c.length < 0 || c.ended || c.length > 0 && c.body == nil {
		return
	}
	if c.coded && !c.decodes { // not for an endpoint of ours
		c.rewind(r, c.raw, [][]byte{c.raw.b})
		return
	}
	if c.length == 0 {
		r.Body, r.ContentLength = http.NoBody, 0
		return
	}
	c.rewind(r, c.buf, c.outgoing())
}

func (c *Call) rewind(r *http.Request, buf *buffer, pieces [][]byte) {
	r.ContentLength = lengthOf(pieces)
	if len(pieces) > 1 || c.decodes {
		DropDigests(r.Header)
	}
	if buf != nil {
		r.Body = &attemptBody{buf: buf, rest: pieces}
	} else {
		// A reader that net/http knows: it then sends head and body in
		// one packet. Nobody knows when it is done with it, hence no
		// pooled buffer.
		whole := pieces[0]
		if len(pieces) > 1 {
			whole = bytes.Join(pieces, nil)
		}
		r.Body = io.NopCloser(bytes.NewReader(whole))
	}
	if len(r.Trailer) > 0 {
		r.ContentLength = -1 // trailers follow chunks only
	}
}

// DropDigests drops the digests of a body whose bytes have been changed.
func DropDigests(h http.Header) {
	for _, field := range []string{"Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
		delete(h, field)
	}
}
