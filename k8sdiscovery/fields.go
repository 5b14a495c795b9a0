package k8sdiscovery

import (
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// maxMessage is the longest message taken from a resource's status, in bytes.
const maxMessage = 512

// maxName is the longest name of a model, in bytes.
const maxName = 256

// Custom resources are read field by field: their schema is not ours, and a
// field of another type than it should have is as good as absent.

func fieldOf[T any](obj map[string]any, path ...string) (value T, ok bool) {
	v, found, err := unstructured.NestedFieldNoCopy(obj, path...)
	if !found || err != nil {
		return value, false
	}
	value, ok = v.(T)
	return value, ok
}

func stringOf(obj map[string]any, path ...string) string {
	s, _ := fieldOf[string](obj, path...)
	return s
}

// numberOf returns a whole number, 0 if there is none that is sane.
func numberOf(obj map[string]any, path ...string) (int, bool) {
	if n, ok := fieldOf[int64](obj, path...); ok {
		return int(n), n >= math.MinInt32 && n <= math.MaxInt32
	}
	f, ok := fieldOf[float64](obj, path...)
	if !ok || f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		return 0, false
	}
	return int(f), true
}

func stringsOf(obj map[string]any, path ...string) []string {
	list, _ := fieldOf[[]any](obj, path...)
	var found []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			found = append(found, s)
		}
	}
	return found
}

func timeOf(obj map[string]any, path ...string) time.Time {
	t, err := time.Parse(time.RFC3339, stringOf(obj, path...))
	if err != nil {
		return time.Time{}
	}
	return t
}

// oneLine returns s as one line of bounded length.
func oneLine(s string) string {
	if len(s) > 4*maxMessage { // no need to look at all of a long one
		s = s[:4*maxMessage]
	}
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, ""), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	return cut(s, maxMessage)
}

// cut returns the beginning of s, of at most so many bytes.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const more = "…"
	most -= len(more)
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + more
}

// isText reports whether s may be a name, as engines take it.
func isText(s string) bool {
	return s != "" && len(s) <= maxName && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) &&
		strings.TrimSpace(s) == s
}

// unknownModel stands for all unknown models in metrics.
const unknownModel = "_unknown"

// isName reports whether clients can ask for a model by that name.
func isName(s string) bool { return isText(s) && s != unknownModel }
