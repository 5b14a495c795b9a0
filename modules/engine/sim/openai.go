package sim

import (
	"net/http"
	"time"

	"github.com/tidwall/gjson"
)

// routes are the endpoints of the API.
func (e *Engine) routes() *http.ServeMux {
	mux := http.NewServeMux()
	others := func(path, allowed string) {
		mux.Handle(path, e.handle(false, func(x *exchange) error {
			x.w.Header().Set("Allow", allowed)
			return &apiError{status: http.StatusMethodNotAllowed, message: "Method Not Allowed"}
		}))
	}
	route := func(method, path string, inference bool, serve func(x *exchange) error) {
		mux.Handle(method+" "+path, e.handle(inference, serve))
		others(path, method)
	}
	post := func(path string, serve func(x *exchange) error) { route(http.MethodPost, path, true, serve) }
	get := func(path string, serve func(x *exchange) error) { route(http.MethodGet, path, false, serve) }
	post("/v1/chat/completions", (*exchange).chat)
	post("/v1/completions", (*exchange).completions)
	post("/v1/embeddings", (*exchange).embeddings)
	post("/v1/rerank", (*exchange).rerank)
	post("/v1/audio/transcriptions", (*exchange).transcriptions)
	post("/v1/audio/speech", (*exchange).speech)
	post("/v1/messages", (*exchange).messages)
	post("/tokenize", (*exchange).tokenize)
	post("/detokenize", (*exchange).detokenize)

	post("/v1/responses", (*exchange).responses)
	mux.Handle("GET /v1/responses/{id}", e.handle(false, (*exchange).getResponse))
	mux.Handle("DELETE /v1/responses/{id}", e.handle(false, (*exchange).deleteResponse))
	others("/v1/responses/{id}", "GET, DELETE")
	route(http.MethodPost, "/v1/responses/{id}/cancel", false, (*exchange).cancelResponse)
	get("/v1/responses/{id}/input_items", (*exchange).inputItems)

	post("/api/chat", (*exchange).ollamaChat)
	post("/api/generate", (*exchange).ollamaGenerate)
	post("/api/embed", (*exchange).ollamaEmbed)
	post("/api/embeddings", (*exchange).ollamaEmbeddings)
	route(http.MethodPost, "/api/show", false, (*exchange).ollamaShow)
	get("/api/tags", (*exchange).ollamaTags)
	get("/api/ps", (*exchange).ollamaProcesses)
	get("/api/version", func(x *exchange) error { return x.reply(map[string]string{"version": "0.0.0"}) })

	get("/v1/models", (*exchange).list)
	get("/v1/models/{id...}", (*exchange).lookUp)
	get("/health", func(x *exchange) error { return x.write(http.StatusOK, nil) })
	get("/version", func(x *exchange) error { return x.reply(map[string]string{"version": "simulated"}) })
	get("/metrics", (*exchange).metrics)
	mux.Handle("/", e.handle(false, func(*exchange) error {
		return &apiError{status: http.StatusNotFound, message: "Not Found"}
	}))
	e.controlRoutes(mux)
	return mux
}

// A usage is what an answer took, as OpenAI counts it.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// A completion is the answer of chat and completions, or one event of it.
type completion struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	Model       string `json:"model"`
	Fingerprint string `json:"system_fingerprint"`
	Choices     []any  `json:"choices"`
	Usage       *usage `json:"usage,omitempty"`
}

type chatChoice struct {
	Index    int          `json:"index"`
	Message  *chatMessage `json:"message,omitempty"`
	Delta    *chatMessage `json:"delta,omitempty"`
	Logprobs any          `json:"logprobs"`
	Finish   *string      `json:"finish_reason"`
}

type chatMessage struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type textChoice struct {
	Index    int     `json:"index"`
	Text     string  `json:"text"`
	Logprobs any     `json:"logprobs"`
	Finish   *string `json:"finish_reason"`
}

// A completionShape is what tells chat and completions apart in their answers.
type completionShape struct {
	prefix, object, event string

	whole func(index int, text string, finish *string) any
	delta func(index int, text string, finish *string) any
	first func(index int) any // before the first delta; may be nil
}

var chatShape = completionShape{
	prefix: "chatcmpl-",
	object: "chat.completion",
	event:  "chat.completion.chunk",
	whole: func(index int, text string, finish *string) any {
		return chatChoice{Index: index, Message: &chatMessage{Role: "assistant", Content: &text}, Finish: finish}
	},
	delta: func(index int, text string, finish *string) any {
		delta := &chatMessage{}
		if finish == nil {
			delta.Content = &text
		}
		return chatChoice{Index: index, Delta: delta, Finish: finish}
	},
	first: func(index int) any {
		return chatChoice{Index: index, Delta: &chatMessage{Role: "assistant", Content: new(string)}}
	},
}

