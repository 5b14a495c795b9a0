package sim

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// dimensions is how long a vector is when the client does not say.
const dimensions = 64

// vectors returns the embeddings of what q holds under param.
func (x *exchange) vectors(q request, m *model, param string) ([][]float32, error) {
	inputs, err := texts(param, q[param])
	if err != nil {
		return nil, err
	}
	n, err := q.number("dimensions", dimensions)
	if err != nil {
		return nil, err
	}
	if n > 4096 {
		return nil, badRequest("dimensions", "dimensions must be at most 4096")
	}
	sequences, err := x.sequences(q, m, inputs, 1, extent{})
	if err != nil {
		return nil, err
	}
	vectors := make([][]float32, len(sequences))
	for i, s := range sequences {
		if err := x.run(s, nil); err != nil {
			return nil, err
		}
		vectors[i] = vector(s.seed, n)
	}
	return vectors, nil
}

type embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"`
}

func (x *exchange) embeddings() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	format, err := q.text("encoding_format")
	if err != nil {
		return err
	}
	if format != "" && format != "float" && format != "base64" {
		return badRequest("encoding_format", "encoding_format must be float or base64")
	}
	vectors, err := x.vectors(q, m, "input")
	if err != nil {
		return err
	}
	data := make([]embedding, len(vectors))
	for i, v := range vectors {
		data[i] = embedding{Object: "embedding", Index: i, Embedding: v}
		if format == "base64" {
			data[i].Embedding = base64Vector(v)
		}
	}
	return x.reply(fields{"id": x.id("embd-"), "object": "list", "created": time.Now().Unix(), "model": m.name, "data": data, "usage": x.usage})
}

type ranked struct {
	Index    int               `json:"index"`
	Document map[string]string `json:"document"`
	Score    float64           `json:"relevance_score"`
}

// rerank scores documents by how many words of the query they hold.
func (x *exchange) rerank() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	query, err := q.text("query")
	if err != nil {
		return err
	}
	documents, err := documentTexts(q["documents"])
	if err != nil {
		return err
	}
	top, err := q.number("top_n", len(documents))
	if err != nil {
		return err
	}
	prompts := make([]prompt, len(documents))
	for i, text := range documents {
		prompts[i].text(query)
		prompts[i].mark(markEnd)
		prompts[i].text(text)
	}
	sequences, err := x.sequences(q, m, prompts, 1, extent{})
	if err != nil {
		return err
	}
	results := make([]ranked, len(documents))
	for i, s := range sequences {
		if err := x.run(s, nil); err != nil {
			return err
		}
		results[i] = ranked{i, map[string]string{"text": documents[i]}, overlap(query, documents[i])}
	}
	slices.SortStableFunc(results, func(a, b ranked) int { return cmp.Compare(b.Score, a.Score) })
	return x.reply(fields{"id": x.id("rerank-"), "model": m.name, "usage": x.usage, "results": results[:min(top, len(results))]})
}

func documentTexts(v gjson.Result) ([]string, error) {
	var texts []string
	for _, item := range v.Array() {
		if item.IsObject() {
			item = object(item)["text"]
		}
		if item.Type != gjson.String {
			texts = nil
			break
		}
		texts = append(texts, item.Str)
	}
	if !v.IsArray() || len(texts) == 0 {
		return nil, badRequest("documents", "documents must be an array of strings or of objects with a text, and not empty")
	}
	return texts, nil
}

// overlap returns the part of the query's words that a document holds.
func overlap(query, document string) float64 {
	words := strings.Fields(strings.ToLower(query))
	found := 0
	document = strings.ToLower(document)
	for _, word := range words {
		if strings.Contains(document, word) {
			found++
		}
	}
	return float64(found) / float64(max(1, len(words)))
}
