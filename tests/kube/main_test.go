// Package kube tests the built gateway against a real Kubernetes control plane,
// as its users see it.
package kube

import (
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// kube is the cluster of all tests. Each has namespaces of its own.
var kube *cluster.Cluster

func TestMain(m *testing.M) { cluster.Main(m, &kube) }
