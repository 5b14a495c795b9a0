package transport

import (
	"strings"
	"testing"
)

// Comments are no first byte, however they are cut.
func TestSpeaks(t *testing.T) {
	for _, tt := range []struct {
		silent string // nothing but comments and blank lines
		speaks string // the next byte
	}{
		{"", "d"},
		{"", " "},
		{"\n\r\n", "d"},
		{":\n", "e"},
		{": ping\n\n", "d"},
		{": ping\r\n\r\n", "d"},
		{": ping\r\r:x\r", "d"},
		{":\n:\n:: x\n\n", "i"},
		{": data: {}\n", "d"},
		{"\r\r\r:x\n", "\x00"},
	} {
		body := func() *watchedBody { return &watchedBody{events: true} }
		b := body()
		if b.speaks([]byte(tt.silent)) {
			t.Errorf("%q speaks", tt.silent)
		}
		if !b.speaks([]byte(tt.speaks)) {
			t.Errorf("%q then %q does not speak", tt.silent, tt.speaks)
		}
		if !body().speaks([]byte(tt.silent + tt.speaks + "\n\n: ping\n\n")) {
			t.Errorf("%q does not speak", tt.silent+tt.speaks)
		}
		b = body()
		for i := range len(tt.silent) {
			if b.speaks([]byte{tt.silent[i]}) {
				t.Errorf("byte %d of %q speaks", i, tt.silent)
			}
			two := body()
			if two.speaks([]byte(tt.silent[:i])) || two.speaks(nil) || two.speaks([]byte(tt.silent[i:])) || !two.speaks([]byte(tt.speaks)) {
				t.Errorf("%q cut at %d, then %q", tt.silent, i, tt.speaks)
			}
		}
		if !b.speaks([]byte(tt.speaks)) {
			t.Errorf("%q in single bytes, then %q does not speak", tt.silent, tt.speaks)
		}
	}
	for _, p := range []string{"\n", ": ping\n", "{"} {
		if b := (&watchedBody{}); !b.speaks([]byte(p)) {
			t.Errorf("%q of what is no stream of events does not speak", p)
		}
	}
	long := &watchedBody{events: true}
	if long.speaks([]byte(":" + strings.Repeat(" :x", 10_000))) {
		t.Error("a long comment speaks")
	}
}
