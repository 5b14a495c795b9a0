package call

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

func TestStripPath(t *testing.T) {
	tests := []struct{ target, prefix, path, raw string }{
		{"/model/a/v1/x", "/model/a", "/v1/x", ""},
		{"/model/org%2Fname:tag/v1/x", "/model/org/name:tag", "/v1/x", ""},
		{"/model/org/name%3Atag/v1/x?q=1%2F2", "/model/org/name:tag", "/v1/x", ""},
		{"/model/a/v1/x%2Fy", "/model/a", "/v1/x/y", "/v1/x%2Fy"},
		{"/model/a", "/model/a", "/", ""},
		{"/model/a/", "/model/a", "/", ""},
		{"/%6Dodel/a/v1", "/model/a", "/v1", ""},
	}
	for _, tt := range tests {
		t.Run(tt.target, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, tt.target, nil)
			query := r.URL.RawQuery
			stripPath(r, len(tt.prefix))
			if r.URL.Path != tt.path || r.URL.RawPath != tt.raw || r.URL.RawQuery != query {
				t.Errorf("got path %q, raw %q, query %q", r.URL.Path, r.URL.RawPath, r.URL.RawQuery)
			}
		})
	}
}

// Z2: a path that means another one to whoever cleans it is refused.
func TestZ2CheckPath(t *testing.T) {
	for target, ok := range map[string]bool{
		"/v1/chat/completions":     true,
		"//v1/chat/completions":    true,
		"/v1/a..b/.c/d.":           true,
		"/v1/.well-known":          true,
		"/model/a/..%2fb/v1/x":     false,
		"/model/..%2f..%2fmetrics": false,
		"/model/a/v1/../../admin":  false,
		"/v1/%2e%2e/admin":         false,
		"/v1/./x":                  false,
		"/v1/..":                   false,
		"/v1/x%00":                 false,
		`/v1/..\admin`:             false,
		"/v1/x%5c..%5cadmin":       false,
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if ref := checkPath(u.Path); (ref == nil) != ok {
			t.Errorf("%s: refused %v", target, ref)
		}
	}
}

func FuzzStripPath(f *testing.F) {
	f.Add("/model/org%2Fname/v1/%2F%zz")
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || len(u.Path) == 0 || u.Path[0] != '/' {
			return
		}
		for n := range len(u.Path) {
			if u.Path[n] != '/' {
				continue
			}
			v := *u
			r := &http.Request{URL: &v}
			stripPath(r, n)
			if r.URL.Path != u.Path[n:] {
				t.Fatalf("path %q, want %q", r.URL.Path, u.Path[n:])
			}
			if p, err := url.PathUnescape(r.URL.EscapedPath()); err != nil || p != r.URL.Path {
				t.Fatalf("escaped path %q means %q, %v; want %q", r.URL.EscapedPath(), p, err, r.URL.Path)
			}
		}
	})
}
