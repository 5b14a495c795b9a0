// Package openai reads the bodies of OpenAI-style requests for what a gateway
// must know of them: the model, the keys, the limits. It covers chat,
// completions, embeddings, responses, Anthropic's messages, and Ollama's
// calls, which differ in their fields only.
//
// A JSON body is scanned once, from its first byte to its last, without
// building values, without allocating and without changing it: [Doc] notes
// where the values of interest lie. The top level must be one closed object;
// what lies inside its values is the engine's to judge, so that they are
// only followed to their ends.
package openai

// A Span is a range of bytes of a body: a JSON value without the white space
// around it. The zero Span stands for an absent value; no value begins at 0.
type Span struct{ Start, End int }

// Present reports whether s is a value at all.
func (s Span) Present() bool { return s.End > s.Start }

// Len returns the length of s in bytes.
func (s Span) Len() int { return s.End - s.Start }

// A Field is a top-level key that [Doc.Scan] looks for. Spelling and case are
// exact, escapes in the key are understood.
type Field uint8

// The fields, named like their keys.
const (
	FieldModel                Field = iota // model
	FieldStream                            // stream
	FieldStreamOptions                     // stream_options
	FieldSessionID                         // session_id
	FieldCacheKey                          // cache_key
	FieldCacheKeyCamel                     // cacheKey
	FieldPromptCacheKey                    // prompt_cache_key
	FieldPrefix                            // prefix
	FieldCacheSalt                         // cache_salt
	FieldMessages                          // messages
	FieldPrompt                            // prompt
	FieldInput                             // input
	FieldInstructions                      // instructions
	FieldSystem                            // system
	FieldTools                             // tools
	FieldDocumentContext                   // document_context
	FieldDocumentContextCamel              // documentContext
	FieldContext                           // context
	FieldDocuments                         // documents
	FieldMetadata                          // metadata
	FieldMaxTokens                         // max_tokens
	FieldMaxCompletionTokens               // max_completion_tokens
	FieldMaxOutputTokens                   // max_output_tokens
	FieldPreviousResponseID                // previous_response_id
	numFields

	// fieldOther is any other key.
	fieldOther = numFields
)

// fieldOf returns the field that key names, fieldOther if none.
func fieldOf(key []byte) Field {
	switch string(key) {
	case "model":
		return FieldModel
	case "stream":
		return FieldStream
	case "stream_options":
		return FieldStreamOptions
	case "session_id":
		return FieldSessionID
	case "cache_key":
		return FieldCacheKey
	case "cacheKey":
		return FieldCacheKeyCamel
	case "prompt_cache_key":
		return FieldPromptCacheKey
	case "prefix":
		return FieldPrefix
	case "cache_salt":
		return FieldCacheSalt
	case "messages":
		return FieldMessages
	case "prompt":
		return FieldPrompt
	case "input":
		return FieldInput
	case "instructions":
		return FieldInstructions
	case "system":
		return FieldSystem
	case "tools":
		return FieldTools
	case "document_context":
		return FieldDocumentContext
	case "documentContext":
		return FieldDocumentContextCamel
	case "context":
		return FieldContext
	case "documents":
		return FieldDocuments
	case "metadata":
		return FieldMetadata
	case "max_tokens":
		return FieldMaxTokens
	case "max_completion_tokens":
		return FieldMaxCompletionTokens
	case "max_output_tokens":
		return FieldMaxOutputTokens
	case "previous_response_id":
		return FieldPreviousResponseID
	}
	return fieldOther
}

// maxRest is how many members with other keys a Doc remembers. Requests have
// five to ten (temperature, user, stop …); looking for one among more costs a
// second scan.
const maxRest = 16

// A Doc is what is known of one JSON body. It refers to the body's bytes and
// is good for as long as they are. The zero Doc is a body without fields; a
// Doc may be scanned into again and again. It is not safe for concurrent use
// while it is being scanned into.
type Doc struct {
	body   []byte
	object Span
	fields [numFields]Span
	counts [numFields]uint8
	rest   [maxRest]member
	nrest  int // members with other keys, also those not remembered
	turns  turnList
}

// member is a key, its quotes left off, and its value.
type member struct{ key, value Span }

// Body returns the body that was scanned, with a byte order mark if it has one.
func (d *Doc) Body() []byte { return d.body }

// Object returns the span of the body's object, from its { to its }.
func (d *Doc) Object() Span { return d.object }

// Field returns the value of f: of the last one if there are several, like
// most readers see it; the zero Span if there is none.
func (d *Doc) Field(f Field) Span { return d.fields[f] }

// Count returns how many members named f there are; 255 stands for more, too.
// [Doc.Members] finds them all.
func (d *Doc) Count(f Field) int { return int(d.counts[f]) }

// Raw returns the bytes of s as the client sent them, nil for the zero Span.
func (d *Doc) Raw(s Span) []byte {
	if !s.Present() {
		return nil
	}
	return d.body[s.Start:s.End]
}

// Kind tells what kind of value a span is.
type Kind uint8

// The kinds of values.
const (
	Absent Kind = iota
	Null
	Bool
	Number // or anything else that is no JSON value
	String
	Array
	Object
)

// Kind returns the kind of the value at s. It judges by the first byte.
func (d *Doc) Kind(s Span) Kind {
	if !s.Present() {
		return Absent
	}
	switch d.body[s.Start] {
	case '"':
		return String
	case '[':
		return Array
	case '{':
		return Object
	case 'n':
		return Null
	case 't', 'f':
		return Bool
	}
	return Number
}

// Bool returns the truth value at s; ok is false if it is none.
func (d *Doc) Bool(s Span) (value, ok bool) {
	switch string(d.Raw(s)) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}
