package key

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/openai"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// TestSessionSame says which requests belong to one conversation.
func TestSessionSame(t *testing.T) {
	const (
		sys  = `{"role":"system","content":"S"}`
		user = `{"role":"user","content":"Hello"}`
	)
	messages := func(m ...string) string { return `{"messages":[` + strings.Join(m, ",") + `]}` }
	tests := []struct {
		name, a, b string
		same       bool
	}{
		{"later turn", messages(sys, user), messages(sys, user, `{"role":"assistant","content":"A"}`, `{"role":"user","content":"B"}`), true},
		{"later turn with a late system message", messages(sys, user), messages(sys, user, `{"role":"assistant","content":"A"}`, `{"role":"system","content":"late"}`), true},
		{"other first message", messages(sys, user), messages(sys, `{"role":"user","content":"Hi"}`), false},
		{"other system message", messages(sys, user), messages(`{"role":"system","content":"T"}`, user), false},
		{"developer for system", messages(sys, user), messages(`{"role":"developer","content":"S"}`, user), false},
		{"no system message", messages(sys, user), messages(user), false},
		{"role is told from content", messages(`{"role":"system","content":"SHello"}`), messages(sys, user), false},
		{"other role", messages(`{"role":"tool","content":"x"}`), messages(`{"role":"function","content":"x"}`), false},
		{"string and part", messages(user), messages(`{"role":"user","content":[{"type":"text","text":"Hello"}]}`), true},
		{"string and bare part", messages(user), messages(`{"role":"user","content":["Hello"]}`), true},
		{"cache_control moves", messages(`{"role":"user","content":[{"type":"text","text":"Hello","cache_control":{"type":"ephemeral"}}]}`), messages(user, `{"role":"assistant","content":"A"}`), true},
		{"order of keys", messages(user), messages(`{"content":"Hello","role":"user"}`), true},
		{"white space around values", messages(user), "{\n\"messages\": [ { \"role\": \"user\",\n\"content\": \"Hello\" } ] }", true},
		{"two parts", messages(`{"role":"user","content":["Hel","lo"]}`), messages(user), false},
		{"image", messages(`{"role":"user","content":["x",{"type":"image_url","image_url":{"url":"data:1"}}]}`), messages(`{"role":"user","content":["x",{"type":"image_url","image_url":{"url":"data:2"}}]}`), false},
		{"same image, cache_control", messages(`{"role":"user","content":[{"type":"image","source":{"data":"1"}}]}`), messages(`{"role":"user","content":[{"cache_control":{"type":"ephemeral"},"source":{"data":"1"},"type":"image"}]}`), true},
		{"no user", messages(sys), messages(sys, `{"role":"assistant","content":"A"}`), false},
		{"model does not count", `{"model":"a","messages":[` + user + `]}`, `{"model":"b","temperature":1,"messages":[` + user + `]}`, true},

		{"system field", `{"system":"S","messages":[` + user + `]}`, `{"system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],"messages":[` + user + `,{"role":"assistant","content":"A"}]}`, true},
		{"system field is the first message", `{"system":"S","messages":[` + user + `]}`, messages(sys, user), true},
		{"other system field", `{"system":"S","messages":[` + user + `]}`, `{"system":"T","messages":[` + user + `]}`, false},
		{"Claude Code's billing line", `{"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"S"}],"messages":[` + user + `]}`, `{"system":[{"type":"text","text":"x-anthropic-billing-header: cch=2;"},{"type":"text","text":"S"}],"messages":[` + user + `]}`, true},
		{"billing line in one text", `{"system":"x-anthropic-billing-header: cch=1;\nS","messages":[` + user + `]}`, `{"system":"S","messages":[` + user + `]}`, true},
		{"what the user says of billing", messages(`{"role":"user","content":"x-anthropic-billing-header: 1"}`), messages(`{"role":"user","content":"x-anthropic-billing-header: 2"}`), false},

		{"input and its items", `{"input":"Hello"}`, `{"input":[{"role":"user","content":[{"type":"input_text","text":"Hello"}]},{"type":"reasoning"},{"role":"user","content":"B"}]}`, true},
		{"instructions", `{"instructions":"S","input":"Hello"}`, `{"instructions":"T","input":"Hello"}`, false},
		{"input that goes on", `{"input":[{"role":"developer","content":"D"},{"role":"user","content":"u"}]}`, `{"input":[{"role":"developer","content":"D"},{"role":"user","content":"u"},{"type":"function_call","name":"f"},{"type":"function_call_output","output":"o"}]}`, true},

		{"prompt", `{"prompt":"p"}`, `{"prompt":"p","n":1}`, true},
		{"other prompt", `{"prompt":"p"}`, `{"prompt":"q"}`, false},
		{"first prompt counts", `{"prompt":["p","q"]}`, `{"prompt":["p","r"]}`, true},
		{"prompt beyond 2048 bytes", `{"prompt":"` + strings.Repeat("p", 2048) + `a"}`, `{"prompt":"` + strings.Repeat("p", 2048) + `b"}`, true},
		{"prompt within 2048 bytes", `{"prompt":"` + strings.Repeat("p", 2047) + `a"}`, `{"prompt":"` + strings.Repeat("p", 2047) + `b"}`, false},
		{"token ids", `{"prompt":[1,2,3]}`, `{"prompt":[1,2,4]}`, false},
		{"first token ids count", `{"prompt":[[1,2],[3]]}`, `{"prompt":[[1,2],[4]]}`, true},
		{"inputs", `{"input":["a","b"]}`, `{"input":["b","a"]}`, false},

		{"field's value, escaped", `{"session_id":"a/é\n"}`, `{"session_id":"a\/\u00e9\u000a"}`, true},
		{"field's case", `{"session_id":"a"}`, `{"session_id":"A"}`, false},
		{"field is not trimmed", `{"session_id":"a"}`, `{"session_id":" a"}`, false},
		{"field, last of several", `{"session_id":"a","session_id":"b"}`, `{"session_id":"b"}`, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := session(t, nil, tt.a), session(t, nil, tt.b)
			if !a.Usable() || !b.Usable() {
				t.Fatalf("sources %v and %v", a.Source, b.Source)
			}
			if (a == b) != tt.same {
				t.Errorf("%v and %v, want same: %v", a, b, tt.same)
			}
		})
	}
}

