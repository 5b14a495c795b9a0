package readme

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

const readme = "../../README.md"

// A block is a fenced block of the README. Above its fence may stand what the
// test is to do with it: <!-- test: word, reason -->.
type block struct {
	line     int
	language string
	test     string // the word
	reason   string
	text     string
}

var directive = regexp.MustCompile(`^<!-- test: (\w+)(?:, (.+))? -->$`)

// blocks returns the fenced blocks of the README.
func blocks(t *testing.T) []block {
	t.Helper()
	b, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	var found []block
	var current *block
	var next block
	for i, line := range strings.Split(string(b), "\n") {
		switch {
		case current == nil && strings.HasPrefix(line, "```"):
			next.line, next.language = i+1, strings.TrimPrefix(line, "```")
			current = new(next)
			next = block{}
		case current != nil && line == "```":
			found = append(found, *current)
			current = nil
		case current != nil:
			current.text += line + "\n"
		default:
			if m := directive.FindStringSubmatch(line); m != nil {
				next.test, next.reason = m[1], m[2]
			} else if line != "" {
				next = block{}
			}
		}
	}
	if current != nil {
		t.Fatalf("the block of line %d does not end", current.line)
	}
	if len(found) == 0 {
		t.Fatal("the README has no blocks")
	}
	return found
}

func (b *block) String() string { return fmt.Sprintf("README.md:%d", b.line) }

// A command of a console block, and the lines that it prints.
type command struct {
	text string
	want []string
}

// commands returns the commands of a console block, whose lines begin with a
// dollar sign; further lines of a command with a greater-than sign.
func (b *block) commands(t *testing.T) []command {
	t.Helper()
	var found []command
	for line := range strings.SplitSeq(strings.TrimSuffix(b.text, "\n"), "\n") {
		last := len(found) - 1
		switch {
		case strings.HasPrefix(line, "$ "):
			found = append(found, command{text: line[2:]})
		case last < 0:
			t.Fatalf("%s: a console block begins with a command: $ …", b)
		case strings.HasPrefix(line, "> ") && len(found[last].want) == 0:
			found[last].text += "\n" + line[2:]
		default:
			found[last].want = append(found[last].want, line)
		}
	}
	return found
}

// alike reports whether a line that was printed is the line shown, where …
// stands for anything.
func alike(shown, printed string) bool {
	parts := strings.Split(strings.TrimRight(shown, " \r"), "…")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(strings.TrimRight(printed, " \r"))
}

func TestAlike(t *testing.T) {
	for _, tc := range []struct {
		shown, printed string
		want           bool
	}{
		{"a b", "a b\r", true},
		{"a b", "a c", false},
		{"a …", "a b c", true},
		{`"key":"…","target":1`, `"key":"ab","target":1`, true},
		{`"key":"…","target":1`, `"key":"ab","target":2`, false},
		{"a", "ab", false},
	} {
		if got := alike(tc.shown, tc.printed); got != tc.want {
			t.Errorf("alike(%q, %q) is %t", tc.shown, tc.printed, got)
		}
	}
}
