// Package walls holds the test of which parts of the gateway may know of which.
package walls
