// Package release holds the tests of what surrounds a build: that the image
// and the documents name the versions of go.mod.
package release
