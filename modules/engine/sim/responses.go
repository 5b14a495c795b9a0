package sim

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/tidwall/gjson"
)

// A fields is a JSON object whose members are written down where they are made.
type fields = map[string]any

func (x *exchange) responses() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	p, a, err := x.responsePrompt(q)
	if err != nil {
		return err
	}
	s, stream, err := x.single(q, m, p, "max_output_tokens")
	if err != nil {
		return err
	}
	if a.keep, err = q.flag("store", true); err != nil {
		return err
	}
	a.response = fields{
		"id": x.id("resp_"), "object": "response", "created_at": time.Now().Unix(), "model": m.name,
		"system_fingerprint": "fp_" + x.engine.cfg.Name, "status": "in_progress",
		"instructions": nil, "previous_response_id": nil, "store": a.keep, "error": nil, "incomplete_details": nil,
		"metadata": fields{}, "output": []any{}, "parallel_tool_calls": true, "temperature": 1, "top_p": 1,
		"tool_choice": "auto", "tools": []any{}, "usage": nil,
	}
	for _, name := range []string{"instructions", "previous_response_id"} {
		if v := q[name]; v.Type == gjson.String && v.Str != "" {
			a.response[name] = v.Str
		}
	}
	if stream {
		return x.streamResponse(a, s)
	}
	if _, err := x.collect(s); err != nil {
		return err
	}
	if err := x.finishResponse(a, s); err != nil {
		return err
	}
	return x.reply(a.response)
}

// responsePrompt renders the instructions of this turn, the conversation that
// it goes on with, and its input. What it returns with the prompt says where
// the conversation begins in it, and what the input is.
func (x *exchange) responsePrompt(q request) (prompt, *responseAnswer, error) {
	p := make(prompt, 0, len(x.body))
	p.tools(q["tools"])
	instructions, err := q.text("instructions")
	if err != nil {
		return nil, nil, err
	}
	if instructions != "" {
		p.role("system")
		p.text(instructions)
		p.mark(markEnd)
	}
	a := &responseAnswer{head: len(p)}
	previous, err := q.text("previous_response_id")
	if err != nil {
		return nil, nil, err
	}
	if previous != "" {
		r, err := x.engine.responses.find("previous_response_id", previous)
		if err != nil {
			return nil, nil, err
		}
		p = append(p, r.conversation...)
	}
	input := q["input"]
	if input.Type == gjson.String {
		p.role("user")
		p.text(input.Str)
		p.mark(markEnd)
	} else if err := p.messages("input", input); err != nil {
		return nil, nil, err
	}
	a.input = input
	p.role("assistant")
	return p, a, nil
}

// A responseAnswer is a response while it is made.
type responseAnswer struct {
	response fields
	keep     bool
	head     int // of the prompt: what is not handed on to the next turn
	input    gjson.Result
}

func outputItem(response fields, status, text string) fields {
	content := []any{}
	if status == "completed" {
		content = append(content, outputText(text))
	}
	id := "msg_" + response["id"].(string)[len("resp_"):]
	return fields{"id": id, "type": "message", "role": "assistant", "status": status, "content": content}
}

func outputText(text string) fields {
	return fields{"type": "output_text", "text": text, "annotations": []any{}}
}

// finishResponse completes a response, and keeps it for those that go on with
// it before anybody can know of it.
func (x *exchange) finishResponse(a *responseAnswer, s *sequence) error {
	r := a.response
	r["status"] = "completed"
	if s.finish == finishLength {
		r["status"] = "incomplete"
		r["incomplete_details"] = fields{"reason": "max_output_tokens"}
	}
	r["output"] = []any{outputItem(r, "completed", s.said())}
	r["usage"] = fields{
		"input_tokens": x.usage.Prompt, "input_tokens_details": fields{"cached_tokens": x.usage.Details.Cached},
		"output_tokens": x.usage.Completion, "output_tokens_details": fields{"reasoning_tokens": 0},
		"total_tokens": x.usage.Total,
	}
	if !a.keep {
		return nil
	}
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	id := r["id"].(string)
	items, err := inputItems(id, a.input)
	if err != nil {
		return err
	}
	x.engine.responses.put(&storedResponse{
		id: id, body: body, items: items,
		conversation: appendMark(bytes.Clone(s.text[a.head:]), markEnd),
	})
	return nil
}

// streamResponse sends a response event by event. The first two events go
// before the prompt is computed, as in real engines.
func (x *exchange) streamResponse(a *responseAnswer, s *sequence) error {
	if err := x.stream(eventStream); err != nil {
		return err
	}
	number := 0
	send := func(kind string, event fields) error {
		event["type"], event["sequence_number"] = kind, number
		number++
		return x.event(kind, event)
	}
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := send(kind, fields{"response": a.response}); err != nil {
			return err
		}
	}
	if err := x.ctl.Flush(); err != nil {
		return err
	}
	item := outputItem(a.response, "in_progress", "")
	at := func(event fields) fields {
		event["item_id"], event["output_index"], event["content_index"] = item["id"], 0, 0
		return event
	}
	err := x.run(s, func(word string) error {
		if s.generated == 1 {
			if err := send("response.output_item.added", fields{"output_index": 0, "item": item}); err != nil {
				return err
			}
			if err := send("response.content_part.added", at(fields{"part": outputText("")})); err != nil {
				return err
			}
		}
		if err := send("response.output_text.delta", at(fields{"delta": word, "logprobs": []any{}})); err != nil {
			return err
		}
		return x.token()
	})
	if err != nil {
		return err
	}
	if err := x.finishResponse(a, s); err != nil {
		return err
	}
	text := s.said()
	item = outputItem(a.response, "completed", text)
	for _, last := range []struct {
		kind  string
		event fields
	}{
		{"response.output_text.done", at(fields{"text": text, "logprobs": []any{}})},
		{"response.content_part.done", at(fields{"part": outputText(text)})},
		{"response.output_item.done", fields{"output_index": 0, "item": item}},
		{"response." + a.response["status"].(string), fields{"response": a.response}},
	} {
		if err := send(last.kind, last.event); err != nil {
			return err
		}
	}
	return x.ctl.Flush()
}
