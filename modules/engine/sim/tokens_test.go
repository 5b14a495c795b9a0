package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// ends returns where each token of b ends.
func ends(b []byte) (all []int) {
	for i := 0; i < len(b); {
		i = nextToken(b, i)
		all = append(all, i)
	}
	return all
}

func TestNextToken(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"Hello worldly", "Hello| world|ly"},
		{"Hi, there.", "Hi|,| there|."},
		{"a  b", "a| | b"},
		{"if x {\n\t\treturn\n\t}", "if| x| |{|\n\t\t|retur|n|\n\t|}"},
		{`{"a":1}`, `{"|a|":|1|}`},
		{"=====", "===|=="},
		{"end  ", "end|  "},
		{"\xffuhi\xffe", "\xffu|hi|\xffe"},
		{"\xfe12345678x", "\xfe12345678|x"},
		{"\xff", "\xff"},
		{"\xfe12", "\xfe12"},
	} {
		var got []string
		at := 0
		for _, end := range ends([]byte(tt.text)) {
			got = append(got, tt.text[at:end])
			at = end
		}
		if s := strings.Join(got, "|"); s != tt.want {
			t.Errorf("%q: got %q, want %q", tt.text, s, tt.want)
		}
	}
}

// What follows a text changes none of its tokens but the last: without that no
// prefix could be found in a cache.
func FuzzTokensAreStable(f *testing.F) {
	f.Add([]byte("hello world  "), []byte(" and more"))
	f.Add([]byte("\xffu a\xff"), []byte("e\xfe1"))
	f.Fuzz(func(t *testing.T, text, more []byte) {
		before := ends(text)
		after := ends(append(bytes.Clone(text), more...))
		stable := before[:max(0, len(before)-1)]
		if len(after) < len(stable) || !slices.Equal(stable, after[:len(stable)]) {
			t.Fatalf("%q: %v became %v with %q", text, before, after, more)
		}
	})
}

func TestTokensAreAboutFourBytes(t *testing.T) {
	prose := `The gateway reads an OpenAI-style request, finds the model it asks for and the key that says which cache
it would hit, picks the replica that will answer soonest, and streams the answer back. It runs on bare metal from a
configuration file, and in a cluster from the resources it finds there.`
	if size := float64(len(prose)) / float64(len(ends([]byte(prose)))); size < 3.3 || size > 4.7 {
		t.Errorf("a token is %.2f bytes of prose", size)
	}
}

// The tokens of an answer are the same tokens when they come back in the next
// prompt.
func TestAnswerIsTokensOfItsOwn(t *testing.T) {
	e := newTestEngine(t, unlimited())
	for i := range 200 {
		for _, text := range []string{"\xffuhi\xffe\xffa", "once upon a ti", "ends in a space ", "ends. \n", "x\n\n", "\xfe\x00\x00\x00\x00\x00\x00\xff\x01"} {
			s := e.newSequence(e.models["sim"], []byte(fmt.Sprint(i, text)), "", 40)
			prompt := s.tokens
			if err := e.run(t.Context(), s, func(string) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if s.tokens != prompt+40 {
				t.Fatalf("after %q, 40 words are %d tokens: %q", text, s.tokens-prompt, s.text)
			}
			if again := len(ends(s.text)); again != s.tokens {
				t.Fatalf("%d tokens became %d: %q", s.tokens, again, s.text)
			}
		}
	}
}

// A text has the same blocks whether it comes whole or in pieces, and different
// ones from where it differs on.
func TestChain(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := []byte(strings.Repeat(" some words, and more of them.", 50))
	whole := chain{blockSize: 8, text: text}
	whole.grow()

	pieces := chain{blockSize: 8}
	for word := range bytes.SplitSeq(text[1:], []byte(" ")) {
		pieces.text = append(append(pieces.text, ' '), word...)
		pieces.grow()
	}
	if !slices.Equal(whole.blocks, pieces.blocks) || whole.tokens != pieces.tokens {
		t.Error("the blocks depend on how the text came")
	}
	if len(whole.blocks) != whole.tokens/8 {
		t.Errorf("%d tokens have %d full blocks", whole.tokens, len(whole.blocks))
	}

	for range 50 {
		at := r.IntN(len(text))
		changed := bytes.Clone(text)
		changed[at] = 'Z'
		other := chain{blockSize: 8, text: changed}
		other.grow()
		same := 0
		for same < min(len(whole.blocks), len(other.blocks)) && whole.blocks[same] == other.blocks[same] {
			same++
		}
		for i := same; i < min(len(whole.blocks), len(other.blocks)); i++ {
			if whole.blocks[i] == other.blocks[i] {
				t.Fatalf("blocks are equal again at %d after a change in %d", i, same)
			}
		}
		if tokens := len(ends(text[:at])); same < (tokens-2)/8 {
			t.Fatalf("a change at token %d changed block %d", tokens, same)
		}
	}
}
