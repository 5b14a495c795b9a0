package openai

import (
	"bytes"
	"encoding/json"
	"testing"
)

func apply(d *Doc, edits ...Edit) string {
	return string(bytes.Join(Splice(nil, d.Body(), edits), nil))
}

func TestSplice(t *testing.T) {
	body := []byte("0123456789")
	edits := []Edit{{Span{8, 10}, []byte("z")}, {Span{3, 5}, []byte("abc")}, {Span{5, 5}, []byte("-")}, {Span{0, 1}, nil}}
	if got := string(bytes.Join(Splice(nil, body, edits), nil)); got != "12abc-567z" {
		t.Errorf("got %q", got)
	}
	pieces := Splice(nil, body, nil)
	if len(pieces) != 1 || &pieces[0][0] != &body[0] {
		t.Errorf("a body without edits is %q", pieces)
	}
}

// S4: usage is asked for only where a stream is, and nothing else changes.
func TestS4AskUsage(t *testing.T) {
	const same = "same"
	tests := []struct {
		name, body, want string
	}{
		{"no options", `{"stream":true}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		{"white space", " {\n \"stream\" : true\n}\n", " {\n \"stream\" : true\n,\"stream_options\":{\"include_usage\":true}}\n"},
		{"byte order mark", "\xef\xbb\xbf{\"stream\":true}", "\xef\xbb\xbf{\"stream\":true,\"stream_options\":{\"include_usage\":true}}"},
		{"null options", `{"stream_options":null,"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`},
		{"empty options", `{"stream":true,"stream_options":{ }}`, `{"stream":true,"stream_options":{"include_usage":true }}`},
		{"other option", `{"stream":true,"stream_options":{"a":1}}`, `{"stream":true,"stream_options":{"include_usage":true,"a":1}}`},
		{"false", `{"stream":true,"stream_options":{"a":1,"include_usage": false}}`, `{"stream":true,"stream_options":{"a":1,"include_usage": true}}`},
		{"null", `{"stream":true,"stream_options":{"include_usage":null}}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		{"escaped key", `{"stream":true,"stream_options":{"include\u005fusage":false}}`, `{"stream":true,"stream_options":{"include\u005fusage":true}}`},
		{"no usage in every chunk", `{"stream":true,"stream_options":{"continuous_usage_stats":false}}`, `{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":false}}`},
		{"asked", `{"stream":true,"stream_options":{"include_usage":true}}`, same},
		{"asked twice", `{"stream":true,"stream_options":{"include_usage":false,"include_usage":true}}`, same},
		{"twice", `{"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}`, same},
		{"usage in every chunk", `{"stream":true,"stream_options":{"continuous_usage_stats":true}}`, same},
		{"no stream", `{"a":1}`, same},
		{"empty", `{}`, same},
		{"stream false", `{"stream":false}`, same},
		{"stream false but asked", `{"stream":false,"stream_options":{"include_usage":true}}`, same},
		{"stream null", `{"stream":null}`, same},
		{"stream a string", `{"stream":"true"}`, same},
		{"stream 1", `{"stream":1}`, same},
		{"stream twice", `{"stream":false,"stream":true}`, same},
		{"options twice", `{"stream":true,"stream_options":{},"stream_options":{}}`, same},
		{"options a string", `{"stream":true,"stream_options":"x"}`, same},
		{"options an array", `{"stream":true,"stream_options":[]}`, same},
		{"options true", `{"stream":true,"stream_options":true}`, same},
		{"options nul", `{"stream":true,"stream_options":nul}`, same},
		{"usage a string", `{"stream":true,"stream_options":{"include_usage":"false"}}`, same},
		{"usage 0", `{"stream":true,"stream_options":{"include_usage":0}}`, same},
		{"malformed options", `{"stream":true,"stream_options":{"include_usage" 1}}`, same},
		{"cut options", `{"stream":true,"stream_options":{"include_usage":false]}`, same},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := scan(t, tt.body)
			e, ok := d.AskUsage()
			got := same
			if ok {
				got = apply(d, e)
			}
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if plain := bytes.TrimPrefix([]byte(got), byteOrderMark); ok && !json.Valid(plain) {
				t.Errorf("%s is not valid", plain)
			}
		})
	}
}

func TestStrings(t *testing.T) {
	tests := []struct{ value, want string }{
		{`"a"`, `:"a"`},
		{`[]`, ``},
		{`1`, ``},
		{`["a",1,"b\""]`, `:"a" :"b\""`},
		{`{"k":"a","l" : ["b",{"m":{"n":"c"},"o":1}],"p":"d"}`, `k:"a" l:"b" n:"c" p:"d"`},
	}
	for _, tt := range tests {
		d := scan(t, `{"x":`+tt.value+`}`)
		var got []byte
		for s := d.Strings(d.Lookup("x")); s.Next(); {
			if len(got) > 0 {
				got = append(got, ' ')
			}
			got = append(append(append(got, d.body[s.Key.Start:s.Key.End]...), ':'), d.Raw(s.Value)...)
		}
		if string(got) != tt.want {
			t.Errorf("%s: %s, want %s", tt.value, got, tt.want)
		}
	}
}
