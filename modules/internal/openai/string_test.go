package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	const limit = 8
	tests := []struct {
		value, want string
		ok          bool
	}{
		{`""`, "", true},
		{`"a"`, "a", true},
		{`"12345678"`, "12345678", true},
		{`"123456789"`, "", false},
		{`"\u0031\u0032\u0033"`, "123", true},
		{`"\u0031\u0032\u0033\u0034\u0035\u0036\u0037\u0038"`, "12345678", true},
		{`"1234567é"`, "", false},
		{`"123456é"`, "123456é", true},
		{`"\"\\\/\b\f\n\r\t"`, "\"\\/\b\f\n\r\t", true},
		{`"\ud83d\ude00"`, "😀", true},
		{`"\ud83d"`, "�", true},
		{`"\ud83dx"`, "�x", true},
		{`"\ud83d\u0041"`, "�A", true},
		{`"\ude00"`, "�", true},
		{`"\ud83d\n"`, "�\n", true},
		{"\"\xff\"", "�", true},
		{"\"a\xe2\x82\"", "a��", true},
		{`"{env.X}"`, "{env.X}", true},
		{`"\x"`, "", false},
		{`"\u12"`, "", false},
		{`"\u12g4"`, "", false},
		{"\"a\nb\"", "", false},
		{"\"\x00\"", "", false},
		{`null`, "", false},
		{`1`, "", false},
		{`["a"]`, "", false},
		{`{"a":1}`, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.value, func(t *testing.T) {
			d := scan(t, `{"session_id":`+tt.value+`}`)
			got, ok := d.String(d.Field(FieldSessionID), limit)
			if got != tt.want || ok != tt.ok {
				t.Errorf("%q, %v, want %q, %v", got, ok, tt.want, tt.ok)
			}
			appended, ok := d.AppendString([]byte("dst:"), d.Field(FieldSessionID), limit)
			if string(appended) != "dst:"+tt.want || ok != tt.ok {
				t.Errorf("appended %q, %v", appended, ok)
			}
		})
	}
	if _, ok := new(Doc).String(Span{}, limit); ok {
		t.Error("an absent value is a string")
	}
}

func TestModel(t *testing.T) {
	tests := []struct {
		body, want string
		err        error
	}{
		{`{"model":"org/name:tag-q4"}`, "org/name:tag-q4", nil},
		{`{"model":"a\u002fb"}`, "a/b", nil},
		{`{"model":" a "}`, " a ", nil},
		{`{"model":"a","model":"b"}`, "b", nil},
		{`{"model":"a","model":1}`, "", ErrModelType},
		{`{"model":1,"model":"a"}`, "a", nil},
		{`{}`, "", ErrNoModel},
		{`{"MODEL":"a"}`, "", ErrNoModel},
		{`{"model":""}`, "", ErrNoModel},
		{`{"model":" \n\u00a0"}`, "", ErrNoModel},
		{`{"model":null}`, "", ErrModelType},
		{`{"model":true}`, "", ErrModelType},
		{`{"model":1}`, "", ErrModelType},
		{`{"model":[]}`, "", ErrModelType},
		{`{"model":{}}`, "", ErrModelType},
		{`{"model":foo}`, "", ErrModelType},
		{`{"model":"\x"}`, "", ErrModelType},
		{`{"model":"` + strings.Repeat("x", 1<<20) + `"}`, "", ErrModelTooLong},
		{`{"model":"` + strings.Repeat(`\u0078`, 1<<20) + `"}`, "", ErrModelTooLong},
	}
	for _, tt := range tests {
		t.Run(tt.body[:min(len(tt.body), 40)], func(t *testing.T) {
			got, err := scan(t, tt.body).Model(64)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%q, %v, want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestBoolAndKind(t *testing.T) {
	tests := []struct {
		value     string
		kind      Kind
		truth, ok bool
	}{
		{`true`, Bool, true, true},
		{`false`, Bool, false, true},
		{`truest`, Bool, false, false},
		{`null`, Null, false, false},
		{`1`, Number, false, false},
		{`"true"`, String, false, false},
		{`[true]`, Array, false, false},
		{`{}`, Object, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.value, func(t *testing.T) {
			d := scan(t, `{"stream":`+tt.value+`}`)
			s := d.Field(FieldStream)
			if d.Kind(s) != tt.kind {
				t.Errorf("kind %d, want %d", d.Kind(s), tt.kind)
			}
			if truth, ok := d.Bool(s); truth != tt.truth || ok != tt.ok {
				t.Errorf("bool %v, %v, want %v, %v", truth, ok, tt.truth, tt.ok)
			}
		})
	}
	var d Doc
	if d.Kind(Span{}) != Absent || d.Raw(Span{}) != nil {
		t.Error("an absent value is something")
	}
}

// FuzzString compares the decoder with encoding/json's.
func FuzzString(f *testing.F) {
	for _, s := range []string{``, `a`, `\u0041`, `\ud83d\ude00`, `\ud83d`, `\ud83d\ud83d\ude00`, "\xff\xc3", `\\\"`, `\/`, `\x`, `\u12`, "\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		quoted := append(append([]byte{'"'}, raw...), '"')
		if skipString(quoted, 1) != len(quoted) {
			return // it has a quote in it
		}
		var want string
		err := json.Unmarshal(quoted, &want)
		got, ok := appendUnquoted(nil, raw, len(want))
		if ok != (err == nil) || ok && string(got) != want {
			t.Fatalf("%q: %q, %v, want %q, %v", raw, got, ok, want, err)
		}
		if _, ok := appendUnquoted(nil, raw, len(want)-1); ok && want != "" {
			t.Fatalf("%q: the limit of %d does not hold", raw, len(want)-1)
		}
		var runes []rune
		for rest := raw; len(rest) > 0; {
			r, size := NextRune(rest)
			if size < 1 || size > len(rest) {
				t.Fatalf("%q: size %d of %q", raw, size, rest)
			}
			runes = append(runes, r)
			rest = rest[size:]
		}
		if err == nil && string(runes) != want {
			t.Fatalf("%q: runes %q, want %q", raw, string(runes), want)
		}
	})
}
