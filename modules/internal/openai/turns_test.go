package openai

import (
	"fmt"
	"strings"
	"testing"
)

// describe lists the turns of d: their roles, their contents, and a * for
// those of the opening.
func describe(d *Doc, turns Turns) string {
	var s []string
	for turns.Next() {
		opening := ""
		if turns.Opening {
			opening = "*"
		}
		s = append(s, fmt.Sprintf("%d%s%s", turns.Role, opening, d.Raw(turns.Content)))
	}
	return strings.Join(s, " ")
}

func TestTurns(t *testing.T) {
	long := `{"messages":[`
	want := ""
	for i := range 3 * maxTurns {
		long += fmt.Sprintf(`{"role":"system","content":%d},`, i)
		want += fmt.Sprintf("%d*%d ", RoleSystem, i)
	}
	long += `{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"system","content":"s"}]}`
	want += fmt.Sprintf(`%d*"u" %d"s"`, RoleUser, RoleSystem)

	tests := []struct {
		name, body, want string
		continues        bool
	}{
		{"none", `{}`, ``, false},
		{"empty", `{"messages":[]}`, ``, false},
		{"one", `{"messages":[{"role":"user","content":"u"}]}`, `1*"u"`, false},
		{"system", `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"user","content":"v"}]}`, `3*"s" 1*"u"`, false},
		{"answered", `{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"user","content":"v"}]}`, `1*"u"`, true},
		{"late system", `{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":null},{"role":"Developer","content":"d"}]}`, `1*"u" 4"d"`, true},
		{"case and escapes", `{"messages":[{"content":"s","\u0072ole":"SYST\u0045M"},{"role":"uSer","content":"u"}]}`, `3*"s" 1*"u"`, false},
		{"last key wins", `{"messages":[{"role":"system","content":"s","role":"user","content":"u"}]}`, `1*"u"`, false},
		{"last messages win", `{"messages":[{"role":"assistant"}],"messages":[{"role":"user","content":"u"}]}`, `1*"u"`, false},
		{"no user", `{"messages":[{"role":"system","content":"s"},{"role":"tool","content":"t"}]}`, `3*"s" 5*"t"`, false},
		{"no content", `{"messages":[{"role":"user"}]}`, `1*`, false},
		{"no role", `{"messages":[{"text":"x"}]}`, `0*{"text":"x"}`, false},
		{"white space", "{\"messages\" : [ { \"role\" : \"user\" , \"content\" : \"u\" } , { } ] }", `1*"u"`, false},
		{"parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"role"}]}]}`, `1*[{"type":"text","text":"role"}]`, false},
		{"many", long, want, true},
		{"input", `{"input":[{"role":"user","content":"u"},{"type":"function_call","name":"f"}]}`, `1*"u"`, true},
		{"input with a message that begins", `{"input":[{"type":"message","role":"developer","content":"d"},{"role":"user","content":"u"}]}`, `4*"d" 1*"u"`, false},
		{"input after reasoning", `{"input":[{"type":"reasoning","summary":[]},{"role":"user","content":"u"}]}`, `0*{"type":"reasoning","summary":[]} 1*"u"`, true},
		{"input of text", `{"input":"u"}`, ``, false},
		{"input of strings", `{"input":["a","b"]}`, ``, false},
		{"input of numbers", `{"input":[1,2,[3]]}`, ``, false},
		{"messages beat input", `{"input":[{"role":"assistant","content":"i"}],"messages":[{"role":"user","content":"u"}]}`, `1*"u"`, false},
		{"messages beat input in any order", `{"messages":[{"role":"user","content":"u"}],"input":[{"role":"assistant","content":"i"}]}`, `1*"u"`, false},
		{"null messages leave input", `{"messages":[{"role":"user","content":"u"}],"input":[{"role":"assistant","content":"i"}],"messages":null}`, `2*"i"`, true},
		{"messages no array", `{"messages":{"role":"user"}}`, ``, false},
		{"null after messages", `{"messages":[{"role":"assistant"}],"messages":null}`, ``, false},
		{"earlier response", `{"input":"u","previous_response_id":"resp_1"}`, ``, true},
		{"no earlier response", `{"input":"u","previous_response_id":null}`, ``, false},
		{"malformed turn", `{"messages":[{"role":"user","content":"u"},{"role" "x"},{"role":"system","content":"s"}],"a":1}`, `1*"u"`, false},
		{"stray elements", `{"messages":[{"role":"user","content":"u"},1,{"role":"system","content":"s"}]}`, `1*"u"`, false},
		{"byte order mark", "\xef\xbb\xbf{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}],\"messages\":0}", ``, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := scan(t, tt.body)
			if got := describe(d, d.Turns()); got != tt.want {
				t.Errorf("turns %s\nwant  %s", got, tt.want)
			}
			if got := d.Continues(); got != tt.continues {
				t.Errorf("continues %v, want %v", got, tt.continues)
			}
			// The second scan finds the same.
			d.turns.reset(-1)
			if got := describe(d, d.Turns()); got != tt.want {
				t.Errorf("turns of the second scan %s\nwant  %s", got, tt.want)
			}
			if got := d.Continues(); got != tt.continues {
				t.Errorf("continues %v in the second scan, want %v", got, tt.continues)
			}
		})
	}
}
