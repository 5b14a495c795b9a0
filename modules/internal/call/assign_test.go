package call

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
)

// Whatever the request asks for, and whether or not a handler before has found
// a model, the Service gets the request as it came.
func TestAssign(t *testing.T) {
	set, cat := fixture(t, 2)
	set.MapModel = true
	for _, tt := range []struct {
		name, body string
		resolve    bool
	}{
		{"another model", `{"model":"x","prompt":"a"}`, false},
		{"no model", `{"prompt":"a"}`, false},
		{"no JSON", `what?`, false},
		{"no body", ``, false},
		{"a model that is known", `{"model":"alias","prompt":"a"}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := post(tt.body)
			c := Begin(r, set)
			defer c.End()
			if tt.resolve {
				if err := c.Resolve(r, cat); err != nil {
					t.Fatal(err)
				}
			}
			c.Assign(r, cat, strings.Split(t.Name(), "/")[0])
			for range 2 { // as a proxy does that tries again
				c.Assign(r, cat, strings.Split(t.Name(), "/")[0])
				lease := c.Next(r.Context())
				if lease == nil {
					t.Fatal("no endpoint")
				}
				c.Rewind(r)
				if b, err := io.ReadAll(r.Body); err != nil || string(b) != tt.body {
					t.Errorf("the endpoint gets %q, %v", b, err)
				}
				if c.Renamed() != "" {
					t.Errorf("the answer would name the model %q", c.Renamed())
				}
				if !c.Failed(Unreached, "dial") {
					t.Error("not tried again")
				}
			}
		})
	}
}

func TestAssignStreamsALargeBody(t *testing.T) {
	set, cat := fixture(t, 2)
	set.MaxBody = 8
	r := post(strings.Repeat("x", 100))
	c := Begin(r, set)
	defer c.End()
	c.Assign(r, cat, t.Name())
	if c.Next(r.Context()) == nil {
		t.Fatal("no endpoint")
	}
	c.Rewind(r)
	if b, err := io.ReadAll(r.Body); err != nil || len(b) != 100 {
		t.Errorf("the endpoint gets %d bytes, %v", len(b), err)
	}
	if c.Failed(Unreached, "dial") {
		t.Error("a body that is gone would be sent again")
	}
}

// One that came compressed goes out as it came.
func TestAssignCompressed(t *testing.T) {
	set, cat := fixture(t, 0)
	set.AskUsage = true
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(`{"model":"x","stream":true}`)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	coded := b.String()
	r := post(coded)
	r.Header.Set("Content-Encoding", "gzip")
	c := Begin(r, set)
	defer c.End()
	c.Assign(r, cat, t.Name())
	c.Next(r.Context())
	c.Rewind(r)
	if b, _ := io.ReadAll(r.Body); string(b) != coded || r.Header.Get("Content-Encoding") != "gzip" || c.HidesUsage() {
		t.Errorf("the endpoint gets %d bytes of %d with %v", len(b), len(coded), r.Header)
	}
}
