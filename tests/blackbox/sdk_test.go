package blackbox

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// overEngines starts a gateway over three simulated engines that serve sim and
// an embedder, by prefix.
func overEngines(t *testing.T) (*harness.Gateway, []*harness.Engine) {
	t.Helper()
	engines := harness.StartEngines(t, 3, append(harness.Instant, "--model", "sim", "--model", "embedder")...)
	to := "to " + harness.Addrs(engines)
	return harness.Start(t, harness.Config{
		Flexinfer: model("sim", to, "routing prefix") + model("embedder", to, "routing least-loaded"),
	}), engines
}

func TestSDKGo(t *testing.T) {
	t.Parallel()
	g, _ := overEngines(t)
	client := openai.NewClient(option.WithBaseURL(g.URL+"/v1"), option.WithAPIKey("any"), option.WithHTTPClient(g.Client), option.WithMaxRetries(0))
	ask := openai.ChatCompletionNewParams{
		Model:     "sim",
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("You help."), openai.UserMessage("Hello?")},
		MaxTokens: openai.Int(12),
	}

	t.Run("chat", func(t *testing.T) {
		c, err := client.Chat.Completions.New(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Choices) != 1 || c.Choices[0].Message.Content == "" || c.Choices[0].FinishReason != "length" || c.Usage.CompletionTokens != 12 {
			t.Errorf("the completion is %+v", c)
		}
	})
	t.Run("streaming", func(t *testing.T) {
		streamed := ask
		streamed.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
		stream := client.Chat.Completions.NewStreaming(t.Context(), streamed)
		defer func() { _ = stream.Close() }()
		var all openai.ChatCompletionAccumulator
		events := 0
		for stream.Next() {
			events++
			if !all.AddChunk(stream.Current()) {
				t.Fatalf("event %d does not follow: %+v", events, stream.Current())
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if events < 12 || len(all.Choices) != 1 || all.Choices[0].Message.Content == "" || all.Usage.CompletionTokens != 12 {
			t.Errorf("the stream had %d events and came to %+v", events, all.ChatCompletion)
		}
		// The words depend on the prompt alone: both ways give the same.
		c, err := client.Chat.Completions.New(t.Context(), ask)
		if err != nil || c.Choices[0].Message.Content != all.Choices[0].Message.Content {
			t.Errorf("streamed it is %q, in one piece %+v (%v)", all.Choices[0].Message.Content, c, err)
		}
	})
	t.Run("a stream that is left", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream := client.Chat.Completions.NewStreaming(ctx, ask)
		if !stream.Next() {
			t.Fatal(stream.Err())
		}
		_ = stream.Close()
		g.WaitIdle(t)
	})
	t.Run("completions", func(t *testing.T) {
		c, err := client.Completions.New(t.Context(), openai.CompletionNewParams{
			Model: "sim", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"one", "two"}},
		})
		if err != nil || len(c.Choices) != 2 || c.Choices[1].Text == "" {
			t.Errorf("the completion is %+v, %v", c, err)
		}
		stream := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
			Model: "sim", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{1, 2, 3}},
		})
		text := ""
		for stream.Next() {
			text += stream.Current().Choices[0].Text
		}
		if err := stream.Err(); err != nil || text == "" {
			t.Errorf("the stream came to %q, %v", text, err)
		}
	})
	t.Run("embeddings", func(t *testing.T) {
		e, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
			Model: "embedder", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}},
		})
		if err != nil || len(e.Data) != 2 || len(e.Data[1].Embedding) == 0 {
			t.Errorf("the embeddings are %+v, %v", e, err)
		}
	})
	t.Run("models", func(t *testing.T) {
		page, err := client.Models.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range page.Data {
			ids = append(ids, m.ID)
		}
		if want := []string{"sim", "embedder"}; !slices.Equal(ids, want) {
			t.Errorf("the models are %q, want %q", ids, want)
		}
		m, err := client.Models.Get(t.Context(), "sim")
		if err != nil || m.ID != "sim" || m.OwnedBy == "" || m.Created == 0 {
			t.Errorf("the model is %+v, %v", m, err)
		}
	})
	t.Run("errors", func(t *testing.T) {
		tests := []struct {
			name   string
			do     func() error
			status int
			code   string
			param  string
		}{
			{"unknown model", func() error {
				unknown := ask
				unknown.Model = "nobody"
				_, err := client.Chat.Completions.New(t.Context(), unknown)
				return err
			}, 404, "model_not_found", "model"},
			{"unknown model, streaming", func() error {
				unknown := ask
				unknown.Model = "nobody"
				return client.Chat.Completions.NewStreaming(t.Context(), unknown).Err()
			}, 404, "model_not_found", "model"},
			{"no model", func() error {
				_, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Messages: ask.Messages}, option.WithJSONDel("model"))
				return err
			}, 400, "missing_required_field", ""},
			{"model of another type", func() error {
				_, err := client.Chat.Completions.New(t.Context(), ask, option.WithJSONSet("model", 7))
				return err
			}, 400, "", "model"},
			{"unknown model's card", func() error {
				_, err := client.Models.Get(t.Context(), "nobody")
				return err
			}, 404, "model_not_found", "model"},
			{"refused by the engine", func() error {
				bad := ask
				bad.MaxTokens = openai.Int(-5)
				_, err := client.Chat.Completions.New(t.Context(), bad)
				return err
			}, 400, "", ""},
		}
		for _, tt := range tests {
			var e *openai.Error
			if err := tt.do(); !errors.As(err, &e) {
				t.Errorf("%s: the error is %v", tt.name, err)
				continue
			}
			if e.StatusCode != tt.status || e.Message == "" || e.Type == "" || tt.code != "" && e.Code != tt.code || tt.param != "" && e.Param != tt.param {
				t.Errorf("%s: the error is %d %+v", tt.name, e.StatusCode, e)
			}
		}
	})
	g.WaitIdle(t)
}

