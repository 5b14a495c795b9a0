package key

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// normalForm is what hasher.text hashes: a plain way to say it.
func normalForm(s string, limit int) string {
	s = strings.ToLower(strings.Join(strings.Fields(s), " "))
	end := 0
	for i, r := range s {
		n := utf8.RuneLen(r)
		if i+n > limit {
			break
		}
		if r != ' ' { // a space comes with what is behind it
			end = i + n
		}
	}
	return s[:end]
}

func checkText(t *testing.T, raw []byte, limit int) {
	t.Helper()
	var s string
	if json.Unmarshal([]byte(`"`+string(raw)+`"`), &s) != nil {
		return
	}
	h := newHasher(domainPrefix)
	h.normalise(limit)
	h.text(raw)
	want := newHasher(domainPrefix)
	want.string(normalForm(s, limit))
	if h.length != want.length || h.sum() != want.sum() {
		t.Errorf("%q, at most %d bytes: %d are added, want %q", raw, limit, h.length, normalForm(s, limit))
	}
}

func TestText(t *testing.T) {
	for _, raw := range []string{
		``, ` `, `a`, ` a `, `A  B`, `The Quick Brown Fox Jumps`, `the quick  brown   fox`, `  eight by eight `,
		`\tTabs\t\tand\n\nlines and more lines`, `ÄÖÜ and Σ`, `\u00c4\u00a0\u2003x`, "\xff\xfe invalid", `a\"b\\c`,
		`[@Z` + "`" + `{az~]`, `1234567 1234567 1234567 `, `12345678 12345678 `, "İstanbul",
	} {
		for limit := range 40 {
			checkText(t, []byte(raw), limit)
		}
		long := strings.Repeat(raw, 40)
		checkText(t, []byte(long), 512)
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte(`The quick  Brown \n fox é`), 10)
	f.Fuzz(func(t *testing.T, raw []byte, limit int) {
		checkText(t, raw, max(0, limit%600))
	})
}

func TestLower(t *testing.T) {
	for r := range rune(unicode.MaxRune + 1) {
		want := unicode.ToLower(r)
		if unicode.IsSpace(r) {
			want = isSpace
		}
		if got := lower(r); got != want {
			t.Fatalf("%U: %U, want %U", r, got, want)
		}
	}
}
