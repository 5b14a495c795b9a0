package key

import (
	"net/http"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// scan returns the Doc of a body, nil for none.
func scan(t testing.TB, body string) *openai.Doc {
	t.Helper()
	if body == "" {
		return nil
	}
	d := new(openai.Doc)
	if err := d.Scan([]byte(body)); err != nil {
		t.Fatalf("Scan(%.80q): %v", body, err)
	}
	return d
}

// header returns a header with the values of pairs: name, value, name, value.
func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func session(t testing.TB, h http.Header, body string) routing.Key {
	t.Helper()
	c := Default()
	return c.Session(h, scan(t, body))
}

func prefix(t testing.TB, h http.Header, body string) routing.Key {
	t.Helper()
	c := Default()
	return c.Prefix("", "", h, scan(t, body))
}

const hello = `"messages":[{"role":"user","content":"Hello"}]`

func TestSessionSource(t *testing.T) {
	tests := []struct {
		name   string
		header http.Header
		body   string
		want   routing.KeySource
	}{
		{"header", header("X-Session-ID", "s"), `{"session_id":"b",` + hello + `}`, routing.SourceSessionHeader},
		{"header without a body", header("X-Session-ID", "s"), ``, routing.SourceSessionHeader},
		{"header before conversation", header("X-Session-ID", "s", "X-Conversation-ID", "c"), ``, routing.SourceSessionHeader},
		{"conversation", header("X-Conversation-ID", "c"), `{"session_id":"b"}`, routing.SourceConversationHeader},
		{"conversation before listed header", header("X-Conversation-ID", "c", "X-Opencode-Session", "o"), ``, routing.SourceConversationHeader},
		{"body", nil, `{"session_id":"b",` + hello + `}`, routing.SourceSessionBody},
		{"body before listed header", header("X-Opencode-Session", "o"), `{"session_id":"b"}`, routing.SourceSessionBody},
		{"listed header", header("x-claude-code-session-id", "o"), `{"metadata":{"user_id":"u"},` + hello + `}`, routing.SourceSessionHeader},
		{"listed field", nil, `{"metadata":{"user_id":"u"},` + hello + `}`, routing.SourceSessionBody},
		{"messages", nil, `{` + hello + `}`, routing.SourceSessionMessages},
		{"unlisted header", header("X-Request-Id", "r"), ``, routing.SourceNone},
		{"nothing", nil, ``, routing.SourceNone},
		{"nothing in the body", nil, `{"model":"m"}`, routing.SourceNone},

		// R2: what is not there does not make a key.
		{"empty header", header("X-Session-ID", ""), ``, routing.SourceNone},
		{"blank header", header("X-Session-ID", " \t"), ``, routing.SourceNone},
		{"blank header, next source", header("X-Session-ID", " ", "X-Conversation-ID", "c"), ``, routing.SourceConversationHeader},
		{"empty string", nil, `{"session_id":""}`, routing.SourceNone},
		{"blank string", nil, `{"session_id":" \n\u00a0"}`, routing.SourceNone},
		{"null", nil, `{"session_id":null}`, routing.SourceNone},
		{"number", nil, `{"session_id":7}`, routing.SourceNone},
		{"object", nil, `{"session_id":{"id":"x"}}`, routing.SourceNone},
		{"null, next source", nil, `{"session_id":null,"metadata":{"user_id":"u"}}`, routing.SourceSessionBody},
		{"number, next source", nil, `{"session_id":7,` + hello + `}`, routing.SourceSessionMessages},
		{"metadata no object", nil, `{"metadata":"user_id"}`, routing.SourceNone},
		{"64 KB", header("X-Session-ID", strings.Repeat("k", 64<<10)), ``, routing.SourceSessionHeader},
		{"first of two is blank", header("X-Session-ID", "", "X-Session-ID", "s"), ``, routing.SourceNone},

		// B8: prompts of every legal shape.
		{"prompt", nil, `{"prompt":"p"}`, routing.SourceSessionMessages},
		{"prompts", nil, `{"prompt":["a","b"]}`, routing.SourceSessionMessages},
		{"token ids", nil, `{"prompt":[1,2,3]}`, routing.SourceSessionMessages},
		{"lists of token ids", nil, `{"prompt":[[1,2],[3]]}`, routing.SourceSessionMessages},
		{"empty prompt", nil, `{"prompt":""}`, routing.SourceNone},
		{"no prompts", nil, `{"prompt":[]}`, routing.SourceNone},
		{"empty prompts", nil, `{"prompt":["",""]}`, routing.SourceNone},
		{"empty lists", nil, `{"prompt":[[],[]]}`, routing.SourceNone},
		{"null prompt", nil, `{"prompt":null}`, routing.SourceNone},
		{"stored prompt", nil, `{"prompt":{"id":"x"}}`, routing.SourceNone},
		{"input", nil, `{"input":"a"}`, routing.SourceSessionMessages},
		{"inputs", nil, `{"input":["a","b"]}`, routing.SourceSessionMessages},
		{"input of token ids", nil, `{"input":[[1,2],[3]]}`, routing.SourceSessionMessages},
		{"empty input", nil, `{"input":""}`, routing.SourceNone},
		{"input items", nil, `{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}]}`, routing.SourceSessionMessages},
		{"images to embed", nil, `{"input":[{"image":"AAAA"}]}`, routing.SourceSessionMessages},
		{"no messages", nil, `{"messages":[]}`, routing.SourceNone},
		{"no messages, system", nil, `{"system":"s","messages":[]}`, routing.SourceNone},
		{"null messages", nil, `{"messages":null}`, routing.SourceNone},
		{"empty content", nil, `{"messages":[{"role":"user","content":""}]}`, routing.SourceNone},
		{"null content", nil, `{"messages":[{"role":"user","content":null}]}`, routing.SourceNone},
		{"no content", nil, `{"messages":[{"role":"user"}]}`, routing.SourceNone},
		{"no parts", nil, `{"messages":[{"role":"user","content":[]}]}`, routing.SourceNone},
		{"empty part", nil, `{"messages":[{"role":"user","content":[{"type":"text","text":""}]}]}`, routing.SourceNone},
		{"empty message", nil, `{"messages":[{}]}`, routing.SourceNone},
		{"content a number", nil, `{"messages":[{"role":"user","content":1}]}`, routing.SourceSessionMessages},
		{"generate", nil, `{"model":"m","system":"s","prompt":"p"}`, routing.SourceSessionMessages},
		{"generate on", nil, `{"model":"m","prompt":"","context":[1,2,3]}`, routing.SourceSessionMessages},
		{"rerank", nil, `{"model":"m","query":"q","documents":["a","b"]}`, routing.SourceNone},
		{"tokenize", nil, `{"model":"m","prompt":"p","add_special_tokens":true}`, routing.SourceSessionMessages},
		{"detokenize", nil, `{"model":"m","tokens":[1,2,3]}`, routing.SourceNone},
		{"speech", nil, `{"model":"m","input":"a","voice":"v"}`, routing.SourceSessionMessages},
		{"image only", nil, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, routing.SourceSessionMessages},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := session(t, tt.header, tt.body); got.Source != tt.want {
				t.Errorf("source %v, want %v", got.Source, tt.want)
			}
		})
	}
}