// TestSessionValues gives the same key for the same name of a session,
// whichever way it comes.
func TestSessionValues(t *testing.T) {
	want := session(t, header("X-Session-ID", "s-1"), "")
	for name, k := range map[string]routing.Key{
		"conversation":       session(t, header("X-Conversation-ID", "s-1"), ""),
		"body":               session(t, nil, `{"session_id":"s-1"}`),
		"listed header":      session(t, header("Session-Id", "s-1"), ""),
		"listed field":       session(t, nil, `{"metadata":{"user_id":"s-1"}}`),
		"first of two":       session(t, header("X-Session-ID", "s-1", "X-Session-ID", "s-2"), ""),
		"prefix falls back":  prefix(t, header("X-Session-ID", "s-1"), ""),
		"header's own value": session(t, header("x-session-id", "s-1"), `{"session_id":"other"}`),
	} {
		if k.Hash != want.Hash {
			t.Errorf("%s: %v, want %v", name, k, want)
		}
	}
	if k := session(t, header("X-Session-ID", "S-1"), ""); k.Hash == want.Hash {
		t.Error("case does not count")
	}
}

// TestSessionEveryTurn follows a conversation: the key is that of its first
// turn on every turn, with cache_control on the newest message each time.
func TestSessionEveryTurn(t *testing.T) {
	const mark = `,"cache_control":{"type":"ephemeral"}`
	for _, leading := range []int{0, 1, 40} { // system messages: more than a Doc remembers
		var turns []string
		for i := range leading {
			turns = append(turns, fmt.Sprintf(`{"role":"system","content":"rule %d"}`, i))
		}
		turns = append(turns, `{"role":"user","content":[{"type":"text","text":"first \"question\""}]}`)
		first := session(t, nil, `{"messages":[`+strings.Join(turns, ",")+`]}`)
		for turn := range 30 {
			turns = append(turns,
				fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[%d]}`, turn),
				fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":"question %d"}]}`, turn))
			last := len(turns) - 1
			marked := strings.Replace(turns[last], `"}]`, `"`+mark+`}]`, 1)
			body := `{"messages":[` + strings.Join(turns[:last], ",") + "," + marked + `]}`
			if got := session(t, nil, body); got != first {
				t.Fatalf("%d system messages, turn %d: %v, want %v", leading, turn, got, first)
			}
		}
	}
}

