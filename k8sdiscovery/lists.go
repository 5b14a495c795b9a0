package k8sdiscovery

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Bounds of what is taken from the lists that objects of the cluster hold. They
// may be as long as an object may be, which is more than a megabyte.
const (
	maxAliases    = 64
	maxAdapters   = 64 // of one model
	maxGroups     = 64
	maxServePaths = 64
	maxServePath  = 256 // bytes
)

// A choice is what is taken of a list.
type choice struct {
	kept []string
	odd  string // the first that cannot be
	odds int    // how many cannot be
	over int    // how many are beyond the bound
}

// choose takes the first items of a list, so many at most, trimmed and without
// the empty ones, doubles and those that cannot be.
func choose(items iter.Seq[string], most int, ok func(string) bool) (c choice) {
	var seen map[string]struct{}
	for item := range items {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if _, double := seen[item]; double {
			continue
		}
		switch {
		case !ok(item):
			if c.odds++; c.odds == 1 {
				c.odd = item
			}
			continue
		case len(c.kept) == most:
			c.over++ // doubles of one that is left out count again
			continue
		}
		if seen == nil {
			seen = make(map[string]struct{})
		}
		seen[item] = struct{}{}
		c.kept = append(c.kept, item)
	}
	return c
}

// problems says what is left out of a list, and what to write instead.
func (c choice) problems(what, plural, instead string, most int) (problems []string) {
	if c.odds > 0 {
		others := ""
		if c.odds > 1 {
			others = fmt.Sprintf(", like %d more,", c.odds-1)
		}
		problems = append(problems, fmt.Sprintf("%s %.32q%s is left out; %s", what, c.odd, others, instead))
	}
	if c.over > 0 {
		problems = append(problems, fmt.Sprintf("the first %d of %d are taken as its %s, the others are left out", most, most+c.over, plural))
	}
	return problems
}

// commas returns the items of a comma-separated list.
func commas(list string) iter.Seq[string] { return strings.SplitSeq(list, ",") }

// namesOf returns the names in a list, for people to read.
func namesOf(list []string, most int) []string {
	return choose(slices.Values(list), most, isName).kept
}

func isServePath(s string) bool { return len(s) <= maxServePath && isText(s) }
