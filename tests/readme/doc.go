// Package readme holds the test that README.md tells the truth: it runs the
// commands, compares what they print, adapts the Caddyfiles, and looks for the
// names of options, metrics and log fields.
package readme
