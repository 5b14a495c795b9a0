package activators

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEachLine(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for text, want := range map[string][]string{
		"":                            nil,
		"a\n\n  \nb\r\nc":             {"a", "b", "c"},
		"10%\r50%\r100%\nloaded\n":    {"100%", "loaded"},
		"\xff\n":                      {"\uFFFD"},
		long + "\n":                   {long + "…"}, // its end is not known in time
		long + long + long + "y\nz\n": {long + "…", "z"},
		long[1:] + "\nz":              {long[1:], "z"},
		strings.Repeat("\n", 1000):    nil,
		long + "\n" + long + "\nlast": {long + "…", long + "…", "last"},
	} {
		var got []string
		eachLine(strings.NewReader(text), func(line string) { got = append(got, line) })
		if !slices.Equal(got, want) {
			t.Errorf("%.20q…: %.40q, want %.40q", text, got, want)
		}
	}
}

func TestTail(t *testing.T) {
	var tail tail
	if got := tail.String(); got != "" {
		t.Errorf("got %q", got)
	}
	for _, line := range []string{"a", "b", "c", strings.Repeat("d", 10*maxMessage)} {
		tail.add(line)
	}
	if got, want := tail.String(), "b / c / "+strings.Repeat("d", maxMessage); got != want {
		t.Errorf("got %q", got)
	}
}

func TestBounded(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                               "plain",
		"a\nb\x00\tc":                         "a b  c",
		strings.Repeat("x", maxMessage):       strings.Repeat("x", maxMessage),
		strings.Repeat("x", maxMessage+1):     strings.Repeat("x", maxMessage-3) + "…",
		"x" + strings.Repeat("é", maxMessage): "x" + strings.Repeat("é", (maxMessage-4)/2) + "…",
	} {
		if got := bounded(text); got != want || !utf8.ValidString(got) || len(got) > maxMessage {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