func TestPrefixSource(t *testing.T) {
	const sys = `"messages":[{"role":"system","content":"S"},{"role":"user","content":"Hello"}]`
	tests := []struct {
		name   string
		header http.Header
		body   string
		want   routing.KeySource
	}{
		{"header", header("X-Flexinfer-Cache-Key", "tenant-a/doc-42"), `{"cache_key":"k","prefix":"p",` + sys + `}`, routing.SourceExplicitHeader},
		{"header without a body", header("X-Flexinfer-Cache-Key", " A.b_c:/=-9 "), ``, routing.SourceExplicitHeader},
		{"header of 128", header("X-Flexinfer-Cache-Key", strings.Repeat("k", 128)), ``, routing.SourceExplicitHeader},
		{"header of 129", header("X-Flexinfer-Cache-Key", strings.Repeat("k", 129)), ``, routing.SourceNone},
		{"header with a space", header("X-Flexinfer-Cache-Key", "bad key"), `{"cache_key":"k"}`, routing.SourceExplicitBody},
		{"header with a comma", header("X-Flexinfer-Cache-Key", "a,b"), ``, routing.SourceNone},
		{"header beyond ASCII", header("X-Flexinfer-Cache-Key", "é"), ``, routing.SourceNone},
		{"header blank", header("X-Flexinfer-Cache-Key", "  "), ``, routing.SourceNone},
		{"cache_key", nil, `{"cache_key":"k","prefix":"p",` + sys + `}`, routing.SourceExplicitBody},
		{"cacheKey", nil, `{"cache_key":"","cacheKey":"k","prefix":"p"}`, routing.SourceExplicitBody},
		{"prompt_cache_key", nil, `{"cache_key":null,"cacheKey":"a b","prompt_cache_key":"k","prefix":"p"}`, routing.SourceExplicitBody},
		{"cache_key escaped", nil, `{"cache_key":"\n a\/b\t"}`, routing.SourceExplicitBody},
		{"cache_key a number", nil, `{"cache_key":1}`, routing.SourceNone},
		{"cache_key of 129", nil, `{"cache_key":"` + strings.Repeat("k", 129) + `","prefix":"p"}`, routing.SourcePrefixField},
		{"cache_key of 129 escaped", nil, `{"cache_key":"` + strings.Repeat(`\u006b`, 129) + `"}`, routing.SourceNone},
		{"cache_key malformed", nil, `{"cache_key":"\x"}`, routing.SourceNone},
		{"prefix", nil, `{"prefix":"any text, really",` + sys + `}`, routing.SourcePrefixField},
		{"prefix blank", nil, `{"prefix":" \n",` + sys + `}`, routing.SourceCanonical},
		{"prefix no string", nil, `{"prefix":["p"],` + sys + `}`, routing.SourceCanonical},
		{"system message", header("X-Session-ID", "s"), `{` + sys + `}`, routing.SourceCanonical},
		{"system message in capitals", nil, `{"messages":[{"role":"SYSTEM","content":"S"}]}`, routing.SourceCanonical},
		{"developer message", nil, `{"messages":[{"role":"developer","content":"S"}]}`, routing.SourceCanonical},
		{"system parts", nil, `{"messages":[{"role":"system","content":[{"type":"text","text":"S"}]}]}`, routing.SourceCanonical},
		{"system object", nil, `{"messages":[{"role":"system","content":{"parts":["S"]}}]}`, routing.SourceCanonical},
		{"system image", nil, `{"messages":[{"role":"system","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, routing.SourceCanonical},
		{"system field", nil, `{"system":"S",` + hello + `}`, routing.SourceCanonical},
		{"system blocks", nil, `{"system":[{"type":"text","text":"S"}],` + hello + `}`, routing.SourceCanonical},
		{"instructions", nil, `{"instructions":"S","input":"Hello"}`, routing.SourceCanonical},
		{"tools", nil, `{"tools":[{}],` + hello + `}`, routing.SourceCanonical},
		{"document_context", nil, `{"document_context":"D",` + hello + `}`, routing.SourceCanonical},
		{"documentContext", nil, `{"documentContext":"D",` + hello + `}`, routing.SourceCanonical},
		{"context", nil, `{"context":"D",` + hello + `}`, routing.SourceCanonical},
		{"documents", nil, `{"documents":["D"],` + hello + `}`, routing.SourceCanonical},
		{"documents with text", nil, `{"documents":[{"text":"D"}]}`, routing.SourceCanonical},
		{"documents with content", nil, `{"documents":[{"content":"D"}]}`, routing.SourceCanonical},
		{"documents with value", nil, `{"documents":[{"value":"D"}]}`, routing.SourceCanonical},
		{"documents with page_content", nil, `{"documents":[{"page_content":"D"}]}`, routing.SourceCanonical},
		{"prompt", nil, `{"prompt":"p"}`, routing.SourceCanonical},
		{"prompts", nil, `{"prompt":["a","b"]}`, routing.SourceCanonical},
		{"token ids", nil, `{"prompt":[1,2]}`, routing.SourceCanonical},
		{"lists of token ids", nil, `{"prompt":[[1,2],[3]]}`, routing.SourceCanonical},
		{"inputs", nil, `{"input":["a"]}`, routing.SourceCanonical},
		{"generate", nil, `{"system":"S","prompt":"p"}`, routing.SourceCanonical},
		{"generate on", nil, `{"prompt":"p","context":[1,2,3]}`, routing.SourceCanonical},
		{"rerank", nil, `{"query":"q","documents":["a","b"]}`, routing.SourceCanonical},
		{"rerank of objects", nil, `{"query":"q","documents":[{"text":"a"}]}`, routing.SourceCanonical},
		{"tokenize a chat", nil, `{"messages":[{"role":"system","content":"S"},{"role":"user","content":"u"}]}`, routing.SourceCanonical},
		{"speech", nil, `{"input":"Hello","voice":"v"}`, routing.SourceSessionFallback},
		{"score", nil, `{"text_1":"a","text_2":["b"]}`, routing.SourceNone},

		{"user only", nil, `{` + hello + `}`, routing.SourceSessionFallback},
		{"user only, session named", header("X-Session-ID", "s"), `{` + hello + `}`, routing.SourceSessionFallback},
		{"session without a body", header("X-Session-ID", "s"), ``, routing.SourceSessionFallback},
		{"input", nil, `{"input":"Hello"}`, routing.SourceSessionFallback},
		{"no tools", nil, `{"tools":[ ],` + hello + `}`, routing.SourceSessionFallback},
		{"tools no array", nil, `{"tools":{},` + hello + `}`, routing.SourceSessionFallback},
		{"blank system", nil, `{"messages":[{"role":"system","content":" \n "},{"role":"user","content":"u"}]}`, routing.SourceSessionFallback},
		{"context of token ids", nil, `{"context":[1,2,3],` + hello + `}`, routing.SourceSessionFallback},
		{"documents without text", nil, `{"documents":[{"id":7},null,""],` + hello + `}`, routing.SourceSessionFallback},
		{"salt only", nil, `{"model":"m","cache_salt":"s",` + hello + `}`, routing.SourceSessionFallback},

		{"model only", nil, `{"model":"m","cache_salt":"s"}`, routing.SourceNone},
		{"empty prompt", nil, `{"prompt":""}`, routing.SourceNone},
		{"nothing", nil, ``, routing.SourceNone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := prefix(t, tt.header, tt.body); got.Source != tt.want {
				t.Errorf("source %v, want %v", got.Source, tt.want)
			}
			c := Default()
			if d := scan(t, tt.body); !c.Holds(tt.want, "", "", tt.header, d) {
				t.Errorf("Holds(%v) is false", tt.want)
			}
		})
	}
}

func TestHolds(t *testing.T) {
	tests := []struct {
		name   string
		header http.Header
		body   string
		holds  []routing.KeySource
	}{
		{"nothing", nil, ``, []routing.KeySource{routing.SourceNone}},
		{
			"everything",
			header("X-Session-ID", "s", "X-Conversation-ID", "c", "X-Flexinfer-Cache-Key", "k"),
			`{"cache_key":"k","prefix":"p","session_id":"s","tools":[1],` + hello + `}`,
			[]routing.KeySource{
				routing.SourceExplicitHeader, routing.SourceExplicitBody, routing.SourcePrefixField,
				routing.SourceCanonical, routing.SourceSessionFallback, routing.SourceSessionHeader,
				routing.SourceConversationHeader, routing.SourceSessionBody, routing.SourceSessionMessages,
			},
		},
		{
			"listed names", header("Session-Id", "s"), `{"metadata":{"user_id":"u"}}`,
			[]routing.KeySource{routing.SourceSessionFallback, routing.SourceSessionHeader, routing.SourceSessionBody},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Default()
			d := scan(t, tt.body)
			held := map[routing.KeySource]bool{}
			for _, s := range tt.holds {
				held[s] = true
			}
			for s := range routing.KeySource(routing.NumKeySources) {
				if got := c.Holds(s, "", "", tt.header, d); got != held[s] {
					t.Errorf("Holds(%v) = %v", s, got)
				}
			}
		})
	}
}

// TestListedNames takes the operator's names, in their order, in place of the
// shipped ones.
func TestListedNames(t *testing.T) {
	c := Config{
		SessionHeaders: []string{"x-tenant-chat", "X-Other"},
		SessionFields:  []string{"a.b.c", "user"},
	}
	h := header("X-Other", "2", "X-Tenant-Chat", "1")
	if got, want := c.Session(h, nil), session(t, header("X-Session-ID", "1"), ""); got != want {
		t.Errorf("%v, want that of the first listed header", got)
	}
	d := scan(t, `{"user":"2","a":{"b":{"c":"1"}}}`)
	if got, want := c.Session(nil, d), session(t, nil, `{"session_id":"1"}`); got != want {
		t.Errorf("%v, want that of the first listed field", got)
	}
	d = scan(t, `{"user":"2","a":{"b":{"c":1}}}`)
	if got, want := c.Session(nil, d), session(t, nil, `{"session_id":"2"}`); got != want {
		t.Errorf("%v, want that of the second listed field", got)
	}
	if got := c.Session(header("Session-Id", "s"), scan(t, `{"metadata":{"user_id":"u"}}`)); got.Usable() {
		t.Errorf("%v by a name that is not listed", got.Source)
	}
}

// TestBounds uses the defaults for bounds that are not positive.
func TestBounds(t *testing.T) {
	body := scan(t, `{"prefix":"`+strings.Repeat("p", 600)+`"}`)
	cut := scan(t, `{"prefix":"`+strings.Repeat("p", 512)+`"}`)
	for _, n := range []int{0, -1} {
		c := Config{ExplicitMax: n, SystemMax: n, DocumentMax: n}
		if c.Prefix("", "", nil, body) != c.Prefix("", "", nil, cut) {
			t.Errorf("%d: the default bound does not hold", n)
		}
		if k := c.Prefix("", "", header("X-Flexinfer-Cache-Key", strings.Repeat("k", 129)), nil); k.Usable() {
			t.Errorf("%d: a key of 129 is taken", n)
		}
	}
	c := Config{ExplicitMax: 1000, SystemMax: 600}
	if c.Prefix("", "", nil, body) == c.Prefix("", "", nil, cut) {
		t.Error("a wider bound does not count")
	}
	if k := c.Prefix("", "", nil, scan(t, `{"cache_key":"`+strings.Repeat(`\u006b`, 1000)+`"}`)); !k.Usable() {
		t.Error("a key of 1000 is refused")
	}
}

func TestContinues(t *testing.T) {
	if Continues(nil) || Continues(scan(t, `{`+hello+`}`)) {
		t.Error("a first turn continues")
	}
	if !Continues(scan(t, `{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}`)) {
		t.Error("a later turn does not continue")
	}
	if !Continues(scan(t, `{"prompt":"p","context":[1,2]}`)) || Continues(scan(t, `{"prompt":"p","context":["a document"]}`)) {
		t.Error("the context of token ids says whether a prompt continues")
	}
}

// A conversation over Ollama's /api/generate keeps its keys from the turn on
// whose context is long enough; the turns of its /api/chat are those of a chat.
func TestOllamaConversation(t *testing.T) {
	tokens := strings.Repeat("12345,", 400)
	turn := func(later, prompt string) string {
		return `{"model":"m","prompt":"` + prompt + `","context":[` + tokens + later + `]}`
	}
	second, third := turn("1", "and?"), turn("1,2,3", "why?")
	if prefix(t, nil, second) != prefix(t, nil, third) || session(t, nil, second) != session(t, nil, third) {
		t.Error("the turns of a conversation have different keys")
	}
	other := strings.Replace(second, "12345", "54321", 1)
	if prefix(t, nil, second) == prefix(t, nil, other) || session(t, nil, second) == session(t, nil, other) {
		t.Error("different conversations have the same key")
	}

	const opening = `{"model":"m","messages":[{"role":"system","content":"S"},{"role":"user","content":"Hello","images":["AAAA"]}`
	later := opening + `,{"role":"assistant","content":"a"},{"role":"user","content":"u"}],"stream":false,"options":{"num_ctx":1}}`
	if prefix(t, nil, opening+`]}`) != prefix(t, nil, later) || session(t, nil, opening+`]}`) != session(t, nil, later) {
		t.Error("the turns of a chat have different keys")
	}
}