// TestPrefixSame says which requests share the head of their prompts.
func TestPrefixSame(t *testing.T) {
	sys := func(text, user string) string {
		return `{"model":"m","messages":[{"role":"system","content":"` + text + `"},{"role":"user","content":"` + user + `"}]}`
	}
	x := strings.Repeat("x", 511)
	tests := []struct {
		name, a, b string
		same       bool
	}{
		{"other user", sys("S", "u"), sys("S", "v"), true},
		{"other system message", sys("S", "u"), sys("T", "u"), false},
		{"white space and case", sys("You are an expert.", "u"), sys(`\n you  ARE\tan\u00a0expert. `, "u"), true},
		{"case beyond ASCII", sys("ÄÖ Σ", "u"), sys(`äö \u03c3`, "u"), true},
		{"words are kept apart", sys("a b", "u"), sys("ab", "u"), false},
		{"within the cut", sys(x+"a", "u"), sys(x+"b", "u"), false},
		{"beyond the cut", sys(x+"ab", "u"), sys(x+"ac", "u"), true},
		{"no rune is cut", sys(x+"é", "u"), sys(x+"ü", "u"), true},
		{"a space does not count alone", sys(x+" a", "u"), sys(x, "u"), true},
		{"string and parts", sys("a b", "u"), `{"model":"m","messages":[{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{}}]}]}`, true},
		{"string and object", sys("a", "u"), `{"model":"m","messages":[{"role":"system","content":{"parts":[{"value":"a"}]}}]}`, true},
		{"deep parts", sys("a", "u"), `{"model":"m","messages":[{"role":"system","content":[{"content":[{"text":"a"}]}]}]}`, true},
		{"role in capitals", sys("a", "u"), `{"model":"m","messages":[{"role":"System","content":"a"}]}`, true},
		{"system field", sys("a", "u"), `{"model":"m","system":"a","messages":[{"role":"user","content":"v"}]}`, true},
		{"instructions", sys("a", "u"), `{"model":"m","instructions":"a","input":"v"}`, true},
		{"two messages", sys("a b", "u"), `{"model":"m","messages":[{"role":"system","content":"a"},{"role":"system","content":"b"}]}`, false},
		{"all system messages", `{"messages":[{"role":"system","content":"a"},{"role":"developer","content":"b"}]}`, `{"messages":[{"role":"system","content":"a"},{"role":"developer","content":"c"}]}`, false},
		{"billing line", `{"system":[{"text":"x-anthropic-billing-header: cch=1;"},{"text":"S"}]}`, `{"system":"x-anthropic-billing-header: cch=2;\nS"}`, true},
		{"system image", `{"messages":[{"role":"system","content":["a",{"type":"image","source":"1"}]}]}`, `{"messages":[{"role":"system","content":["a",{"type":"image","source":"2"}]}]}`, false},
		{"image is no text", `{"messages":[{"role":"system","content":["a",{"type":"image","source":7}]}]}`, `{"messages":[{"role":"system","content":["a7"]}]}`, false},

		{"model", `{"model":"m","system":"a"}`, `{"model":"n","system":"a"}`, false},
		{"salt", `{"cache_salt":"1","system":"a"}`, `{"cache_salt":"2","system":"a"}`, false},
		{"no salt", `{"cache_salt":null,"system":"a"}`, `{"system":"a"}`, true},
		{"tools", `{"tools":[{"name":"f"}],"system":"a"}`, `{"tools":[{"name":"g"}],"system":"a"}`, false},
		{"no tools", `{"tools":[],"system":"a"}`, `{"system":"a"}`, true},
		{"document", `{"document_context":"d","system":"a"}`, `{"document_context":"e","system":"a"}`, false},
		{"document by any name", `{"document_context":"d","context":"x"}`, `{"documentContext":" D ","documents":["y"]}`, true},
		{"document by any name, last", `{"context":"d"}`, `{"document_context":"","documents":["",{"text":"d"},"e"]}`, true},
		{"document beyond the cut", `{"context":"` + x[:256] + `a"}`, `{"context":"` + x[:256] + `b"}`, true},
		{"document is no system message", `{"context":"a"}`, `{"system":"a"}`, false},
		{"segments do not run together", `{"system":"a","context":"bc"}`, `{"system":"ab","context":"c"}`, false},

		{"prompt's head", `{"prompt":"` + x + `1a"}`, `{"prompt":"` + x + `1b"}`, true},
		{"prompt", `{"prompt":"Once"}`, `{"prompt":"Twice"}`, false},
		{"first prompt", `{"prompt":["once"]}`, `{"prompt":"Once"}`, true},
		{"token ids", `{"prompt":[1,2]}`, `{"prompt":[1,3]}`, false},
		{"token ids' head", `{"prompt":[` + strings.Repeat("12,", 200) + `1]}`, `{"prompt":[` + strings.Repeat("12,", 200) + `2]}`, true},
		{"prompt is not a system message", `{"prompt":"a"}`, `{"system":"a"}`, false},
		{"prompt under a system message", `{"prompt":"a","system":"s"}`, `{"prompt":"b","system":"s"}`, true},
		{"prompt under a document", `{"prompt":"a","context":"d"}`, `{"prompt":"b","context":"d"}`, true},
		{"inputs", `{"input":["a"]}`, `{"input":["b"]}`, false},

		{"explicit", `{"cache_key":" Tenant-A/Doc "}`, `{"prompt_cache_key":"tenant-a\/doc"}`, true},
		{"explicit under any model", `{"model":"m","cache_key":"k"}`, `{"model":"n","cache_key":"k"}`, true},
		{"prefix normalised", `{"prefix":"A  b"}`, `{"prefix":" a\nB"}`, true},
		{"prefix within the cut", `{"prefix":"` + x + `a"}`, `{"prefix":"` + x + `b"}`, false},
		{"prefix beyond the cut", `{"prefix":"` + x + `aa"}`, `{"prefix":"` + x + `ab"}`, true},
		{"prefix is no explicit key", `{"prefix":"a"}`, `{"cache_key":"a"}`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := prefix(t, nil, tt.a), prefix(t, nil, tt.b)
			if !a.Usable() || !b.Usable() {
				t.Fatalf("sources %v and %v", a.Source, b.Source)
			}
			if (a.Hash == b.Hash) != tt.same {
				t.Errorf("%v and %v, want same: %v", a, b, tt.same)
			}
		})
	}
}

