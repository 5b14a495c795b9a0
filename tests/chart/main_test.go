package chart

import (
	"testing"

	"github.com/flexinfer/caddy-flexinfer/tests/kube/cluster"
)

// kube is the cluster of all tests. Each has namespaces of its own.
var kube *cluster.Cluster

func TestMain(m *testing.M) { cluster.Main(m, &kube) }
