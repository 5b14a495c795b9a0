package openai

import "strings"

// MediaType returns the media type that a Content-Type, given with all of its
// values, says, in lower case and without parameters; "" if it says none. Only
// the first value counts. A type that is in lower case allocates nothing.
func MediaType(values []string) string {
	if len(values) == 0 {
		return ""
	}
	switch values[0] {
	case "application/json", "text/event-stream": // nearly always
		return values[0]
	}
	t, _, _ := strings.Cut(values[0], ";")
	return strings.ToLower(strings.TrimSpace(t))
}
