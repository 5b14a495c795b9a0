package sim

import (
	"encoding/binary"
	"math/bits"

	"github.com/tidwall/gjson"
)

// A token's number holds its bytes behind a one: the text can be told from the
// numbers alone, and all of them fit into a float64. What has more bytes is a
// token that was given by its number, which is larger than those.
const maxTokenBytes = wordBytes + 1

// ids returns the numbers of a text's tokens.
func ids(text []byte) []uint64 {
	all := make([]uint64, 0, len(text)/4+1)
	for i := 0; i < len(text); {
		end := nextToken(text, i)
		all = append(all, tokenID(text[i:end]))
		i = end
	}
	return all
}

func tokenID(token []byte) uint64 {
	if len(token) == 9 {
		return binary.BigEndian.Uint64(token[1:])
	}
	id := uint64(1)
	for _, c := range token {
		id = id<<8 | uint64(c)
	}
	return id
}

// appendID appends the text of the token that has a number.
func appendID(b []byte, id uint64) []byte {
	n := bits.Len64(id) - 1 // of bits behind the first one
	if n < 8 || n%8 != 0 || n > 8*maxTokenBytes {
		return appendToken(b, id)
	}
	for n > 0 {
		n -= 8
		b = append(b, byte(id>>n))
	}
	return b
}

// textOf returns the text of the tokens in v, an array of their numbers.
func textOf(param string, v gjson.Result) (prompt, error) {
	var text prompt
	ok := v.IsArray()
	v.ForEach(func(_, id gjson.Result) bool {
		ok = ok && id.Type == gjson.Number && id.Num >= 0 && id.Num == float64(uint64(id.Num))
		if ok {
			text = appendID(text, uint64(id.Num))
		}
		return ok
	})
	if !ok {
		return nil, badRequest(param, "%s must be an array of token ids", param)
	}
	return text, nil
}

func (x *exchange) tokenize() error {
	q, _, err := x.parse()
	if err != nil {
		return err
	}
	var p prompt
	if q["messages"].Exists() {
		if err := p.chat(q); err != nil {
			return err
		}
	} else {
		text, err := q.text("prompt")
		if err != nil {
			return err
		}
		p.text(text)
	}
	tokens := ids(p)
	return x.reply(fields{"count": len(tokens), "max_model_len": x.engine.cfg.MaxModelLen, "tokens": tokens})
}

func (x *exchange) detokenize() error {
	q, _, err := x.parse()
	if err != nil {
		return err
	}
	text, err := textOf("tokens", q["tokens"])
	if err != nil {
		return err
	}
	return x.reply(fields{"prompt": string(text)})
}
