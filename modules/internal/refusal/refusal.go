// Package refusal writes the gateway's own error answers in the shape that
// the caller's API uses.
package refusal

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Refusal is an answer that the gateway gives instead of an engine.
type Refusal struct {
	// Status is the HTTP status.
	Status int

	// Type, Code and Param are OpenAI's; Param may be empty.
	Type, Code, Param string

	// Message is for the person who reads it. It holds nothing unbounded.
	Message string

	// RetryAfter, if positive, is sent in seconds, rounded up.
	RetryAfter time.Duration

	// Header holds what else the answer says. It may be nil.
	Header http.Header

	// Unresolved reports that the request asks for no model that is known.
	Unresolved bool
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

// The refusals of a gateway that has not found an endpoint yet.

// NoModel refuses a request that names no model.
func NoModel() *Refusal {
	return &Refusal{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "missing_required_field",
		Message:    "no model named: send it in the body's \"model\", in the header X-Model-ID or in the path /model/<name>/",
		Unresolved: true,
	}
}

// UnknownModel refuses a request for a model that is not served here.
func UnknownModel(name string) *Refusal {
	return &Refusal{
		Status: http.StatusNotFound, Type: "not_found_error", Code: "model_not_found", Param: "model",
		Message: "the model " + Quote(name) + " does not exist", Unresolved: true,
	}
}

// UnknownResponse refuses a request for an answer that no endpoint is known to
// hold.
func UnknownResponse() *Refusal {
	return &Refusal{
		Status: http.StatusNotFound, Type: "not_found_error", Code: "response_not_found",
		Message: "no engine here is known to hold this response; one is known for an hour, and only to the gateway that it came through",
	}
}

// Starting refuses a request for a model that is not known yet.
func Starting(name string) *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Type: "service_unavailable_error", Code: "service_unavailable",
		Message:    "the gateway is starting and does not know the model " + Quote(name) + " yet",
		RetryAfter: 2 * time.Second, Unresolved: true,
	}
}

// NotServed refuses a request for a path that the model does not serve.
func NotServed(name, path string) *Refusal {
	return &Refusal{
		Status: http.StatusNotFound, Type: "not_found_error", Code: "model_not_found", Param: "model",
		Message: "the model " + Quote(name) + " does not serve " + Quote(path),
	}
}

// NotReady refuses a request for a model that does not serve now.
func NotReady(name, why string) *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Type: "service_unavailable_error", Code: "service_unavailable",
		Message:    "the model " + Quote(name) + " is not ready: " + why,
		RetryAfter: 10 * time.Second,
	}
}

// NotActivated refuses a request for a model that could not be woken.
func NotActivated(name, why string, retry time.Duration) *Refusal {
	message := "the model " + Quote(name) + " could not be started"
	if why != "" {
		message += ": " + why
	}
	return &Refusal{
		Status: http.StatusServiceUnavailable, Type: "service_unavailable_error", Code: "activation_failed",
		Message: message, RetryAfter: retry,
	}
}

// QueueFull refuses a request that cannot even wait.
func QueueFull(name string, retry time.Duration) *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Type: "service_unavailable_error", Code: "queue_full",
		Message: "as many requests wait for the model " + Quote(name) + " as may", RetryAfter: retry,
	}
}

// QueueTimeout refuses a request that has waited for long enough.
func QueueTimeout(name string) *Refusal {
	return &Refusal{
		Status: http.StatusGatewayTimeout, Type: "timeout_error", Code: "timeout",
		Message: "the model " + Quote(name) + " did not become available in time",
	}
}

// Gone refuses a request whose model has left while it waited, or which the
// gateway cannot let wait since it stops.
func Gone(name string) *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Type: "service_unavailable_error", Code: "service_unavailable",
		Message:    "requests for the model " + Quote(name) + " cannot wait here any longer",
		RetryAfter: 2 * time.Second,
	}
}

// BadRequest refuses a request that cannot be understood.
func BadRequest(code, message string) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: code, Message: message}
}

