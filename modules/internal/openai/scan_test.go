package openai

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func scan(t *testing.T, body string) *Doc {
	t.Helper()
	d := new(Doc)
	if err := d.Scan([]byte(body)); err != nil {
		t.Fatalf("Scan(%.80q): %v", body, err)
	}
	return d
}

func TestScanFields(t *testing.T) {
	tests := []struct {
		name, body string
		field      Field
		want       string
		count      int
	}{
		{"first", `{"model":"a","x":1}`, FieldModel, `"a"`, 1},
		{"last", `{"x":{"model":"b"},"model":"a"}`, FieldModel, `"a"`, 1},
		{"nested is none", `{"x":{"model":"b"},"y":[{"model":"c"}]}`, FieldModel, ``, 0},
		{"in a string", `{"x":"\"model\":\"b\""}`, FieldModel, ``, 0},
		{"last of several", `{"model":"a","model":"b"}`, FieldModel, `"b"`, 2},
		{"case variant", `{"model":"a","Model":"b","MODEL":"c"}`, FieldModel, `"a"`, 1},
		{"escaped key", `{"\u006dodel":"a"}`, FieldModel, `"a"`, 1},
		{"escaped key wins as last", `{"model":"a","mod\u0065l":"b"}`, FieldModel, `"b"`, 2},
		{"escaped other key", `{"model":"a","mode\u006c\n":"b"}`, FieldModel, `"a"`, 1},
		{"white space", " {\r\n\t\"model\" :\t\"a\" , \"x\" : 1 } \n", FieldModel, `"a"`, 1},
		{"byte order mark (B12)", "\xef\xbb\xbf{\"model\":\"a\"}", FieldModel, `"a"`, 1},
		{"number", `{"max_tokens":-1.5e3}`, FieldMaxTokens, `-1.5e3`, 1},
		{"literal", `{"stream":true}`, FieldStream, `true`, 1},
		{"object", `{"metadata":{"a":[1,"}"]}}`, FieldMetadata, `{"a":[1,"}"]}`, 1},
		{"array", `{"tools":[ {"a":"]"} , [] ]}`, FieldTools, `[ {"a":"]"} , [] ]`, 1},
		{"backslashes before a quote", `{"x":"\\","y":"\\\"","model":"a\\\\"}`, FieldModel, `"a\\\\"`, 1},
		{"long escapes", `{"x":"` + strings.Repeat(`\\`, 99) + `\"","model":"a"}`, FieldModel, `"a"`, 1},
		{"null", `{"model":null}`, FieldModel, `null`, 1},
		{"empty key", `{"":1,"model":"a"}`, FieldModel, `"a"`, 1},
		{"no members", `{ }`, FieldModel, ``, 0},
		{"engine's to judge", `{"x":[nul,+1,{"a"}],"model":"a"}`, FieldModel, `"a"`, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := scan(t, tt.body)
			if got := string(d.Raw(d.Field(tt.field))); got != tt.want {
				t.Errorf("value %q, want %q", got, tt.want)
			}
			if got := d.Count(tt.field); got != tt.count {
				t.Errorf("count %d, want %d", got, tt.count)
			}
		})
	}
}

