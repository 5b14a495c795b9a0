package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"
)

// ollamaChat serves Ollama's /api/chat.
func (x *exchange) ollamaChat() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	message := func(text string) fields {
		return fields{"message": fields{"role": "assistant", "content": text}}
	}
	if messages := q["messages"]; messages.Type == gjson.Null || messages.IsArray() && empty(messages) {
		return x.ollamaLoad(m, message(""))
	}
	p := make(prompt, 0, len(x.body))
	if err := p.chat(q); err != nil {
		return err
	}
	return x.ollamaAnswer(q, m, p, message, nil)
}

// ollamaGenerate serves Ollama's /api/generate. The numbers under context are
// those of the tokens of the conversation so far.
func (x *exchange) ollamaGenerate() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	response := func(text string) fields { return fields{"response": text} }
	text, err := q.text("prompt")
	if err != nil {
		return err
	}
	if text == "" {
		return x.ollamaLoad(m, response(""))
	}
	raw, err := q.flag("raw", false)
	if err != nil {
		return err
	}
	if raw {
		return x.ollamaAnswer(q, m, prompt(text), response, nil)
	}
	var p prompt
	system, err := q.text("system")
	if err != nil {
		return err
	}
	if before := q["context"]; before.Type != gjson.Null {
		if p, err = textOf("context", before); err != nil {
			return err
		}
	} else if system != "" {
		p.role("system")
		p.text(system)
		p.mark(markEnd)
	}
	p.role("user")
	p.text(text)
	q["images"].ForEach(func(_, image gjson.Result) bool {
		p.media(xxhash.Sum64String(image.Raw))
		return true
	})
	p.mark(markEnd)
	p.role("assistant")
	return x.ollamaAnswer(q, m, p, response, func(s *sequence) fields {
		return fields{"context": ids(appendMark(bytes.Clone(s.text), markEnd))}
	})
}

// ollamaLoad answers a request without a prompt, which only loads the model.
func (x *exchange) ollamaLoad(m *model, answer fields) error {
	answer["model"], answer["created_at"] = m.name, time.Now().UTC()
	answer["done"], answer["done_reason"] = true, "load"
	return x.reply(answer)
}

// ollamaAnswer answers a prompt line by line, unless the client asks for one
// piece. piece makes the part of a line that holds text, and last, which may be
// nil, what only the last line has.
func (x *exchange) ollamaAnswer(q request, m *model, p prompt, piece func(text string) fields, last func(*sequence) fields) error {
	s, stream, err := x.single(q.withOptions(), m, p, "num_predict")
	if err != nil {
		return err
	}
	began := time.Now()
	line := func(text string, done bool) fields {
		f := piece(text)
		f["model"], f["created_at"], f["done"] = m.name, time.Now().UTC(), done
		return f
	}
	first := began
	end := func(text string) fields {
		f := line(text, true)
		f["done_reason"] = s.finish
		f["total_duration"], f["load_duration"] = since(began), 1
		f["prompt_eval_count"], f["prompt_eval_duration"] = s.prompt, max(1, first.Sub(began).Nanoseconds())
		f["eval_count"], f["eval_duration"] = s.generated, since(first)
		if last != nil {
			maps.Copy(f, last(s))
		}
		return f
	}
	if stream {
		if err := x.stream(lineStream); err != nil {
			return err
		}
	}
	err = x.run(s, func(word string) error {
		if s.generated == 1 {
			first = time.Now()
		}
		if !stream {
			return nil
		}
		if err := x.line(line(word, false)); err != nil {
			return err
		}
		return x.token()
	})
	if err != nil {
		return err
	}
	if !stream {
		return x.reply(end(s.said()))
	}
	if err := x.line(end("")); err != nil {
		return err
	}
	return x.ctl.Flush()
}

// since returns the nanoseconds since t, and never 0, which clients take for
// unknown.
func since(t time.Time) int64 { return max(1, time.Since(t).Nanoseconds()) }

// withOptions returns q as other APIs have it: with the limit from its options,
// of which one below 1 is none, and a stream unless told otherwise.
func (q request) withOptions() request {
	limit := object(q["options"])["num_predict"]
	if limit.Type == gjson.Number && limit.Num < 1 {
		limit = gjson.Result{}
	}
	q["num_predict"] = limit
	if q["stream"].Type == gjson.Null {
		q["stream"] = gjson.Result{Type: gjson.True, Raw: "true"}
	}
	return q
}

func (x *exchange) ollamaEmbed() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	began := time.Now()
	vectors, err := x.vectors(q, m, "input")
	if err != nil {
		return err
	}
	return x.reply(fields{
		"model": m.name, "embeddings": vectors,
		"total_duration": since(began), "load_duration": 1, "prompt_eval_count": x.usage.Prompt,
	})
}

// ollamaEmbeddings serves the older form of /api/embed.
func (x *exchange) ollamaEmbeddings() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	vectors, err := x.vectors(q, m, "prompt")
	if err != nil {
		return err
	}
	return x.reply(fields{"embedding": vectors[0]})
}

func (x *exchange) ollamaShow() error {
	if _, _, err := x.parse(); err != nil {
		return err
	}
	return x.reply(fields{
		"modelfile": "", "parameters": "", "template": "{{ .Prompt }}", "details": ollamaDetails(),
		"model_info":   fields{"general.architecture": "sim", "sim.context_length": x.engine.cfg.MaxModelLen},
		"capabilities": []string{"completion", "embedding"}, "modified_at": x.engine.started.UTC(),
	})
}

func (x *exchange) ollamaTags() error {
	return x.reply(fields{"models": x.ollamaModels(func(f fields) { f["modified_at"] = x.engine.started.UTC() })})
}

// ollamaProcesses lists all models: they are always loaded.
func (x *exchange) ollamaProcesses() error {
	return x.reply(fields{"models": x.ollamaModels(func(f fields) {
		f["expires_at"], f["size_vram"] = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), 0
		f["context_length"] = x.engine.cfg.MaxModelLen
	})})
}

func (x *exchange) ollamaModels(add func(fields)) []fields {
	models := make([]fields, len(x.engine.cfg.Models))
	for i, name := range x.engine.cfg.Models {
		digest := sha256.Sum256([]byte(name))
		models[i] = fields{"name": name, "model": name, "size": 0, "digest": hex.EncodeToString(digest[:]), "details": ollamaDetails()}
		add(models[i])
	}
	return models
}

func ollamaDetails() fields {
	return fields{
		"parent_model": "", "format": "sim", "family": "sim", "families": []string{"sim"},
		"parameter_size": "", "quantization_level": "",
	}
}
