package openai

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"strings"
	"unicode"
)

// maxFormModel is the longest model name, in bytes, that FormModel takes.
const maxFormModel = 1 << 10

// errNotForm says that a Content-Type is not that of a form.
var errNotForm = errors.New("the body is not multipart/form-data with a boundary")

// FormModel returns the model that a multipart/form-data body names: the
// value of its form field model, trimmed, wherever it stands among the files.
// A part with a file name is a file, whatever its field is called, and what a
// file holds is never taken for a field.
//
// The error is [ErrNoModel], [ErrModelTooLong] (over 1 KiB),
// [ErrModelRepeated] if there are several such fields that differ, or says
// what is wrong with the form.
//
// Unlike the scan of JSON it allocates, a few KiB whatever the body's size.
func FormModel(body []byte, contentType string) (name string, err error) {
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil || mediaType != "multipart/form-data" || params["boundary"] == "" {
		return "", errNotForm
	}
	found, differ := false, false
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("reading the form: %w", err)
		}
		if part.FormName() != "model" || isFile(part) {
			continue
		}
		value, err := io.ReadAll(io.LimitReader(part, maxFormModel+1))
		if err != nil {
			return "", fmt.Errorf("reading the form's model: %w", err)
		}
		if len(value) > maxFormModel {
			return "", ErrModelTooLong
		}
		model := strings.TrimSpace(string(value))
		differ = differ || found && model != name
		name, found = model, true
	}
	switch {
	case differ:
		return "", ErrModelRepeated
	case name == "":
		return "", ErrNoModel
	}
	return name, nil
}

// FormModels returns where the values of the form fields model stand in a
// multipart/form-data body, white space around them left off. It is for a body
// that [FormModel] could read.
func FormModels(body []byte, contentType string) (values []Span) {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil || params["boundary"] == "" {
		return nil
	}
	delimiter := []byte("--" + params["boundary"])
	next := func(from int) int { // the delimiter, at the start of a line
		for from < len(body) {
			i := bytes.Index(body[from:], delimiter)
			if i < 0 {
				break
			}
			if i += from; i == 0 || body[i-1] == '\n' {
				return i
			}
			from = i + 1
		}
		return -1
	}
	for at := next(0); at >= 0; {
		start := at + len(delimiter)
		end := next(start)
		if end < 0 {
			break
		}
		if s, ok := modelIn(body, start, end); ok {
			values = append(values, s)
		}
		at = end
	}
	return values
}

// modelIn returns where the value of a part stands, if it is a field model.
// start is behind the delimiter in front of the part, end where the next
// begins.
func modelIn(body []byte, start, end int) (s Span, ok bool) {
	lines := bufio.NewReader(bytes.NewReader(body[start:end]))
	rest, err := lines.ReadString('\n') // of the delimiter's line
	if err != nil || strings.TrimSpace(rest) != "" {
		return s, false
	}
	header, err := textproto.NewReader(lines).ReadMIMEHeader()
	part := &multipart.Part{Header: header}
	if err != nil || part.FormName() != "model" || isFile(part) || header.Get("Content-Transfer-Encoding") != "" {
		return s, false
	}
	content, err := io.ReadAll(lines)
	if err != nil {
		return s, false
	}
	// The line end before the delimiter is the delimiter's.
	content = bytes.TrimLeftFunc(content, unicode.IsSpace)
	s.Start = end - len(content)
	s.End = s.Start + len(bytes.TrimRightFunc(content, unicode.IsSpace))
	return s, s.Present()
}

// isFile reports whether a part has a file name, be it empty.
func isFile(part *multipart.Part) bool {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	_, named := params["filename"]
	return err != nil || named
}