// TestScanEveryField finds each field by its key, alone and among others.
func TestScanEveryField(t *testing.T) {
	names := map[Field]string{
		FieldModel: "model", FieldStream: "stream", FieldStreamOptions: "stream_options",
		FieldSessionID: "session_id", FieldCacheKey: "cache_key", FieldCacheKeyCamel: "cacheKey",
		FieldPromptCacheKey: "prompt_cache_key", FieldPrefix: "prefix", FieldCacheSalt: "cache_salt",
		FieldMessages: "messages", FieldPrompt: "prompt", FieldInput: "input",
		FieldInstructions: "instructions", FieldSystem: "system", FieldTools: "tools",
		FieldDocumentContext: "document_context", FieldDocumentContextCamel: "documentContext",
		FieldContext: "context", FieldDocuments: "documents", FieldMetadata: "metadata",
		FieldMaxTokens: "max_tokens", FieldMaxCompletionTokens: "max_completion_tokens",
		FieldMaxOutputTokens: "max_output_tokens", FieldPreviousResponseID: "previous_response_id",
	}
	if len(names) != int(numFields) {
		t.Fatalf("%d names for %d fields", len(names), numFields)
	}
	var all strings.Builder
	for f, name := range names {
		d := scan(t, fmt.Sprintf(`{%q:[%d]}`, name, f))
		if got, want := string(d.Raw(d.Field(f))), fmt.Sprintf("[%d]", f); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		fmt.Fprintf(&all, `,%q:%d`, name, f)
	}
	d := scan(t, "{"+all.String()[1:]+"}")
	for f, name := range names {
		if got, want := string(d.Raw(d.Field(f))), fmt.Sprint(f); got != want {
			t.Errorf("%s among all: %q, want %q", name, got, want)
		}
	}
}

func TestScanRefuses(t *testing.T) {
	tests := []struct {
		body    string
		problem string
		offset  int
	}{
		{``, problemEmpty, 0},
		{" \n", problemEmpty, 2},
		{"\xef\xbb\xbf", problemEmpty, 3},
		{`null`, problemNoObject, 0},
		{`[]`, problemNoObject, 0},
		{`[{"model":"a"}]`, problemNoObject, 0},
		{`"x"`, problemNoObject, 0},
		{`1`, problemNoObject, 0},
		{`model=a`, problemNoObject, 0},
		{`{`, problemUnclosed, 1},
		{`{"`, problemUnclosed, 2},
		{`{"a`, problemUnclosed, 3},
		{`{"a"`, problemUnclosed, 4},
		{`{"a":`, problemUnclosed, 5},
		{`{"a":1`, problemUnclosed, 6},
		{`{"a":1,`, problemUnclosed, 7},
		{`{"a":"`, problemUnclosed, 6},
		{`{"a":"\"`, problemUnclosed, 8},
		{`{"a":"\"}`, problemUnclosed, 9},
		{`{"a":[1,{"b":2}`, problemUnclosed, 15},
		{`{"messages":[`, problemUnclosed, 13},
		{`{"messages":[{"role":"user"`, problemUnclosed, 27},
		{`{"messages":[{"role":"user`, problemUnclosed, 26},
		{`{"messages":[{"role"`, problemUnclosed, 20},
		{`{"messages":[{"role":`, problemUnclosed, 21},
		{`{"messages":[{}`, problemUnclosed, 15},
		{`{a:1}`, problemKey, 1},
		{`{,}`, problemKey, 1},
		{`{"a":1,}`, problemKey, 7},
		{`{"a" 1}`, problemColon, 5},
		{`{"a"}`, problemColon, 4},
		{`{"a":}`, problemValue, 5},
		{`{"a":,"b":1}`, problemValue, 5},
		{`{"a"::1}`, problemValue, 5},
		{`{"a":1 2}`, problemComma, 7},
		{`{"a":"b""c"}`, problemComma, 8},
		{`{"a":1;"b":2}`, problemComma, 7}, // 1; is taken for a value
		{"{\"a\nb\":1}", problemKeyText, 2},
		{`{"a\q":1}`, problemKeyText, 2},
		{`{"\u00g0":1}`, problemKeyText, 2},
		{`{} {}`, problemTrailing, 3},
		{`{}}`, problemTrailing, 2},
		{`{"model":"a"} trailing`, problemTrailing, 14},
		{"{}\x00", problemTrailing, 2},
	}
	for _, tt := range tests {
		t.Run(tt.body, func(t *testing.T) {
			err := new(Doc).Scan([]byte(tt.body))
			var syntax *SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("error %v, want a *SyntaxError", err)
			}
			if syntax.Problem != tt.problem || syntax.Offset != tt.offset {
				t.Errorf("%q at %d, want %q at %d", syntax.Problem, syntax.Offset, tt.problem, tt.offset)
			}
			if !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("text %q does not tell the problem", err)
			}
		})
	}
}

