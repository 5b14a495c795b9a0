package openai

import (
	"errors"
	"fmt"
)

// What can be wrong with the model that a body names. The texts are written
// for the client.
var (
	// ErrNoModel: there is no model, or its name is empty or blank.
	ErrNoModel = errors.New("no model given")
	// ErrModelType: model is something else than a string.
	ErrModelType = errors.New("model must be a string")
	// ErrModelTooLong: the name is longer than allowed.
	ErrModelTooLong = errors.New("the model name is too long")
	// ErrModelRepeated: a form has several model fields that differ.
	ErrModelRepeated = errors.New("the form has several model fields that differ; send one")
)

// A SyntaxError says why a body is not one JSON object, in words for the
// client. It never quotes the body.
type SyntaxError struct {
	// Offset is the byte of the body where reading stopped, counted from 0.
	Offset int

	// Problem is what was found or missed there.
	Problem string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("the body is not a JSON object: %s at byte %d", e.Problem, e.Offset)
}

// The problems that Scan reports.
const (
	problemEmpty    = "it is empty"
	problemNoObject = "no { found"
	problemKey      = "expected a key in double quotes"
	problemKeyText  = "malformed key"
	problemColon    = "expected : behind a key"
	problemValue    = "expected a value"
	problemComma    = "expected , or }"
	problemUnclosed = "it ends too soon"
	problemTrailing = "unexpected text behind the object"
)
