package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	for _, tc := range []struct {
		name, input             string
		passed, failed, skipped int
		broken                  bool
		shown, hidden           string
	}{
		{
			name: "passed",
			input: `{"Action":"output","Package":"p","Test":"TestA","Output":"    chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}`,
			passed: 2, shown: "ok  \tp", hidden: "chatter",
		},
		{
			name: "failed",
			input: `{"Action":"output","Package":"p","Test":"TestA","Output":"    why\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}`,
			failed: 1, skipped: 1, broken: true, shown: "    why",
		},
		{
			name: "does not build",
			input: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"x.go:1:1: no\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"fail","Package":"p"}`,
			broken: true, shown: "x.go:1:1: no",
		},
		{
			name: "panicked",
			input: `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: no\n"}
{"Action":"fail","Package":"p"}`,
			broken: true, shown: "panic: no",
		},
		{name: "not JSON", input: "go: cannot find module\n", shown: "go: cannot find module"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			y := &tally{output: make(map[string][]string), out: &out}
			if err := y.read(strings.NewReader(tc.input)); err != nil {
				t.Fatal(err)
			}
			if y.passed != tc.passed || y.failed != tc.failed || y.skipped != tc.skipped || y.broken != tc.broken {
				t.Errorf("%d passed, %d failed, %d skipped, broken: %t", y.passed, y.failed, y.skipped, y.broken)
			}
			if !strings.Contains(out.String(), tc.shown) || tc.hidden != "" && strings.Contains(out.String(), tc.hidden) {
				t.Errorf("shown:\n%s", out.String())
			}
		})
	}
}