func newTextChoice(index int, text string, finish *string) any {
	return textChoice{Index: index, Text: text, Finish: finish}
}

var textShape = completionShape{
	prefix: "cmpl-",
	object: "text_completion",
	event:  "text_completion",
	whole:  newTextChoice,
	delta:  newTextChoice,
}

func (x *exchange) chat() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	p := make(prompt, 0, len(x.body))
	if err := p.chat(q); err != nil {
		return err
	}
	return x.complete(q, m, []prompt{p}, &chatShape)
}

func (x *exchange) completions() error {
	q, m, err := x.parse()
	if err != nil {
		return err
	}
	prompts, err := texts("prompt", q["prompt"])
	if err != nil {
		return err
	}
	return x.complete(q, m, prompts, &textShape)
}

// complete answers prompts in a shape, in one piece or as a stream.
func (x *exchange) complete(q request, m *model, prompts []prompt, shape *completionShape) error {
	answer, err := q.extent("max_completion_tokens", "max_tokens")
	if err != nil {
		return err
	}
	n, err := q.number("n", 1)
	if err != nil {
		return err
	}
	stream, err := q.flag("stream", false)
	if err != nil {
		return err
	}
	withUsage, err := q.streamUsage(stream)
	if err != nil {
		return err
	}
	sequences, err := x.sequences(q, m, prompts, n, answer)
	if err != nil {
		return err
	}
	c := completion{
		ID:          x.id(shape.prefix),
		Object:      shape.object,
		Created:     time.Now().Unix(),
		Model:       m.name,
		Fingerprint: "fp_" + x.engine.cfg.Name,
	}
	if stream {
		c.Object = shape.event
		return x.streamCompletion(&c, sequences, shape, withUsage)
	}
	for i, s := range sequences {
		text, err := x.collect(s)
		if err != nil {
			return err
		}
		c.Choices = append(c.Choices, shape.whole(i, text, &s.finish))
	}
	c.Usage = &x.usage
	return x.reply(&c)
}

func (x *exchange) streamCompletion(c *completion, sequences []*sequence, shape *completionShape, withUsage bool) error {
	if err := x.stream(eventStream); err != nil {
		return err
	}
	send := func(choice any) error {
		c.Choices = append(c.Choices[:0], choice)
		return x.event("", c)
	}
	for i, s := range sequences {
		err := x.run(s, func(word string) error {
			if s.generated == 1 && shape.first != nil {
				if err := send(shape.first(i)); err != nil {
					return err
				}
			}
			if err := send(shape.delta(i, word, nil)); err != nil {
				return err
			}
			return x.token()
		})
		if err != nil {
			return err
		}
		if err := send(shape.delta(i, "", &s.finish)); err != nil {
			return err
		}
	}
	if withUsage {
		c.Choices, c.Usage = []any{}, &x.usage
		if err := x.event("", c); err != nil {
			return err
		}
	}
	if _, err := x.w.Write([]byte("data: [DONE]\n\n")); err != nil {
		return err
	}
	return x.ctl.Flush()
}

// streamUsage returns whether a stream is to end with what it took.
func (q request) streamUsage(stream bool) (bool, error) {
	options := q["stream_options"]
	switch {
	case options.Type == gjson.Null:
		return false, nil
	case !options.IsObject():
		return false, badRequest("stream_options", "stream_options must be an object")
	case !stream:
		return false, badRequest("stream_options", "stream_options are only for streams: set stream to true")
	}
	return object(options).flag("include_usage", false)
}

func (e *Engine) card(name string) map[string]any {
	return map[string]any{
		"id": name, "object": "model", "created": e.started.Unix(), "owned_by": "flexinfer",
		"root": name, "parent": nil, "max_model_len": e.cfg.MaxModelLen,
	}
}

func (x *exchange) list() error {
	cards := make([]any, len(x.engine.cfg.Models))
	for i, name := range x.engine.cfg.Models {
		cards[i] = x.engine.card(name)
	}
	return x.reply(map[string]any{"object": "list", "data": cards})
}

func (x *exchange) lookUp() error {
	name := x.r.PathValue("id")
	if x.engine.models[name] == nil {
		return unknownModel(name)
	}
	return x.reply(x.engine.card(name))
}
