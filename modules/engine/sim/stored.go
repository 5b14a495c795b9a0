package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/tidwall/gjson"
)

// How many responses an engine keeps, and how large they may be together.
const (
	maxResponses     = 1000
	maxResponseBytes = 64 << 20
)

// A storedResponse is a response that others may go on with.
type storedResponse struct {
	id           string
	body         []byte
	items        []json.RawMessage // of the input
	conversation []byte            // rendered, with the answer
}

func (r *storedResponse) size() int {
	n := len(r.body) + len(r.conversation)
	for _, item := range r.items {
		n += len(item)
	}
	return n
}

// responses are the latest ones, the oldest first.
type responses struct {
	mu    sync.Mutex
	byID  map[string]*storedResponse
	order []*storedResponse
	bytes int
}

func (s *responses) put(r *storedResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = make(map[string]*storedResponse)
	}
	s.remove(r.id)
	s.byID[r.id] = r
	s.order = append(s.order, r)
	s.bytes += r.size()
	for len(s.order) > maxResponses || s.bytes > maxResponseBytes {
		s.remove(s.order[0].id)
	}
}

// remove forgets a response. s.mu must be held.
func (s *responses) remove(id string) bool {
	r := s.byID[id]
	if r == nil {
		return false
	}
	delete(s.byID, id)
	s.bytes -= r.size()
	for i := range s.order {
		if s.order[i] == r {
			s.order = append(s.order[:i], s.order[i+1:]...)
			break
		}
	}
	return true
}

// find returns the response that the client names under param.
func (s *responses) find(param, id string) (*storedResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byID[id]; r != nil {
		return r, nil
	}
	return nil, unknownResponse(param, id)
}

func unknownResponse(param, id string) error {
	return &apiError{http.StatusNotFound, param, fmt.Sprintf("Response with id '%s' not found.", id)}
}

func (x *exchange) stored() (*storedResponse, error) {
	return x.engine.responses.find("response_id", x.r.PathValue("id"))
}

func (x *exchange) getResponse() error {
	r, err := x.stored()
	if err != nil {
		return err
	}
	return x.replyBytes("application/json", r.body)
}

func (x *exchange) deleteResponse() error {
	id, s := x.r.PathValue("id"), &x.engine.responses
	s.mu.Lock()
	ok := s.remove(id)
	s.mu.Unlock()
	if !ok {
		return unknownResponse("response_id", id)
	}
	return x.reply(fields{"id": id, "object": "response", "deleted": true})
}

// cancelResponse finds nothing to cancel: what is kept is complete.
func (x *exchange) cancelResponse() error {
	if _, err := x.stored(); err != nil {
		return err
	}
	return badRequest("response_id", "Cannot cancel a synchronous response.")
}

func (x *exchange) inputItems() error {
	r, err := x.stored()
	if err != nil {
		return err
	}
	return x.reply(fields{
		"object": "list", "data": r.items, "has_more": false,
		"first_id": gjson.GetBytes(r.items[0], "id").Value(), "last_id": gjson.GetBytes(r.items[len(r.items)-1], "id").Value(),
	})
}

// inputItems returns the items of a response's input, with IDs where the
// client gave them none.
func inputItems(response string, input gjson.Result) ([]json.RawMessage, error) {
	var items []json.RawMessage
	var err error
	add := func(item fields) {
		if item["id"] == nil {
			item["id"] = "msg_" + strconv.Itoa(len(items)) + "_" + response
		}
		var b []byte
		if b, err = json.Marshal(item); err == nil {
			items = append(items, b)
		}
	}
	if input.Type == gjson.String {
		add(fields{"type": "message", "role": "user", "status": "completed", "content": []any{fields{"type": "input_text", "text": input.Str}}})
		return items, err
	}
	input.ForEach(func(_, v gjson.Result) bool {
		item := make(fields)
		for name, value := range object(v) {
			item[name] = json.RawMessage(value.Raw)
		}
		add(item)
		return err == nil
	})
	return items, err
}