func TestPrefixModel(t *testing.T) {
	c := Default()
	d := scan(t, `{"model":"m","system":"a"}`)
	key := c.Prefix("", "", nil, d)
	if c.Prefix("m", "", nil, d) != key {
		t.Error("the routed model counts differently from the body's")
	}
	if c.Prefix("n", "", nil, d) == key {
		t.Error("the routed model does not count")
	}
	if c.Prefix("m", "lora", nil, d) == key {
		t.Error("the adapter does not count")
	}
	if c.Prefix("ml", "ora", nil, d) == c.Prefix("m", "lora", nil, d) {
		t.Error("model and adapter run together")
	}
	if c.Prefix("n", "", header("X-Flexinfer-Cache-Key", "k"), d) != c.Prefix("m", "", header("X-Flexinfer-Cache-Key", "K"), d) {
		t.Error("an explicit key counts differently under two models")
	}
}

// TestManySystemMessages has more messages than a Doc remembers.
func TestManySystemMessages(t *testing.T) {
	body := func(last string) string {
		s := `{"messages":[`
		for i := range 60 {
			s += fmt.Sprintf(`{"role":"system","content":"rule %d"},`, i)
		}
		return s + `{"role":"system","content":"` + last + `"},{"role":"user","content":"u"}]}`
	}
	if prefix(t, nil, body("a")) == prefix(t, nil, body("b")) {
		t.Error("the last system message does not count")
	}
	if session(t, nil, body("a")) == session(t, nil, body("b")) {
		t.Error("the last system message of the opening does not count")
	}
}

func TestKeysAllocateNothing(t *testing.T) {
	c := Default()
	h := header("Content-Type", "application/json", "Accept", "*/*")
	for name, body := range map[string]string{
		"chat":     chat(100 << 10),
		"explicit": `{"cache_key":"Tenant\/a"}`,
		"prefix":   `{"prefix":"some text"}`,
		"prompt":   `{"prompt":[1,2,3]}`,
		"session":  `{"session_id":"a\/b"}`,
		"document": `{"documents":[{"text":"d"}],"system":[{"type":"text","text":"É"}]}`,
	} {
		d := scan(t, body)
		if n := testing.AllocsPerRun(10, func() {
			c.Session(h, d)
			c.Prefix("model", "adapter", h, d)
			Continues(d)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzKeys checks that keys are the same each time, and none without a source.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{
		`{` + hello + `}`, `{"system":[{"text":"a"},"b"],"messages":[{"role":"developer","content":{"parts":["x"]}}]}`,
		`{"input":[{"type":"message","content":[{"type":"input_image","image_url":"x"}]}],"instructions":"\ud83d"}`,
		`{"prompt":[[],[1]],"cache_salt":"s","tools":[1]}`, `{"documents":[{"content":[{"value":"x"}]}]}`,
		`{"cache_key":"\u0041","prefix":"x\q"}`, `{"metadata":{"user_id":"u"},"session_id":"\"}`,
	} {
		f.Add([]byte(s), "session", "key")
	}
	c := Default()
	c.SessionFields = append(c.SessionFields, "user", "a.b.c")
	f.Fuzz(func(t *testing.T, body []byte, sessionID, cacheKey string) {
		var d openai.Doc
		if d.Scan(body) != nil {
			return
		}
		for _, h := range []map[string][]string{nil, {"X-Session-Id": {sessionID}, "X-Flexinfer-Cache-Key": {cacheKey}}} {
			s, p := c.Session(h, &d), c.Prefix("m", "", h, &d)
			if s != c.Session(h, &d) || p != c.Prefix("m", "", h, &d) {
				t.Fatal("keys change")
			}
			if s.Usable() && !p.Usable() {
				t.Fatal("a session key, but no prefix key")
			}
			if s.Usable() != c.Holds(routing.SourceSessionFallback, "m", "", h, &d) || !c.Holds(s.Source, "m", "", h, &d) && s.Usable() {
				t.Fatal("Holds knows better")
			}
		}
	})
}
