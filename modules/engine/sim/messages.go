package sim

import "github.com/tidwall/gjson"

// messages serves Anthropic's API.
func (x *exchange) messages() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	p := make(prompt, 0, len(x.body))
	p.tools(q["tools"])
	if system := q["system"]; system.Type != gjson.Null {
		p.role("system")
		if err := p.content("system", system); err != nil {
			return err
		}
		p.mark(markEnd)
	}
	if err := p.messages("messages", q["messages"]); err != nil {
		return err
	}
	p.role("assistant")
	s, stream, err := x.single(q, m, p, "max_tokens")
	if err != nil {
		return err
	}
	reason := "end_turn"
	if s.finish == finishLength {
		reason = "max_tokens"
	}
	message := fields{
		"id": x.id("msg_"), "type": "message", "role": "assistant", "model": m.name,
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil,
	}
	if stream {
		return x.streamMessage(message, s, reason)
	}
	text, err := x.collect(s)
	if err != nil {
		return err
	}
	message["content"] = []any{fields{"type": "text", "text": text}}
	message["stop_reason"] = reason
	message["usage"] = messageUsage(s)
	return x.reply(message)
}

// messageUsage counts as Anthropic does: input_tokens are those that no cache
// held.
func messageUsage(s *sequence) fields {
	return fields{
		"input_tokens": s.prompt - s.cached, "cache_read_input_tokens": s.cached,
		"cache_creation_input_tokens": 0, "output_tokens": s.generated,
	}
}

func (x *exchange) streamMessage(message fields, s *sequence, reason string) error {
	if err := x.stream(eventStream); err != nil {
		return err
	}
	send := func(kind string, event fields) error {
		event["type"] = kind
		return x.event(kind, event)
	}
	err := x.run(s, func(word string) error {
		if s.generated == 1 {
			message["usage"] = messageUsage(s)
			if err := send("message_start", fields{"message": message}); err != nil {
				return err
			}
			if err := send("content_block_start", fields{"index": 0, "content_block": fields{"type": "text", "text": ""}}); err != nil {
				return err
			}
		}
		delta := fields{"type": "text_delta", "text": word}
		if err := send("content_block_delta", fields{"index": 0, "delta": delta}); err != nil {
			return err
		}
		return x.token()
	})
	if err != nil {
		return err
	}
	if err := send("content_block_stop", fields{"index": 0}); err != nil {
		return err
	}
	end := fields{"stop_reason": reason, "stop_sequence": nil}
	if err := send("message_delta", fields{"delta": end, "usage": messageUsage(s)}); err != nil {
		return err
	}
	if err := send("message_stop", fields{}); err != nil {
		return err
	}
	return x.ctl.Flush()
}
