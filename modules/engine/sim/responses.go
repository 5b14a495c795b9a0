package sim

import (
	"net/http"
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
	if id := q["previous_response_id"]; id.Type != gjson.Null {
		return &apiError{http.StatusNotFound, "previous_response_id", "Response with id '" + id.String() + "' not found: answers are not stored here"}
	}
	p := make(prompt, 0, len(x.body))
	p.tools(q["tools"])
	instructions, err := q.text("instructions")
	if err != nil {
		return err
	}
	if instructions != "" {
		p.role("system")
		p.text(instructions)
		p.mark(markEnd)
	}
	if input := q["input"]; input.Type == gjson.String {
		p.role("user")
		p.text(input.Str)
		p.mark(markEnd)
	} else if err := p.messages("input", input); err != nil {
		return err
	}
	p.role("assistant")
	answer, finish, err := q.answer("max_output_tokens")
	if err != nil {
		return err
	}
	stream, err := q.flag("stream")
	if err != nil {
		return err
	}
	sequences, err := x.sequences(q, m, []prompt{p}, 1, answer)
	if err != nil {
		return err
	}
	s := sequences[0]
	response := fields{
		"id": x.id("resp_"), "object": "response", "created_at": time.Now().Unix(), "model": m.name,
		"system_fingerprint": "fp_" + x.engine.cfg.Name, "status": "in_progress",
		"instructions": nil, "error": nil, "incomplete_details": nil, "metadata": fields{}, "output": []any{},
		"parallel_tool_calls": true, "temperature": 1, "top_p": 1, "tool_choice": "auto", "tools": []any{}, "usage": nil,
	}
	if instructions != "" {
		response["instructions"] = instructions
	}
	if stream {
		return x.streamResponse(response, s, finish)
	}
	text, err := x.collect(s)
	if err != nil {
		return err
	}
	x.finishResponse(response, outputItem(response, "completed", text), finish)
	return x.reply(response)
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

func (x *exchange) finishResponse(response, item fields, finish string) {
	response["status"] = "completed"
	if finish == finishLength {
		response["status"] = "incomplete"
		response["incomplete_details"] = fields{"reason": "max_output_tokens"}
	}
	response["output"] = []any{item}
	response["usage"] = fields{
		"input_tokens": x.usage.Prompt, "input_tokens_details": fields{"cached_tokens": x.usage.Details.Cached},
		"output_tokens": x.usage.Completion, "output_tokens_details": fields{"reasoning_tokens": 0},
		"total_tokens": x.usage.Total,
	}
}

// streamResponse sends a response event by event. The first two events go
// before the prompt is computed, as in real engines.
func (x *exchange) streamResponse(response fields, s *sequence, finish string) error {
	if err := x.stream(); err != nil {
		return err
	}
	number := 0
	send := func(kind string, event fields) error {
		event["type"], event["sequence_number"] = kind, number
		number++
		return x.event(kind, event)
	}
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := send(kind, fields{"response": response}); err != nil {
			return err
		}
	}
	if err := x.ctl.Flush(); err != nil {
		return err
	}
	item := outputItem(response, "in_progress", "")
	at := func(event fields) fields {
		event["item_id"], event["output_index"], event["content_index"] = item["id"], 0, 0
		return event
	}
	prompt := len(s.text)
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
	text := string(s.text[prompt:])
	item = outputItem(response, "completed", text)
	x.finishResponse(response, item, finish)
	for _, last := range []struct {
		kind  string
		event fields
	}{
		{"response.output_text.done", at(fields{"text": text, "logprobs": []any{}})},
		{"response.content_part.done", at(fields{"part": outputText(text)})},
		{"response.output_item.done", fields{"output_index": 0, "item": item}},
		{"response." + response["status"].(string), fields{"response": response}},
	} {
		if err := send(last.kind, last.event); err != nil {
			return err
		}
	}
	return x.ctl.Flush()
}
