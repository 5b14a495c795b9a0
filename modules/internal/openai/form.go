package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strings"
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
// count is how many fields model there are; name is the last one's value. The
// error is [ErrNoModel], [ErrModelTooLong] (over 1 KiB), [ErrModelRepeated]
// if they differ, or says what is wrong with the form.
//
// Unlike the scan of JSON it allocates, a few KiB whatever the body's size.
func FormModel(body []byte, contentType string) (name string, count int, err error) {
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil || mediaType != "multipart/form-data" || params["boundary"] == "" {
		return "", 0, errNotForm
	}
	differ := false
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", count, fmt.Errorf("reading the form: %w", err)
		}
		if part.FormName() != "model" || isFile(part) {
			continue
		}
		value, err := io.ReadAll(io.LimitReader(part, maxFormModel+1))
		if err != nil {
			return "", count, fmt.Errorf("reading the form's model: %w", err)
		}
		if len(value) > maxFormModel {
			return "", count, ErrModelTooLong
		}
		model := strings.TrimSpace(string(value))
		differ = differ || count > 0 && model != name
		name = model
		count++
	}
	switch {
	case differ:
		return name, count, ErrModelRepeated
	case name == "":
		return "", count, ErrNoModel
	}
	return name, count, nil
}

// isFile reports whether a part has a file name, be it empty.
func isFile(part *multipart.Part) bool {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	_, named := params["filename"]
	return err != nil || named
}