// TestScanForgets scans into a Doc that is full of another body.
func TestScanForgets(t *testing.T) {
	d := scan(t, string(agent(10<<10, 1)))
	if err := d.Scan([]byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	for f := range numFields {
		if d.Field(f).Present() || d.Count(f) != 0 {
			t.Errorf("field %d survived", f)
		}
	}
	if d.Lookup("temperature").Present() || d.Continues() {
		t.Error("other members or turns survived")
	}
	if turns := d.Turns(); turns.Next() {
		t.Error("turns survived")
	}
}

func TestScanDeep(t *testing.T) {
	const depth = 1_000_000
	for _, key := range []string{"x", "messages", "input"} {
		for _, brackets := range []string{"[]", "{}"} {
			body := `{"` + key + `":` + strings.Repeat(brackets[:1], depth) + strings.Repeat(brackets[1:], depth) + `,"model":"a"}`
			d := scan(t, body)
			if name, err := d.Model(10); name != "a" || err != nil {
				t.Errorf("%s of %s: model %q, %v", key, brackets, name, err)
			}
		}
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	for name, body := range map[string][]byte{"chat": chat(100<<10, 1), "agent": agent(100<<10, 1), "tokens": ids(10 << 10)} {
		var d Doc
		if n := testing.AllocsPerRun(10, func() {
			if err := d.Scan(body); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestLookup(t *testing.T) {
	many := `{`
	for i := range 3 * maxRest {
		many += fmt.Sprintf(`"key%d":%d,`, i, i)
	}
	many += `"user":"late"}`
	tests := []struct{ name, body, path, want string }{
		{"field", `{"model":"a"}`, "model", `"a"`},
		{"other", `{"user":"u","a":1}`, "user", `"u"`},
		{"last of several", `{"user":"u","user":"v"}`, "user", `"v"`},
		{"escaped", `{"\u0075ser":"u"}`, "user", `"u"`},
		{"nested", `{"metadata":{"a":1,"user_id":"u"}}`, "metadata.user_id", `"u"`},
		{"nested, last of several", `{"metadata":{"user_id":"u","user_id":"v"}}`, "metadata.user_id", `"v"`},
		{"nested, escaped", `{"metadata":{"user\u005fid":"u"}}`, "metadata.user_id", `"u"`},
		{"deep", `{"a":{"b":{"c":[1]}}}`, "a.b.c", `[1]`},
		{"among many", many, "user", `"late"`},
		{"among many, early", many, "key0", `0`},
		{"absent", `{"a":1}`, "b", ``},
		{"parent absent", `{"a":1}`, "b.c", ``},
		{"parent no object", `{"a":[{"c":1}]}`, "a.c", ``},
		{"parent null", `{"metadata":null}`, "metadata.user_id", ``},
		{"empty", `{"a":1}`, "", ``},
		{"dots", `{"a":{"":{"b":1}}}`, "a..b", `1`},
		{"malformed parent", `{"a":{"b" 1}}`, "a.b", ``},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := scan(t, tt.body)
			if got := string(d.Raw(d.Lookup(tt.path))); got != tt.want {
				t.Errorf("Lookup(%q) = %q, want %q", tt.path, got, tt.want)
			}
		})
	}
}

func TestMembersAndElements(t *testing.T) {
	d := scan(t, `{ "a":1, "b" : [ 1 ,"x", {} ] , "a":null}`)
	var got []string
	for m := d.Members(d.Object()); m.Next(); {
		got = append(got, string(d.Raw(m.Key))+"="+string(d.Raw(m.Value)))
		for e := d.Elements(m.Value); e.Next(); {
			got = append(got, string(d.Raw(e.Value)))
		}
	}
	if s := strings.Join(got, ";"); s != `a=1;b=[ 1 ,"x", {} ];1;"x";{};a=null` {
		t.Error(s)
	}
	if m := d.Members(Span{}); m.Next() {
		t.Error("members of an absent value")
	}
	if e := d.Elements(d.Object()); e.Next() {
		t.Error("elements of an object")
	}
}
