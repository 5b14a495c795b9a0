package openai

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzScan compares the scan with encoding/json: it accepts every object that
// is valid, finds in it what a reader sees that takes the last of several
// members, and lets pass what is not valid only inside values.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"model":"a"}`, `{"model":"a","model":"b"}`, `{"\u006dodel":"a"}`, ` { "a" : [ 1 , { } ] } `,
		`{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"\\\""}]},{"role":"assistant"}],"stream":true}`,
		`{"input":[{"type":"message","role":"user","content":"u"},{"type":"reasoning"}],"instructions":"\ud83d"}`,
		`{"input":[[1,2],[3]],"messages":null}`, `{"x":nope}`, `{"messages":[{]}`, `{"a":"\"}`, "\xef\xbb\xbf{}",
		`{"a":{"b":"` + "\x00" + `"},"c":tru}`, `{"metadata":{"user_id":"u"},"user":"v","messages":[{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		var d Doc
		err := d.Scan(body)
		if !bytes.Equal(body, before) {
			t.Fatal("the body has changed")
		}
		plain := bytes.TrimPrefix(body, byteOrderMark)
		valid := json.Valid(plain) && bytes.TrimLeft(plain, " \t\r\n")[0] == '{'
		if err != nil {
			if valid {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		checkSpans(t, &d)
		if skeleton := skeleton(&d); !json.Valid(skeleton) {
			t.Fatalf("accepted outside of values: %q", skeleton)
		}
		if valid {
			checkFields(t, &d, plain)
			checkTurns(t, &d)
		}
	})
}

// checkSpans calls everything there is, and checks that no span lies outside
// of the body.
func checkSpans(t *testing.T, d *Doc) {
	t.Helper()
	check := func(s Span) {
		if s != (Span{}) && (s.Start < 1 || s.End <= s.Start || s.End > len(d.body)) {
			t.Fatalf("span %v of a body of %d", s, len(d.body))
		}
		d.Raw(s)
	}
	for f := range numFields {
		check(d.Field(f))
		d.String(d.Field(f), 10)
		d.Bool(d.Field(f))
	}
	for turns := d.Turns(); turns.Next(); {
		check(turns.Name)
		check(turns.Content)
	}
	check(d.Lookup("metadata.user_id"))
	check(d.Lookup("user"))
	d.Continues()
	for f := range numFields {
		for s := d.Strings(d.Field(f)); s.Next(); {
			check(s.Value)
		}
	}
	if e, ok := d.AskUsage(); ok && json.Valid(bytes.TrimPrefix(d.body, byteOrderMark)) {
		if edited := bytes.Join(Splice(nil, d.body, []Edit{e}), nil); !json.Valid(bytes.TrimPrefix(edited, byteOrderMark)) {
			t.Fatalf("asks for usage with %q", edited)
		}
	}
	_, _ = d.Model(10)
	for m := d.Members(d.Object()); m.Next(); {
		if m.Key.End > len(d.body) {
			t.Fatalf("key %v", m.Key)
		}
		check(m.Value)
		for e := d.Elements(m.Value); e.Next(); {
			check(e.Value)
			for m := d.Members(e.Value); m.Next(); {
				check(m.Value)
			}
		}
	}
}

// skeleton returns the object with zeros for values.
func skeleton(d *Doc) []byte {
	var s []byte
	last := d.object.Start
	for m := d.Members(d.object); m.Next(); last = m.Value.End {
		s = append(append(s, d.body[last:m.Value.Start]...), '0')
	}
	return append(s, d.body[last:]...)
}

// object reads a valid object like a reader that takes the last of several
// members, key by key.
func object(t *testing.T, text []byte) map[string]json.RawMessage {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		t.Fatalf("reference: %v, %v", token, err)
	}
	members := map[string]json.RawMessage{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			t.Fatal(err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			t.Fatal(err)
		}
		members[key.(string)] = value
	}
	return members
}

func checkFields(t *testing.T, d *Doc, text []byte) {
	t.Helper()
	seen := 0
	for key, want := range object(t, text) {
		var got Span
		if f := fieldOf([]byte(key)); f != fieldOther {
			seen++
			got = d.Field(f)
		} else if bytes.ContainsAny([]byte(key), ".\ufffd") {
			continue // not to be looked up
		} else {
			got = d.Lookup(key)
		}
		if !bytes.Equal(d.Raw(got), want) {
			t.Fatalf("%q: %q, want %q", key, d.Raw(got), want)
		}
	}
	for f := range numFields {
		if d.Field(f).Present() {
			seen--
		}
	}
	if seen != 0 {
		t.Fatalf("%d fields too few", seen)
	}
}

// checkTurns compares the turns with those that encoding/json finds.
func checkTurns(t *testing.T, d *Doc) {
	t.Helper()
	var elements []json.RawMessage
	if s := d.conversation(); s.Present() {
		if err := json.Unmarshal(d.Raw(s), &elements); err != nil {
			t.Fatal(err)
		}
	}
	opened, answered := false, false
	turns := d.Turns()
	for _, element := range elements {
		if element[0] != '{' {
			break
		}
		members := object(t, element)
		var role string
		_ = json.Unmarshal(members["role"], &role)
		known := roleOf([]byte(`"` + role + `"`))
		if role == "" {
			known = roleOf(members["role"])
		}
		answered = answered || known == RoleAssistant || known == RoleNone && isOutput(members["type"])
		if opened && known != RoleSystem && known != RoleDeveloper {
			continue
		}
		if !turns.Next() {
			t.Fatalf("no turn for %q", element)
		}
		want := []byte(members["content"])
		if want == nil && known == RoleNone {
			want = element
		}
		if turns.Role != known || turns.Opening == opened || !bytes.Equal(d.Raw(turns.Content), want) {
			t.Fatalf("%q: role %d, opening %v, content %q", element, turns.Role, turns.Opening, d.Raw(turns.Content))
		}
		opened = opened || known == RoleUser
	}
	if turns.Next() {
		t.Fatalf("turn %q too many", d.Raw(turns.Content))
	}
	if !d.Field(FieldPreviousResponseID).Present() && d.Continues() != answered {
		t.Fatalf("continues %v, want %v", d.Continues(), answered)
	}
}
