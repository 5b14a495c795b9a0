package sim

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"
)

// transcriptions answers a sound with words that depend on its bytes.
func (x *exchange) transcriptions() error {
	x.r.Body = io.NopCloser(bytes.NewReader(x.body))
	if err := x.r.ParseMultipartForm(maxBody); err != nil {
		return badRequest("", "reading the form: %v", err)
	}
	form := x.r.MultipartForm
	q := make(request, len(form.Value))
	for name, values := range form.Value {
		q[name] = gjson.Result{Type: gjson.String, Str: values[len(values)-1]}
	}
	m, err := x.modelOf(q)
	if err != nil {
		return err
	}
	sound, err := formFile(x)
	if err != nil {
		return err
	}
	var p prompt
	p.text(q["prompt"].Str)
	p.media(xxhash.Sum64(sound))
	sequences, err := x.sequences(q, m, []prompt{p}, 1, extent{defaultAnswer, finishStop})
	if err != nil {
		return err
	}
	text, err := x.collect(sequences[0])
	if err != nil {
		return err
	}
	text = strings.TrimSpace(text)
	switch format := q["response_format"].Str; format {
	case "text":
		return x.replyBytes("text/plain; charset=utf-8", []byte(text+"\n"))
	case "", "json":
		return x.reply(fields{"text": text, "usage": fields{
			"type": "tokens", "input_tokens": x.usage.Prompt, "output_tokens": x.usage.Completion, "total_tokens": x.usage.Total,
		}})
	default:
		return badRequest("response_format", "response_format must be json or text")
	}
}

// formFile returns the content of the form's file.
func formFile(x *exchange) ([]byte, error) {
	f, _, err := x.r.FormFile("file")
	if err != nil {
		return nil, badRequest("file", "reading the file: %v", err)
	}
	defer f.Close()
	return io.ReadAll(f)
}

const (
	sampleRate   = 8000 // of speech, per second
	tokenSamples = sampleRate / 20
	maxSpoken    = 400 // tokens, which is 20 s
)

// speech answers with a tone in WAV, whatever the format that is asked for, of
// 50 ms for each token.
func (x *exchange) speech() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	inputs, err := texts("input", q["input"])
	if err != nil {
		return err
	}
	sequences, err := x.sequences(q, m, inputs[:1], 1, extent{})
	if err != nil {
		return err
	}
	if err := x.run(sequences[0], nil); err != nil {
		return err
	}
	return x.replyBytes("audio/wav", tone(min(sequences[0].prompt, maxSpoken)*tokenSamples))
}

// tone returns a WAV file of n samples, 16 bits each, of the note A.
func tone(n int) []byte {
	b := make([]byte, 0, 44+2*n)
	le := binary.LittleEndian
	b = le.AppendUint32(append(b, "RIFF"...), uint32(36+2*n))
	b = le.AppendUint32(append(b, "WAVEfmt "...), 16)
	b = le.AppendUint16(le.AppendUint16(b, 1), 1) // PCM, one channel
	b = le.AppendUint32(le.AppendUint32(b, sampleRate), 2*sampleRate)
	b = le.AppendUint16(le.AppendUint16(b, 2), 16) // bytes and bits of a sample
	b = le.AppendUint32(append(b, "data"...), uint32(2*n))
	for i := range n {
		b = le.AppendUint16(b, uint16(int16(8000*math.Sin(2*math.Pi*440*float64(i)/sampleRate))))
	}
	return b
}
