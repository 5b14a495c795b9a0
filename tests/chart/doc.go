// Package chart tests the Helm chart and the Kubernetes example: what they
// render, that a cluster takes it, and that the gateway serves with the rights
// that it gets there.
package chart