// The npm clients of OpenAI and of Ollama, in scripts of their own.
func TestSDKNode(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("node is needed for the tests of the npm client: ", err)
	}
	dir, err := filepath.Abs("../node")
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, env []string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	for _, client := range []string{"openai", "ollama"} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", client, "package.json")); err != nil {
			run("npm", nil, "ci", "--no-audit", "--no-fund")
		}
	}
	g, _ := overEngines(t)
	env := []string{"BASE_URL=" + g.URL + "/v1", "OLLAMA_HOST=" + g.URL}
	t.Log(run(node, env, "--test", "--test-reporter=tap", "openai.test.mjs", "ollama.test.mjs"))
	g.WaitIdle(t)
}

// Nothing in what is checked in says where packages are downloaded from.
func TestLockFileNamesNoHost(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "://") {
		t.Error("package-lock.json names a host")
	}
}

// Many SDK clients at once, on engines that fail now and then: each gets an
// answer or an error, and nothing is left.
func TestSDKGoUnderFaults(t *testing.T) {
	t.Parallel()
	g, engines := overEngines(t)
	engines[0].Fail(t, `[{"status":503,"count":20},{"path":"/v1/chat/completions","reset":"mid_stream","after_tokens":3,"count":20}]`)
	engines[1].Fail(t, `{"reset":"before_headers","count":20}`)
	client := openai.NewClient(option.WithBaseURL(g.URL+"/v1"), option.WithAPIKey("any"), option.WithHTTPClient(g.Client), option.WithMaxRetries(5))
	inParallel(t, 8, 200, func(ctx context.Context, i int) error {
		ask := openai.ChatCompletionNewParams{
			Model:    "sim",
			Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("hello ", 1+i))},
		}
		if i%2 == 0 {
			_, err := client.Chat.Completions.New(ctx, ask)
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil // broken off in the body, which the client does not repeat
			}
			return err
		}
		stream := client.Chat.Completions.NewStreaming(ctx, ask)
		for stream.Next() {
			_ = stream.Current()
		}
		_ = stream.Err() // a stream that broke is not sent again
		return stream.Close()
	})
	g.WaitIdle(t)
	if res := g.Get(t, "/healthz"); res.Status != http.StatusOK {
		t.Errorf("/healthz: %s", res)
	}
}
