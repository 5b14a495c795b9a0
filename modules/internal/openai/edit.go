package openai

import (
	"cmp"
	"slices"
)

// An Edit replaces the bytes of a body at its span, or inserts bytes before
// the one at Start if the span is empty. The rest of the body stays as it is.
type Edit struct {
	Span

	// With is what the body has instead.
	With []byte
}

// Splice appends the pieces of body as edits leave it to dst, in their order
// and without copying any. It sorts edits, which must not overlap.
func Splice(dst [][]byte, body []byte, edits []Edit) [][]byte {
	slices.SortStableFunc(edits, func(a, b Edit) int { return cmp.Compare(a.Start, b.Start) })
	piece := func(b []byte) {
		if len(b) > 0 {
			dst = append(dst, b)
		}
	}
	from := 0
	for _, e := range edits {
		piece(body[from:e.Start])
		piece(e.With)
		from = e.End
	}
	piece(body[from:])
	return dst
}

// AskUsage returns the edit that has the engine report the usage of a stream,
// if the body does not ask for that itself. There is none for a body that does
// not ask for a stream, since engines refuse it, nor for one whose
// stream_options are unusual: what the client then gets is what the engine
// makes of them.
func (d *Doc) AskUsage() (e Edit, ok bool) {
	if stream, _ := d.Bool(d.fields[FieldStream]); !stream || d.counts[FieldStream] != 1 || d.counts[FieldStreamOptions] > 1 {
		return Edit{}, false
	}
	options := d.fields[FieldStreamOptions]
	switch d.Kind(options) {
	case Absent:
		end := d.object.End - 1 // behind stream
		return Edit{Span{end, end}, []byte(`,"stream_options":{"include_usage":true}`)}, true
	case Null:
		if string(d.Raw(options)) != "null" {
			return Edit{}, false
		}
		return Edit{options, []byte(`{"include_usage":true}`)}, true
	case Object:
		return d.askUsageIn(options)
	}
	return Edit{}, false
}

func (d *Doc) askUsageIn(options Span) (e Edit, ok bool) {
	var include Span
	members, includes := 0, 0
	m := d.Members(options)
	for m.Next() {
		members++
		switch {
		case m.KeyIs("include_usage"):
			includes++
			include = m.Value
		case m.KeyIs("continuous_usage_stats"):
			// With usage in every chunk there is no one chunk to hide.
			if on, isBool := d.Bool(m.Value); (on || !isBool) && string(d.Raw(m.Value)) != "null" {
				includes++
			}
		}
	}
	switch value := string(d.Raw(include)); {
	case !m.closed || m.i != options.End:
		return Edit{}, false
	case value == "true":
		return Edit{}, false
	case includes > 1 || includes == 1 && value != "false" && value != "null":
		return Edit{}, false
	case value != "":
		return Edit{include, []byte("true")}, true
	}
	first := options.Start + 1
	with := `"include_usage":true`
	if members > 0 {
		with += ","
	}
	return Edit{Span{first, first}, []byte(with)}, true
}
