package openai

import (
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
	"testing"
)

func TestDecimal(t *testing.T) {
	tests := []struct {
		raw     string
		with    int
		compare int
		whole   bool
	}{
		{"0", 0, 0, true},
		{"-0", 0, 0, true},
		{"0.000e9", 0, 0, true},
		{"0", 1, -1, true},
		{"0", -1, 1, true},
		{"-1", 0, -1, true},
		{"-1", -1, 0, true},
		{"-2", -1, -1, true},
		{"-0.5", -1, 1, false},
		{"100", 100, 0, true},
		{"100.0", 100, 0, true},
		{"100.00000000000000000000000000001", 100, 1, false},
		{"99.9999999999999999999999999999", 100, -1, false},
		{"101", 100, 1, true},
		{"1e2", 100, 0, true},
		{"1E+2", 100, 0, true},
		{"0.001e5", 100, 0, true},
		{"1000e-1", 100, 0, true},
		{"1001e-1", 100, 1, false},
		{"1e400", 1 << 62, 1, true},
		{"1e-400", 1, -1, false},
		{"1e99999999999999999999999", 100, 1, true},
		{"1e-99999999999999999999999", 0, 1, false},
		{"0e99999999999999999999999", 0, 0, true},
		{"9223372036854775807", 1<<63 - 1, 0, true},
		{"9223372036854775808", 1<<63 - 1, 1, true},
		{"-9223372036854775808", -1 << 63, 0, true},
		{"99999999999999999999", 100, 1, true},
		{"0." + strings.Repeat("0", 1000) + "1e1001", 1, 0, true},
		{"1" + strings.Repeat("0", 1000) + "e-1000", 1, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.raw, func(t *testing.T) {
			d := scan(t, `{"max_tokens":`+tt.raw+`}`)
			n, ok := d.Decimal(d.Field(FieldMaxTokens))
			if !ok {
				t.Fatal("no number")
			}
			if got := n.Compare(tt.with); got != tt.compare {
				t.Errorf("compares as %d with %d, want %d", got, tt.with, tt.compare)
			}
			if n.Whole() != tt.whole {
				t.Errorf("whole: %v", n.Whole())
			}
		})
	}
	for _, raw := range []string{`"5"`, `null`, `true`, `[5]`, `{}`, `+5`, `05`, `5.`, `.5`, `1e`, `1e+`, `1.e2`, `0x10`, `NaN`, `Infinity`, `-`, `--1`, `1_000`, `1e5.0`, `5-`} {
		d := scan(t, `{"max_tokens":`+raw+`}`)
		if _, ok := d.Decimal(d.Field(FieldMaxTokens)); ok {
			t.Errorf("%s is taken for a number", raw)
		}
	}
}

// FuzzDecimal compares with math/big.
func FuzzDecimal(f *testing.F) {
	for _, raw := range []string{"0", "-1.5e3", "100.5", "1E+3", "0.001e5", "10e-1", "007", "1e5000"} {
		f.Add(raw, 100)
	}
	f.Fuzz(func(t *testing.T, raw string, with int) {
		var d Doc
		if err := d.Scan([]byte(`{"max_tokens":` + raw + `}`)); err != nil || d.Field(FieldMaxTokens).Len() != len(raw) {
			return
		}
		n, ok := d.Decimal(d.Field(FieldMaxTokens))
		var number json.Number
		valid := d.Kind(d.Field(FieldMaxTokens)) == Number && json.Unmarshal([]byte(raw), &number) == nil
		if ok != valid {
			t.Fatalf("%q: a number: %v", raw, ok)
		}
		if i := strings.IndexAny(raw, "eE"); !ok || i >= 0 {
			if e, err := strconv.Atoi(raw[i+1:]); !ok || err != nil || e > 5000 || e < -5000 {
				return
			}
		}
		want, ok := new(big.Rat).SetString(raw)
		if !ok {
			t.Fatalf("%q is none to math/big", raw)
		}
		if got := n.Compare(with); got != want.Cmp(new(big.Rat).SetInt64(int64(with))) {
			t.Fatalf("%q compares as %d with %d", raw, got, with)
		}
		if n.Whole() != want.IsInt() {
			t.Fatalf("%q whole: %v", raw, n.Whole())
		}
	})
}
