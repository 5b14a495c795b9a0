package openai

import (
	"bytes"
	"errors"
	"mime/multipart"
	"strings"
	"testing"
)

func TestFormModel(t *testing.T) {
	const contentType = `multipart/form-data; boundary=XX`
	part := func(disposition, value string) string {
		return "--XX\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + value + "\r\n"
	}
	file := part(`name="file"; filename="a.wav"`, strings.Repeat("RIFF", 1<<18))
	tests := []struct {
		name, contentType, body string
		want                    string
		fields                  int // that FormModels finds, if there is no error
		err                     error
	}{
		{"before the file", contentType, part(`name="model"`, "a") + file + "--XX--\r\n", "a", 1, nil},
		{"behind the file", contentType, file + part(`name="model"`, "a") + "--XX--\r\n", "a", 1, nil},
		{"trimmed", contentType, part(`name="model"`, " a\r\n") + "--XX--\r\n", "a", 1, nil},
		{"unquoted", contentType, part(`name=model`, "a") + "--XX--\r\n", "a", 1, nil},
		{"quoted boundary, other case", `Multipart/Form-Data; charset=utf-8; boundary="XX"`, part(`name="model"`, "a") + "--XX--", "a", 1, nil},
		{"absent", contentType, file + "--XX--\r\n", "", 0, ErrNoModel},
		{"blank", contentType, part(`name="model"`, " ") + "--XX--\r\n", "", 1, ErrNoModel},
		{"twice the same", contentType, part(`name="model"`, "a") + part(`name="model"`, "a ") + "--XX--\r\n", "a", 2, nil},
		{"twice", contentType, part(`name="model"`, "a") + part(`name="model"`, "b") + "--XX--\r\n", "", 2, ErrModelRepeated},
		{"a, b, a", contentType, part(`name="model"`, "a") + part(`name="model"`, "b") + part(`name="model"`, "a") + "--XX--\r\n", "", 3, ErrModelRepeated},
		{"a file called model", contentType, part(`name="model"; filename="m"`, "a") + "--XX--\r\n", "", 0, ErrNoModel},
		{"a file without a name", contentType, part(`name="model"; filename=""`, "a") + "--XX--\r\n", "", 0, ErrNoModel},
		{"inside a file", contentType, part(`name="file"; filename="f"`, "Content-Disposition: form-data; name=\"model\"\r\n\r\na") + "--XX--\r\n", "", 0, ErrNoModel},
		{"other case", contentType, part(`name="Model"`, "a") + "--XX--\r\n", "", 0, ErrNoModel},
		{"1 KiB", contentType, part(`name="model"`, strings.Repeat("m", maxFormModel)) + "--XX--\r\n", strings.Repeat("m", maxFormModel), 1, nil},
		{"too long", contentType, part(`name="model"`, strings.Repeat("m", maxFormModel+1)) + "--XX--\r\n", "", 0, ErrModelTooLong},
		{"no boundary", "multipart/form-data", part(`name="model"`, "a") + "--XX--\r\n", "", 0, errNotForm},
		{"other type", "multipart/mixed; boundary=XX", part(`name="model"`, "a") + "--XX--\r\n", "", 0, errNotForm},
		{"no type", "", part(`name="model"`, "a") + "--XX--\r\n", "", 0, errNotForm},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := FormModel([]byte(tt.body), tt.contentType)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%.20q, %v, want %.20q, %v", got, err, tt.want, tt.err)
			}
		})
	}

	for _, tt := range tests {
		if tt.err != nil {
			continue
		}
		values := FormModels([]byte(tt.body), tt.contentType)
		if len(values) != tt.fields {
			t.Errorf("%s: %d values are found, want %d", tt.name, len(values), tt.fields)
		}
		for _, s := range values {
			if got := tt.body[s.Start:s.End]; got != tt.want {
				t.Errorf("%s: found %.20q, want %.20q", tt.name, got, tt.want)
			}
		}
	}

	for _, body := range []string{"", "--XX", part(`name="model"`, "a"), file + "--XX\r\n"} {
		if name, err := FormModel([]byte(body), contentType); err == nil {
			t.Errorf("a form that ends too soon gives %q without an error", name)
		}
	}
}

func FuzzFormModel(f *testing.F) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("model", "a")
	_ = w.Close()
	f.Add(b.Bytes(), w.FormDataContentType())
	f.Add([]byte("--X\r\nContent-Disposition: form-data; name=model\r\n\r\na\r\n--X--"), "multipart/form-data; boundary=X")
	f.Fuzz(func(t *testing.T, body []byte, contentType string) {
		name, err := FormModel(body, contentType)
		if len(name) > maxFormModel || (err == nil) != (name != "") {
			t.Fatalf("%q, %v", name, err)
		}
		for _, s := range FormModels(body, contentType) {
			if got := string(body[s.Start:s.End]); err == nil && got != name {
				t.Fatalf("found %q, want %q", got, name)
			}
		}
	})
}
