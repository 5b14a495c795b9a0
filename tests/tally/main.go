// Command tally reads what `go test -json` writes, shows what a person wants to
// see of it, and appends the numbers of passed, failed and skipped tests to a
// file. It exits with 1 if a test or a build failed, or if there was no test.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is a line of `go test -json`.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

type tally struct {
	passed, failed, skipped int
	broken                  bool // a package failed otherwise than by a test
	output                  map[string][]string
	out                     io.Writer
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ./... | tally <file>")
		os.Exit(2)
	}
	t := &tally{output: make(map[string][]string), out: os.Stdout}
	if err := t.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	}
	if err := t.save(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	}
	if t.failed > 0 || t.broken || t.passed == 0 {
		os.Exit(1)
	}
}

func (t *tally) read(r io.Reader) error {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				t.take(&e)
			} else {
				fmt.Fprint(t.out, line) // not from a test
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take counts tests and subtests alike. What a test wrote is shown if it
// failed.
func (t *tally) take(e *event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if e.Test != "" || !strings.HasPrefix(e.Output, "ok ") && !strings.HasPrefix(e.Output, "FAIL") {
			t.output[key] = append(t.output[key], e.Output)
			return
		}
		fmt.Fprint(t.out, e.Output)
	case "build-output":
		fmt.Fprint(t.out, e.Output)
	case "build-fail":
		t.broken = true
	case "pass":
		if e.Test != "" {
			t.passed++
		}
		delete(t.output, key)
	case "skip":
		if e.Test != "" {
			t.skipped++
			t.show(key)
		}
		delete(t.output, key)
	case "fail":
		if e.Test != "" {
			t.failed++
		} else {
			t.broken = true
			// A process that ended in the middle leaves tests without a result.
			for k := range t.output {
				if strings.HasPrefix(k, e.Package+" ") && k != key {
					t.show(k)
				}
			}
		}
		t.show(key)
		delete(t.output, key)
	}
}

func (t *tally) show(key string) {
	fmt.Fprint(t.out, strings.Join(t.output[key], ""))
	delete(t.output, key)
}

func (t *tally) save(path string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, t.passed, t.failed, t.skipped); err != nil {
		return err
	}
	return f.Close()
}
