//go:build !amd64 || purego

package openai

// indexQuote leaves all of b to bytes.IndexByte.
func indexQuote([]byte) int { return 0 }