// TooLarge refuses a body of more than limit bytes. A limit of 0 is unknown.
func TooLarge(limit int64) *Refusal {
	message := "the request's body is too large"
	if limit > 0 {
		message = "the request's body is larger than " + strconv.FormatInt(limit, 10) + " bytes"
	}
	return &Refusal{
		Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "request_too_large",
		Message: message,
	}
}

// UnsupportedCoding refuses a body that is encoded in a way other than those
// in accepted, a list as Accept-Encoding has it.
func UnsupportedCoding(message, accepted string) *Refusal {
	return &Refusal{
		Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: "unsupported_content_encoding",
		Message: message, Header: http.Header{"Accept-Encoding": {accepted}},
	}
}

// BadCoding refuses a body that is not what its Content-Encoding says.
func BadCoding(message string) *Refusal { return BadRequest("invalid_content_encoding", message) }

// Timeout refuses a request whose body does not come.
func Timeout() *Refusal {
	return &Refusal{
		Status: http.StatusRequestTimeout, Type: "timeout_error", Code: "timeout",
		Message: "the request's body did not arrive in time",
	}
}

// MethodNotAllowed refuses a method other than GET on the gateway's own pages.
func MethodNotAllowed() *Refusal {
	return &Refusal{
		Status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Code: "method_not_allowed",
		Message: "only GET is allowed here",
	}
}

// Upstream stands for an answer that no upstream gave.
func Upstream(status int) *Refusal {
	switch status {
	case http.StatusServiceUnavailable:
		return &Refusal{
			Status: status, Type: "service_unavailable_error", Code: "service_unavailable",
			Message: "no upstream is available for this model", RetryAfter: time.Second,
		}
	case http.StatusGatewayTimeout:
		return &Refusal{Status: status, Type: "timeout_error", Code: "timeout", Message: "the upstream did not answer in time"}
	case http.StatusInternalServerError:
		return &Refusal{Status: status, Type: "server_error", Code: "server_error", Message: "the gateway could not handle the request"}
	default:
		return &Refusal{Status: status, Type: "upstream_error", Code: "bad_gateway", Message: "the upstream could not be reached or broke off"}
	}
}

// Quote returns a client's string as it may stand in a message: escaped, at
// most 128 bytes of it.
func Quote(s string) string {
	const most = 128
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}

// Write answers a request for path with r.
func (r *Refusal) Write(w http.ResponseWriter, path string) error {
	var body any
	path = apiPath(path)
	switch {
	case strings.HasPrefix(path, "/v1/messages"):
		type anthropicError struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		}
		body = struct {
			Type  string         `json:"type"`
			Error anthropicError `json:"error"`
		}{"error", anthropicError{anthropicType(r.Status), r.Message}}
	case strings.HasPrefix(path, "/api/"):
		body = struct {
			Error string `json:"error"`
		}{r.Message}
	default:
		type openaiError struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Param   string `json:"param,omitempty"`
			Code    string `json:"code"`
		}
		body = struct {
			Error openaiError `json:"error"`
		}{openaiError{r.Message, r.Type, r.Param, r.Code}}
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // people read it
	if err := enc.Encode(body); err != nil {
		return err
	}
	b := text.Bytes()
	h := w.Header()
	maps.Copy(h, r.Header)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("X-Content-Type-Options", "nosniff")
	if r.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((r.RetryAfter+time.Second-1)/time.Second)))
	}
	w.WriteHeader(r.Status)
	_, err := w.Write(b)
	return err
}

// apiPath returns path without a /model/<name> in front: a name that is not
// known was not stripped.
func apiPath(path string) string {
	if strings.HasPrefix(path, "/model/") {
		for _, api := range []string{"/v1/", "/api/"} {
			if i := strings.LastIndex(path, api); i > 0 {
				return path[i:]
			}
		}
	}
	return path
}

// anthropicType is the error type that Anthropic's API has for a status.
func anthropicType(status int) string {
	switch status {
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

// Interface guard
var _ error = (*Refusal)(nil)
