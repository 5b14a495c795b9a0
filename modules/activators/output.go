package activators

import (
	"bufio"
	"io"
	"strings"
	"sync"
	"unicode"
)

const (
	maxLine    = 4 << 10 // bytes of a line of output that are logged
	tailLines  = 3       // lines that an error quotes
	maxMessage = 512     // bytes of an error that people see
)

// eachLine calls do for each line of r that is not blank. Of a long one it
// gets the beginning; of one that overwrote itself, as a progress bar does, the
// end.
func eachLine(r io.Reader, do func(string)) {
	lines := bufio.NewReaderSize(r, maxLine)
	for rest := false; ; {
		b, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		line := string(b)
		if i := strings.LastIndexByte(line, '\r'); i >= 0 {
			line = line[i+1:]
		}
		if more {
			line += "…"
		}
		if !rest && strings.TrimSpace(line) != "" {
			do(strings.ToValidUTF8(line, "\uFFFD"))
		}
		rest = more
	}
}

// A tail keeps the last lines of what a process wrote.
type tail struct {
	mu    sync.Mutex
	lines []string
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == tailLines {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, line[:min(len(line), maxMessage)])
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, " / ")
}

// bounded makes text one line of at most 512 bytes.
func bounded(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxMessage {
		const ellipsis = "…"
		text = strings.ToValidUTF8(text[:maxMessage-len(ellipsis)], "") + ellipsis
	}
	return text
}
