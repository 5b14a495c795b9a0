package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

const (
	maxBody = 64 << 20

	// maxNesting is how deep encoding/json goes into a body; gjson recurses
	// without a bound.
	maxNesting = 10_000

	// defaultAnswer is how many tokens an answer has when the client names no
	// limit.
	defaultAnswer = 16

	// maxChoices bounds prompts × n of one request.
	maxChoices = 1024
)

// An apiError is a refusal in words a client can use.
type apiError struct {
	status  int
	param   string
	message string
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) error {
	return &apiError{http.StatusBadRequest, param, fmt.Sprintf(format, args...)}
}

// readBody reads a request's body to its end.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	var b bytes.Buffer
	if n := r.ContentLength; n > 0 && n < 1<<20 {
		b.Grow(int(n) + bytes.MinRead)
	}
	if _, err := b.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, &apiError{http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body is larger than %d bytes", maxBody)}
		}
		if errors.Is(err, io.ErrUnexpectedEOF) || r.Context().Err() != nil {
			return nil, errGone
		}
		return nil, badRequest("", "reading the body: %v", err)
	}
	return b.Bytes(), nil
}

// A request is the top level of a JSON body. As in the engines written in
// Python, names are matched by their exact case and the last of several
// counts; null is the same as absent.
type request map[string]gjson.Result

func parseRequest(body []byte) (request, error) {
	valid := gjson.ValidBytes
	if bytes.Count(body, []byte{'['})+bytes.Count(body, []byte{'{'}) > maxNesting {
		valid = func(b []byte) bool { return json.Valid(b) && gjson.ValidBytes(b) }
	}
	if !utf8.Valid(body) || !valid(body) {
		return nil, badRequest("", "the body is not valid JSON")
	}
	top := gjson.ParseBytes(body)
	if !top.IsObject() {
		return nil, badRequest("", "the body must be a JSON object")
	}
	return object(top), nil
}

func object(v gjson.Result) request {
	fields := make(request, 8)
	v.ForEach(func(name, value gjson.Result) bool {
		fields[name.String()] = value
		return true
	})
	return fields
}

func (q request) text(name string) (string, error) {
	v := q[name]
	if v.Type != gjson.Null && v.Type != gjson.String {
		return "", badRequest(name, "%s must be a string", name)
	}
	return v.String(), nil
}

// flag returns true or false, or otherwise if it is absent.
func (q request) flag(name string, otherwise bool) (bool, error) {
	v := q[name]
	switch {
	case v.Type == gjson.Null:
		return otherwise, nil
	case !v.IsBool():
		return false, badRequest(name, "%s must be true or false", name)
	}
	return v.Bool(), nil
}

// number returns a whole number of at least 1, or otherwise if it is absent.
func (q request) number(name string, otherwise int) (int, error) {
	v := q[name]
	if v.Type == gjson.Null {
		return otherwise, nil
	}
	if n := v.Num; v.Type == gjson.Number && n >= 1 && n <= 1<<31 && n == float64(int(n)) {
		return int(n), nil
	}
	return 0, badRequest(name, "%s must be a whole number of at least 1", name)
}

// An extent is how many tokens an answer has, and why it ends there.
type extent struct {
	tokens int
	finish string
}

// extent returns that of the answer that is asked for. Of several names for
// the limit the first one counts.
func (q request) extent(names ...string) (extent, error) {
	for _, name := range names {
		if q[name].Type == gjson.Null {
			continue
		}
		n, err := q.number(name, 0)
		return extent{n, finishLength}, err
	}
	return extent{defaultAnswer, finishStop}, nil
}

const (
	finishStop   = "stop"
	finishLength = "length"
)

func unknownModel(name string) error {
	return &apiError{http.StatusNotFound, "model", fmt.Sprintf("The model `%s` does not exist.", name)}
}

// parse returns the body of an exchange and the model it asks for.
func (x *exchange) parse() (request, *model, error) {
	q, err := parseRequest(x.body)
	if err != nil {
		return nil, nil, err
	}
	m, err := x.modelOf(q)
	return q, m, err
}

// modelOf returns the model that q asks for, and notes it.
func (x *exchange) modelOf(q request) (*model, error) {
	name, err := q.text("model")
	if err == nil && name == "" && x.api == ollamaAPI {
		name, err = q.text("name") // of old clients
	}
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = x.engine.cfg.Models[0]
	}
	m := x.engine.models[name]
	x.engine.history.update(x.note, func(n *note) {
		if m != nil {
			n.Model = m.name
			return
		}
		// A copy, so that the note does not hold on to the body.
		n.Model = strings.Clone(name[:min(len(name), 256)])
	})
	if m == nil {
		return nil, unknownModel(name)
	}
	return m, nil
}

// single returns the sequence of one prompt, its answer bounded by a limit in
// q, and whether the answer is to be a stream.
func (x *exchange) single(q request, m *model, p prompt, limit string) (s *sequence, stream bool, err error) {
	answer, err := q.extent(limit)
	if err != nil {
		return nil, false, err
	}
	if stream, err = q.flag("stream", false); err != nil {
		return nil, false, err
	}
	all, err := x.sequences(q, m, []prompt{p}, 1, answer)
	if err != nil {
		return nil, false, err
	}
	return all[0], stream, nil
}

// sequences returns n sequences for each of the prompts.
func (x *exchange) sequences(q request, m *model, prompts []prompt, n int, answer extent) ([]*sequence, error) {
	salt, err := q.text("cache_salt")
	if err != nil {
		return nil, err
	}
	if n > maxChoices/len(prompts) {
		return nil, badRequest("n", "%d choices for %d prompts are more than %d", n, len(prompts), maxChoices)
	}
	all := make([]*sequence, 0, n*len(prompts))
	for _, p := range prompts {
		for choice := range n {
			text := p
			if choice > 0 {
				text = bytes.Clone(all[len(all)-1].text)
			}
			s := x.engine.newSequence(m, text, salt, answer.tokens)
			if window := x.engine.cfg.MaxModelLen; s.prompt+s.answer > window {
				return nil, badRequest("", "This model's maximum context length is %d tokens. However, you requested %d tokens "+
					"(%d in the prompt, %d in the answer). Please reduce the length of the prompt or of the answer.",
					window, s.prompt+s.answer, s.prompt, s.answer)
			}
			s.choice, s.finish = choice, answer.finish
			s.seed += uint64(choice) << 32
			all = append(all, s)
		}
	}
	return all, nil
}
