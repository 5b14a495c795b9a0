package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// All stages are there from the beginning, so that a first shutdown shows as
// an increase.
func TestShutdown(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	if err := Register(reg); err != nil {
		t.Fatal(err)
	}
	check := func(started, completed, timeout string) {
		t.Helper()
		want := `# HELP flexinfer_proxy_shutdowns_total Shutdowns of the process that started, and how they ended.
# TYPE flexinfer_proxy_shutdowns_total counter
flexinfer_proxy_shutdowns_total{result="completed"} ` + completed + `
flexinfer_proxy_shutdowns_total{result="started"} ` + started + `
flexinfer_proxy_shutdowns_total{result="timeout"} ` + timeout + "\n"
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "flexinfer_proxy_shutdowns_total"); err != nil {
			t.Error(err)
		}
	}
	check("0", "0", "0")
	StartShutdown()
	check("1", "0", "0")
	EndShutdown(ShutdownCompleted, 3*time.Second)
	EndShutdown(ShutdownTimeout, 700*time.Second)
	check("1", "1", "1")
	if n := testutil.CollectAndCount(shutdownDuration); n != 1 {
		t.Errorf("%d histograms of the duration", n)
	}
}
